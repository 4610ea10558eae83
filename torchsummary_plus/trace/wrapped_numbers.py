"""Python numbers passed in place of tensors, which torch converts to tensors."""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

NUMBER_BYTES = {bool: 1, int: 8, float: 8, complex: 16}
"""Bytes of the tensor that torch creates for a number.

Source: ``wrapped_scalar_tensor`` in aten/src/ATen/ScalarOps.h.
"""


def number_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """Return the bytes of the tensors that torch creates for an operator's numbers.

    >>> import torch
    >>> number_bytes(torch.ops.aten.mul.Tensor, (torch.ones(2), 3.0)), number_bytes(torch.ops.aten.add.Scalar, (1, 2))
    (8, 8)
    """
    if not isinstance(func, OpOverload):
        return 0
    arguments = zip(func._schema.arguments, args)
    return sum(NUMBER_BYTES.get(type(value), 0) for argument, value in arguments if str(argument.type) == "Tensor")
