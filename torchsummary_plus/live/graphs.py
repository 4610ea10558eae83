"""Tensors that autograd graphs from before a step keep, as those of a state or attention map held with its graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from torch import Tensor

from .fakes import Fake
from .reach import Reached, in_saved
from .stored import all_stored

RAW = "_raw_saved_"
"""How the attributes of an autograd node begin that hold what its backward needs as it was saved."""


class KeptByGraphs:
    """Tensors in memory only because a backward may need them: those that the graphs of ``holders`` saved.

    ``lasting`` are the tensors that outlive the graphs. A graph is let go of with the last tensor that holds it.
    """

    def __init__(self, holders: Iterable[Tensor], lasting: Iterable[Tensor]) -> None:
        counted = {tensor.untyped_storage()._cdata for tensor in all_stored(lasting)}
        self._kept: dict[int, list[Tensor]] = {}
        for holder in _with_graphs(holders):
            saved = all_stored(saved_by(holder))
            kept = [tensor.detach() for tensor in saved if tensor.untyped_storage()._cdata not in counted]
            self._kept.update({id(holder): kept} if kept else {})
        self._watched: list[weakref.ref[Tensor]] = []

    def stand_ins(self, of: Callable[[int], Tensor], make: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """Yield ``make``'s stand-ins of the tensors, held by the stand-ins ``of`` their holders' ids."""
        made: dict[int, Tensor] = {}
        for key, kept in self._kept.items():
            theirs = []
            for tensor in kept:
                storage = tensor.untyped_storage()._cdata
                if storage not in made:
                    made[storage] = make(tensor)
                theirs.append(made[storage])
            self._watched.append(weakref.ref(of(key), _clearing(theirs)))
        yield from made.values()

    def clear(self) -> None:
        """Let go of all tensors."""
        self._kept.clear()
        self._watched.clear()


def ids_in_graphs(tensors: Iterable[Tensor]) -> set[int]:
    """Return the ids of those tensors that the graph of another has saved."""
    there = {id(tensor): tensor for tensor in tensors}
    return {id(saved) for holder in _with_graphs(there.values()) for saved in saved_by(holder)} & there.keys()


def _with_graphs(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if not isinstance(tensor, Fake) and tensor.grad_fn is not None]


def _clearing(held: list[Tensor]) -> Callable[[Any], None]:
    return lambda _: held.clear()


def saved_by(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that a tensor's graph has saved for its backward and not freed; none on torch before 2.11.

    >>> import torch
    >>> [saved.shape for saved in saved_by(torch.ones(3, requires_grad=True).exp())]
    [torch.Size([3])]
    """
    found: dict[int, Tensor] = {}
    waiting, seen = [tensor.grad_fn], dict[Any, None]()
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen[node] = None
        waiting += [inner for inner, _ in node.next_functions]
        for saved in _saved_in(node):
            found[id(saved)] = saved
            waiting.append(saved.grad_fn)
    return list(found.values())


def _saved_in(node: Any) -> Iterator[Tensor]:
    """Yield what one node saved, or what hooks of saved tensors keep in its place."""
    roots = list(getattr(node, "__dict__", {}).values())
    kind: Any = type(node)
    for name in _raw_names(kind):
        values = getattr(node, name)
        for saved in values if isinstance(values, tuple) else (values,):
            roots += in_saved(saved)
    others = [root for root in roots if type(root) is not Tensor and root is not None]
    yield from (root for root in roots if type(root) is Tensor)
    yield from Reached(others).tensors if others else ()


@lru_cache(maxsize=4096)
def _raw_names(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(RAW))
