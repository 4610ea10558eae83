"""Formulas that users gave torch's own flop counter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload

COUNTER = "torch.utils.flop_counter"


def user_flop_formula(func: OpOverload | HigherOrderOperator) -> Callable[..., Any] | None:
    """Return the formula that a user gave torch's ``register_flop_formula`` for an operator, if there is one.

    It is called as torch calls it, with ``out_val`` for the result, and returns flops. torch's own formulas, which the
    module brings, do not count: they are there only once something has imported it.
    """
    counter = sys.modules.get(COUNTER)
    if counter is None:
        return None
    formula: Callable[..., Any] | None = counter.flop_registry.get(getattr(func, "overloadpacket", func))
    return None if getattr(formula, "__module__", COUNTER) == COUNTER else formula
