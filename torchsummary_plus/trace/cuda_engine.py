"""The autograd engine on a CUDA build without a card, where torch's fake device guard stands for CUDA's.

At its start the engine asks the driver about each device that the guard counts, and at its end it looks up the streams
of the nodes that accumulate gradients. So one that counts the cards which are there is in its place until the first
node runs, and no accumulating node has a stream: it is made while C++ sees its leaf as meta.

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
"""The note on a node that was made while its leaf was seen as meta."""


class CudaEngine:
    """What a backward needs where :attr:`Slot.filled` is in the place of a build's own guard; elsewhere nothing."""

    def __init__(self, watch: Pass) -> None:
        self.watch = watch
        self.slot = Slot.filled if torch.backends.cuda.is_built() else None
        self.lasting: list[Any] = []
        self.fresh: list[Any] = []
        """Accumulating nodes that no graph holds yet. They hold their leaves, and are not held by them."""

    def add_leaf(self, tensor: torch.Tensor, lasting: bool = False) -> None:
        """Make the node that accumulates the gradient of a leaf, for the graph up to the next backward or for all."""
        if self.slot is not None and tensor.requires_grad and tensor.is_leaf:
            node = self._seen_as_meta(tensor).grad_fn.next_functions[0][0]
            node.metadata[_SEEN] = True
            (self.lasting if lasting else self.fresh).append(node)

    @contextmanager
    def started(self, roots: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The roots to run a backward from instead of these; while it holds, the engine may start."""
        slot = self.slot
        if slot is None:
            yield roots
            return
        fake = slot.holds()
        begun = tuple(self._seen_as_meta(root) if isinstance(root, torch.Tensor) else root for root in roots)
        made = (root.grad_fn if isinstance(root, torch.Tensor) else root.node for root in begun)
        nodes: list[Any] = [node for node in made if node is not None]
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
        """A view of a tensor whose node, with that of a leaf, has no stream."""
        outer, self.watch.in_engine = self.watch.in_engine, True
        try:
            with self.watch.unheard(), torch.enable_grad(), compat.no_function():
                return tensor.view_as(tensor)
        finally:
            self.watch.in_engine = outer


def _check_leaves(nodes: Sequence[Any]) -> None:
    """Refuse a graph with an accumulating node that has a stream: the engine would look it up where there is none."""
    waiting, seen = list(nodes), set(nodes)
    while waiting:
        node = waiting.pop()
        if node.name() == _ACCUMULATES and _has_stream(node):
            raise UnsupportedError(
                "a CUDA build of torch needs a GPU for a leaf tensor that the step creates; "
                "a CPU build estimates the step without one"
            )
        following = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= following
        waiting.extend(following)


def _has_stream(node: Any) -> bool:
    """Whether a node that accumulates a gradient knows a card's stream; torch tells since 2.5, before we remember."""
    if hasattr(node, "_input_metadata"):
        return any(one.device.type == "cuda" for one in node._input_metadata)
    return node.variable.device.type == "cuda" and _SEEN not in node.metadata
