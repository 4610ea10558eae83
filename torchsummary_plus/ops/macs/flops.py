"""Formulas that users registered with torch's own flop counter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload

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
