"""How many multiply-adds an operator call took: by formula, none by convention, or unknown.

The convention is that of torch's flop counter and of fvcore, in multiply-adds (flops / 2): convolutions, products,
attention, bilinear forms and recurrent cells count, biases and all else do not. Formulas stand in ``products.py`` and
``layers.py``, what is free in ``free.py``; :func:`register_formula` takes those of other people's operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload

from . import layers, products  # noqa: F401 - their formulas register themselves
from .free import is_free
from .registry import FORMULAS, base_name, register_formula

__all__ = ["multiply_adds", "register_formula"]


def multiply_adds(
    func: OpOverload | HigherOrderOperator, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> int | None:
    """Multiply-adds of one operator call: 0 for one that is free by convention, None where nobody knows.

    >>> import torch
    >>> a, b = torch.ones(2, 3), torch.ones(3, 4)
    >>> multiply_adds(torch.ops.aten.mm.default, (a, b), {}, a @ b)
    24
    >>> multiply_adds(torch.ops.aten.relu.default, (a,), {}, a)
    0
    >>> multiply_adds(torch.ops.aten.linalg_pinv.default, (a,), {}, b) is None
    True
    """
    name, free = _classify(func)
    formula = FORMULAS.get(name)
    if formula is None:
        return 0 if free else None
    count = formula(out, *args, **kwargs)
    return count if isinstance(count, int) else None


@cache
def _classify(func: OpOverload | HigherOrderOperator) -> tuple[str, bool]:
    """The name formulas go by, and whether the operator is free where it has none."""
    if isinstance(func, OpOverload):
        return base_name(func._schema.name), is_free(func)
    return f"higher_order::{func.name()}", False
