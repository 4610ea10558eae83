"""Multiply-adds of an operator call: by formula, 0 by convention, or unknown.

The convention is that of torch's flop counter and of fvcore, in multiply-adds (flops / 2): convolutions, matrix
products, attention, bilinear forms and recurrent cells count; biases and everything else do not. Formulas are in
``products.py`` and ``layers.py``, free operators in ``free.py``; :func:`register_mult_adds` adds third-party
operators, as does torch's own ``register_flop_formula``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload

from . import layers, products  # noqa: F401 - their formulas register themselves
from .free import is_free
from .registry import FORMULAS, base_name, register_mult_adds

__all__ = ["multiply_adds", "register_mult_adds"]


def multiply_adds(
    func: OpOverload | HigherOrderOperator, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> int | None:
    """Return the multiply-adds of one operator call: 0 if it is free by convention, None if unknown.

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
    if formula is not None:
        count = formula(out, *args, **kwargs)
        return count if isinstance(count, int) else None
    in_flops = user_flop_formula(func)
    if in_flops is not None:
        return -(-int(in_flops(*args, **kwargs, out_val=out)) // 2)
    return 0 if free else None


@cache
def _classify(func: OpOverload | HigherOrderOperator) -> tuple[str, bool]:
    """Return the name that formulas are registered under, and whether the operator is free without one."""
    if isinstance(func, OpOverload):
        return base_name(func._schema.name), is_free(func)
    return f"higher_order::{func.name()}", False


COUNTER = "torch.utils.flop_counter"


def user_flop_formula(func: OpOverload | HigherOrderOperator) -> Callable[..., Any] | None:
    """Return the formula that a user registered for an operator with torch's ``register_flop_formula``, or None.

    It is called as torch calls it, with ``out_val`` for the result, and returns flops. torch's own formulas do not
    count, because they exist only once something has imported that module.
    """
    counter = sys.modules.get(COUNTER)
    if counter is None:
        return None
    registry: dict[Any, Callable[..., Any]] = counter.flop_registry
    formula = registry.get(getattr(func, "overloadpacket", func), registry.get(func))
    return None if getattr(formula, "__module__", COUNTER) == COUNTER else formula
