"""The autograd engine on a CUDA build without a GPU, where torch's fake device guard replaces CUDA's.

When it starts, the engine queries the driver about each device that the guard counts; when it ends, it looks up the
streams of the nodes that accumulated or returned gradients. Therefore a guard that counts the real devices is
registered until the first node runs, accumulating nodes are created while C++ sees their leaves as meta tensors,
without a stream, and gradients to return are taken by hooks, the last of which ends the run.

Source: torch/csrc/autograd/engine.cpp, ``stash_current_streams``, ``evaluate_function`` and ``exec_post_processing``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

from ...data.errors import UnsupportedError
from ...live import compat
from ...live.cuda_calls import Slot
from ...live.weights import is_transformed
from ...table.forward import Pass

ACCUMULATES = "torch::autograd::AccumulateGrad"

_UNUSED = (
    "One of the differentiated Tensors appears to not have been used in the graph. "
    "Set allow_unused=True if this is the desired behavior."
)
"""torch's own words."""


class _AllGradients(Exception):
    """Ends a run of the engine whose gradients are known."""


class CudaEngine:
    """Workarounds for a backward while :attr:`Slot.filled` replaces the build's own guard; otherwise inactive."""

    def __init__(self, watch: Pass) -> None:
        self.watch = watch
        self.slot = Slot.filled if torch.backends.cuda.is_built() else None
        if self.slot is not None:
            _count_of_a_leaf_alone()  # Outside the pass, whose tensors are fakes.
        self.lasting: dict[int, Any] = {}
        """Accumulating nodes by the ids of their leaves, which they hold."""
        self.fresh: list[Any] = []
        """Accumulating nodes that no graph may hold. They hold their leaves, not the other way round: see
        :meth:`drop_unreferenced`."""

    def add_leaf(self, tensor: torch.Tensor, lasting: bool = False) -> None:
        """Create the node that accumulates a leaf's gradient; the engine releases it unless it is ``lasting``."""
        if self.slot is not None and tensor.requires_grad and tensor.is_leaf:
            node = self._seen_as_meta(tensor).grad_fn.next_functions[0][0]
            if lasting:
                self.lasting[id(tensor)] = node
            else:
                self.fresh.append(node)

    def drop_unreferenced(self) -> None:
        """Release the leaves that Python no longer refers to; a graph that needs one holds its node."""
        if self.fresh:
            alone = _count_of_a_leaf_alone()
            self.fresh = [node for node in self.fresh if sys.getrefcount(node.variable) > alone]

    def release(self) -> None:
        """Release all nodes; their leaves refer back here in cycles that Python cannot see."""
        self.lasting.clear()
        self.fresh.clear()

    def run(self, run: Callable[..., Any], roots: Sequence[Any], gradients: Any, *how: Any, **kwargs: Any) -> Any:
        """Run a backward. Raises :class:`UnsupportedError` for a leaf whose node has a stream, of a missing GPU."""
        if self.slot is None:
            return run(roots, gradients, *how, **kwargs)
        with self._started(self.slot, roots) as (started, graph):
            if kwargs["accumulate_grad"]:
                if any(node.name() == ACCUMULATES and _has_stream(node) for node in graph):
                    raise UnsupportedError(
                        "the step creates a leaf tensor, for which a CUDA build of torch needs a GPU; "
                        "estimate it with a CPU build of torch"
                    )
                return run(started, gradients, *how, **kwargs)
            inputs, allows_unused = how[-2:]
            return self._gradients_by_hooks(
                lambda: run(started, gradients, *how, **kwargs), graph, inputs, allows_unused
            )

    @contextmanager
    def _started(self, slot: Slot, roots: Sequence[Any]) -> Iterator[tuple[Sequence[Any], set[Any]]]:
        """Yield the roots to run a backward from, and its nodes; inside this context the engine may start."""
        fake = slot.holds()
        started = tuple(root if _is_on_meta(root) else self._seen_as_meta(root) for root in roots)
        nodes = nodes_of(started)
        graph = reached(nodes)
        # The engine begins with the views' nodes: others may have the numbers of nodes still to come.
        first = nodes_of([view for view, root in zip(started, roots) if view is not root])
        most = max((n._sequence_nr() for n in graph.difference(first) if n.name() != ACCUMULATES), default=0)
        for node in first:
            if node._sequence_nr() < most:
                node._set_sequence_nr(most + 1)
        self.drop_unreferenced()
        handles = [node.register_prehook(lambda _: slot.put(fake)) for node in nodes]
        slot.put_one_that_counts()
        try:
            yield started, graph
        finally:
            slot.put(fake)
            for handle in handles:
                handle.remove()

    def _gradients_by_hooks(
        self, run: Callable[[], Any], graph: set[Any], inputs: Sequence[Any], allows_unused: bool
    ) -> Any:
        """Run the engine for the gradients of inputs; if one would be returned from a GPU's stream, hooks take them."""
        tensors = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
        if len(tensors) < len(inputs) or any(map(_is_on_meta, tensors)):
            return run()
        with compat.no_function():  # A leaf's node is found through that of a view.
            nodes = [torch.autograd.graph.get_gradient_edge(tensor).node for tensor in tensors]
        wanted = [place for place, node in enumerate(nodes) if node in graph]
        if not any(_has_stream(nodes[place]) for place in wanted):
            return run()
        if len(wanted) < len(inputs) and not allows_unused:
            raise RuntimeError(_UNUSED)
        gradients: dict[int, Any] = {}

        def take(place: int, gradient: Any) -> None:
            gradients[place] = gradient
            if len(gradients) == len(wanted):
                raise _AllGradients

        with compat.no_function():
            handles = [tensors[place].register_hook(partial(take, place)) for place in wanted]
        try:
            return run()
        except _AllGradients:
            return tuple(gradients.get(place) for place in range(len(inputs)))
        finally:
            for handle in handles:
                handle.remove()

    def _seen_as_meta(self, tensor: torch.Tensor) -> Any:
        """Return a view of a tensor whose node, like its leaf's, has no stream."""
        with (
            self.watch.state.override(in_engine=True, as_meta=True, notifies=False),
            torch.enable_grad(),
            compat.no_function(),
        ):
            return tensor.view_as(tensor)


def _is_on_meta(root: Any) -> bool:
    """Whether C++ sees a root or input on meta already: an edge of the graph, or a tensor of a transform."""
    return not isinstance(root, torch.Tensor) or is_transformed(root)


@cache
def _count_of_a_leaf_alone() -> int:
    """Return the reference count of a leaf that only its node holds; torch counts its own in newer releases."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(1, device="cpu", requires_grad=True)
        node: Any = leaf.view_as(leaf).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    del leaf
    return sys.getrefcount(node.variable)


def nodes_of(roots: Sequence[Any]) -> list[Any]:
    """Return the nodes of a backward's roots."""
    heads = (root.grad_fn if isinstance(root, torch.Tensor) else root.node for root in roots)
    return [node for node in heads if node is not None]


def reached(nodes: Sequence[Any]) -> set[Any]:
    """Return the given nodes and all that are reachable from them."""
    waiting, seen = list(nodes), set(nodes)
    while waiting:
        following = {following for following, _ in waiting.pop().next_functions if following is not None} - seen
        seen |= following
        waiting.extend(following)
    return seen


def _has_stream(node: Any) -> bool:
    """Whether an accumulating node has a CUDA stream."""
    return any(metadata.device.type == "cuda" for metadata in node._input_metadata)
