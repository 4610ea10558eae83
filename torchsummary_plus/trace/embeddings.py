"""Detect a sized input without a dtype that reaches an embedding, so that it must be integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..live.inputs import Example
from .passes import Listener


class NeedsIntegerError(Exception):
    """An embedding received the sized input number ``index`` as floats."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Embeddings(Listener):
    """Asks for integers when a sized input without a dtype reaches an embedding as floats."""

    def __init__(self, example: Example) -> None:
        self.undecided = [sized.dtype is None for sized in example.sized()]
        self.inputs: dict[int, int] = {}

    def watch(self, tensors: Sequence[torch.Tensor]) -> None:
        """Remember the tensors made for the sized inputs, in order."""
        self.inputs = {t.untyped_storage()._cdata: i for i, t in enumerate(tensors) if self.undecided[i]}

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise :class:`NeedsIntegerError` for a sized input, RuntimeError for any other floating-point index."""
        if id(func) in _EMBEDDINGS and args[1].is_floating_point():
            index = self.inputs.get(args[1].untyped_storage()._cdata)
            if index is not None:
                raise NeedsIntegerError(index)
            raise RuntimeError(f"Expected indices of scalar types Long, Int; got {args[1].dtype} for an embedding")


_EMBEDDINGS = frozenset(
    id(operator.default)
    for operator in (
        torch.ops.aten.embedding,
        torch.ops.aten._embedding_bag,
        torch.ops.aten._embedding_bag_forward_only,
    )
)
"""Keyed by id: operators are slow to hash, and every operator of a pass is looked up."""
