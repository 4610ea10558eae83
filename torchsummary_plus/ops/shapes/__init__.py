"""Closed rules for the operators of common models: what they give, without running a meta kernel.

Most meta kernels are Python, slow, and import torch's compiler stack when first used. A rule reads shapes, strides and
dtypes only, agrees with the meta kernel where it answers (``tests/ops/test_rules.py``), and answers nothing irregular.
"""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

from . import images, layers, moves, pointwise, reductions  # noqa: F401  (they register)
from .kernels import of_kernel
from .registry import RULES, Answer, Unsure


def ruled_by_kernel(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], on_cpu: bool) -> Answer | None:
    """What the kernels of an operator give where its meta kernel is known to say something else; None elsewhere."""
    rule = of_kernel(func.name(), on_cpu)
    if rule is None:
        return None
    try:
        return rule(*args, **kwargs)
    except Unsure:
        return None


def ruled(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer | None:
    """What an operator gives, without running it; None where no rule is sure, so that the meta kernel runs and raises.

    A tuple (shape, stride, dtype) is a fresh tensor. An int is the position, among all tensor arguments in order, of
    the one that comes back. A list of these stands for several outputs, of which torch makes a tuple;
    None among them is one that is not defined.
    """
    rule = RULES.get(func.name())
    if rule is None:
        return None
    try:
        return rule(*args, **kwargs)
    except Unsure:
        return None
