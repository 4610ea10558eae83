"""The autograd engine on a CUDA build without a GPU, where torch's fake device guard replaces CUDA's.

When it starts, the engine queries the driver about each device that the guard counts; when it ends, it looks up the
streams of the nodes that accumulate gradients. Therefore a guard that counts the real devices is registered until the
first node runs, and accumulating nodes are created while C++ sees their leaves as meta tensors, without a stream.

Source: torch/csrc/autograd/engine.cpp, ``stash_current_streams`` and ``exec_post_processing``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..data.errors import UnsupportedError
from ..live import compat
from ..live.cuda_guard import Slot
from .passes import Pass

_ACCUMULATES = "torch::autograd::AccumulateGrad"
_SEEN = "torchsummary_plus"
"""Metadata key of nodes created while their leaf was seen as meta."""


class CudaEngine:
    """Workarounds for a backward while :attr:`Slot.filled` replaces the build's own guard; otherwise inactive."""

    def __init__(self, watch: Pass) -> None:
        self.watch = watch
        self.slot = Slot.filled if torch.backends.cuda.is_built() else None
        self.lasting: list[Any] = []
        self.fresh: list[Any] = []
        """Accumulating nodes not yet held by a graph, until the engine's next operator. They hold their leaves, not the
        other way round."""

    def add_leaf(self, tensor: torch.Tensor, lasting: bool = False) -> None:
        """Create the node that accumulates a leaf's gradient; if it is not ``lasting``, the engine lets go of it."""
        if self.slot is not None and tensor.requires_grad and tensor.is_leaf:
            node = self._seen_as_meta(tensor).grad_fn.next_functions[0][0]
            node.metadata[_SEEN] = True
            (self.lasting if lasting else self.fresh).append(node)

    def let_go(self) -> None:
        """Let go of all nodes, whose leaves lead back here in circles that Python cannot see."""
        self.lasting.clear()
        self.fresh.clear()

    @contextmanager
    def started(self, roots: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield the roots to run a backward from; inside this context the engine may start."""
        slot = self.slot
        if slot is None:
            yield roots
            return
        fake = slot.holds()
        begun = tuple(self._seen_as_meta(root) if isinstance(root, torch.Tensor) else root for root in roots)
        heads = (root.grad_fn if isinstance(root, torch.Tensor) else root.node for root in begun)
        nodes: list[Any] = [node for node in heads if node is not None]
        self.fresh.clear()
        _check_leaves(nodes)
        handles = [node.register_prehook(lambda _: slot.put(fake)) for node in nodes]
        slot.put_one_that_counts()
        try:
            yield begun
        finally:
            slot.put(fake)
            for handle in handles:
                handle.remove()

    def _seen_as_meta(self, tensor: torch.Tensor) -> Any:
        """Return a view of a tensor whose node, like its leaf's, has no stream."""
        with (
            self.watch.state.being(in_engine=True, as_meta=True, heard=False),
            torch.enable_grad(),
            compat.no_function(),
        ):
            return tensor.view_as(tensor)


def _check_leaves(nodes: Sequence[Any]) -> None:
    """Reject a graph whose accumulating node has a stream, which the engine would look up on a missing GPU."""
    waiting, seen = list(nodes), set(nodes)
    while waiting:
        node = waiting.pop()
        if node.name() == _ACCUMULATES and _has_stream(node):
            raise UnsupportedError(
                "the step creates a leaf tensor, for which a CUDA build of torch needs a GPU; "
                "estimate it with a CPU build of torch"
            )
        following = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= following
        waiting.extend(following)


def _has_stream(node: Any) -> bool:
    """Whether an accumulating node has a CUDA stream; torch knows since 2.5; before that, our metadata does."""
    if hasattr(node, "_input_metadata"):
        return any(metadata.device.type == "cuda" for metadata in node._input_metadata)
    return node.variable.device.type == "cuda" and _SEEN not in node.metadata
