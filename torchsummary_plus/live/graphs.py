"""Tensors kept by autograd graphs from before a step, such as the graph of a recurrent state or an attention map."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any

from torch import Tensor

from .fakes import Fake
from .reach import Reached, in_saved
from .stored import all_stored
from .structures import all_tensors

RAW = "_raw_saved_"
"""Prefix of an autograd node's attributes with the values saved for its backward, unprocessed."""


class SavedByGraphs:
    """Tensors in memory only because a backward may need them: those that the graphs of ``holders`` saved.

    ``lasting`` are the tensors that outlive the graphs. A graph is freed with the last tensor that holds it, except for
    the part that leads to a node holding itself, which torch never frees.
    """

    def __init__(self, holders: Iterable[Tensor], lasting: Iterable[Tensor]) -> None:
        counted = {tensor.untyped_storage()._cdata for tensor in all_stored(lasting)}
        self._kept: dict[int, list[Tensor]] = {}
        """By the id of the tensor that holds its graph."""
        self._never_freed: list[Tensor] = []
        for holder in holders:
            if isinstance(holder, Fake) or holder.grad_fn is None:
                continue
            graph = _graph(holder)
            # A node that holds its own result, which hooks of saved tensors (save_on_cpu) keep with its graph, is held
            # by it in turn; Python cannot see this cycle.
            endless = [node for node in graph if any(tensor.grad_fn is node for tensor in _held_by_python(node))]
            self._never_freed += _uncounted(_closure(endless, graph.__getitem__), counted)
            counted.update(tensor.untyped_storage()._cdata for tensor in self._never_freed)
            if uncounted := _uncounted(graph, counted):
                self._kept[id(holder)] = uncounted
        self._watched: list[weakref.ref[Tensor]] = []

    def stand_ins(self, of: Callable[[int], Tensor], make: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """Yield ``make``'s stand-ins for the tensors, kept alive by the stand-ins of their holders (``of``, by id)."""
        known: dict[int, Tensor] = {}
        self._never_freed = [make(tensor) for tensor in self._never_freed]
        yield from self._never_freed
        for key, saved_tensors in self._kept.items():
            theirs = []
            for tensor in saved_tensors:
                storage = tensor.untyped_storage()._cdata
                if storage not in known:
                    known[storage] = make(tensor)
                theirs.append(known[storage])
            self._watched.append(weakref.ref(of(key), _clearing(theirs)))
        yield from known.values()

    def clear(self) -> None:
        """Drop all references to tensors."""
        for references in (self._kept, self._never_freed, self._watched):
            references.clear()


def _clearing(tensors: list[Tensor]) -> Callable[[Any], None]:
    return lambda _: tensors.clear()


def saved_by(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that a tensor's graph has saved for its backward and not freed; none on torch before 2.11.

    >>> import torch
    >>> saved_by(torch.ones(3))
    []
    """
    return list({id(saved): saved for of_node in _graph(tensor).values() for saved in of_node}.values())


Graph = dict[Any, list[Tensor]]
"""Autograd nodes, each with its saved tensors."""


def _graph(tensor: Tensor) -> Graph:
    """Return a tensor's graph, with the graphs of the tensors that its nodes saved."""
    return _closure([tensor.grad_fn], _saved_in)


def _closure(nodes: list[Any], saved_in: Callable[[Any], list[Tensor]]) -> Graph:
    """Return the given nodes and all that are reachable from them, each with its saved tensors."""
    closure: Graph = {}
    while nodes:
        node = nodes.pop()
        if node is not None and node not in closure:
            closure[node] = saved_in(node)
            nodes += [inner for inner, _ in node.next_functions]
            nodes += [saved.grad_fn for saved in closure[node]]
    return closure


def _uncounted(graph: Graph, counted: set[int]) -> list[Tensor]:
    """Return one saved tensor of a graph for each storage that is not counted yet."""
    saved = all_stored(tensor for of_node in graph.values() for tensor in of_node)
    by_storage = {tensor.untyped_storage()._cdata: tensor for tensor in saved}
    return [tensor.detach() for storage, tensor in by_storage.items() if storage not in counted]


def _saved_in(node: Any) -> list[Tensor]:
    """Return a node's saved tensors, or those in the values that saved-tensor hooks keep in their place."""
    roots = [*getattr(node, "__dict__", {}).values(), *chain.from_iterable(map(in_saved, _saved_objects(node)))]
    others = [root for root in roots if type(root) is not Tensor and root is not None]
    return [root for root in roots if type(root) is Tensor] + (Reached(others).tensors if others else [])


def _held_by_python(node: Any) -> list[Tensor]:
    """Return the tensors in a node's attributes, and those packed by saved-tensor hooks."""
    hooked = (saved for saved in _saved_objects(node) if getattr(saved, "unpack_hook", None) is not None)
    return all_tensors([*getattr(node, "__dict__", {}).values(), *(saved.data for saved in hooked)])


def _saved_objects(node: Any) -> Iterator[Any]:
    kind: Any = type(node)
    for name in _raw_names(kind):
        try:
            values = getattr(node, name)
        except RuntimeError:  # A backward has freed a list of tensors; for a single one torch returns an empty object.
            continue
        yield from values if isinstance(values, tuple) else (values,)


@lru_cache(maxsize=4096)
def _raw_names(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(RAW))
