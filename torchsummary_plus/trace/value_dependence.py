"""Whether an operator's result depends on values, or on shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload

from ..live.masks import masks_of
from ..ops.shapes import ruled


def wants_weights(args: Any, kwargs: Any) -> bool:
    """Whether the attention fast path returns its weights; otherwise its meta kernel returns an empty tensor."""
    return bool(kwargs.get("need_weights", args[10] if len(args) > 10 else True))


def has_integer_indices(func: OpOverload, args: Any) -> bool:
    """Whether an indexing operator has no masks, so that its shape follows from the indices' shapes."""
    return func is torch.ops.aten.index.Tensor and not masks_of(args[1])


@cache
def asks_values(func: OpOverload) -> bool:
    """Whether an operator's result, or its shape, depends on values."""
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def gives_at_most(limit: int, func: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether a rule says that an operator's result has at most ``limit`` elements, or it is no tensor."""
    if not any("Tensor" in str(value.type) for value in func._schema.returns):
        return True
    rule = ruled(func, args, kwargs)
    outs = rule if isinstance(rule, list) else [rule]
    return rule is not None and all(isinstance(out, int) or prod(out[0]) <= limit for out in outs if out is not None)


def makes_random_mask(func: OpOverload, operands: Sequence[torch.Tensor]) -> bool:
    """Whether an operator draws several random numbers, such as dropout's mask: no code depends on their values."""
    return torch.Tag.nondeterministic_seeded in func.tags and any(tensor.numel() > 1 for tensor in operands)
