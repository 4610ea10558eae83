"""Closed-form result rules for operators of common models, used instead of running a meta kernel.

Most meta kernels are written in Python, slow, and import torch's compiler stack on first use. A rule reads only shapes,
strides and dtypes, agrees with the meta kernel where it answers (``tests/ops/test_rules.py``), and declines the rest.
"""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

from . import (  # noqa: F401  (they register)
    convolutions,
    foreach,
    images,
    kernel_norms,
    kernel_pointwise,
    kernels,
    layers,
    losses,
    matrices,
    moves,
    pointwise,
    reductions,
    synced,
)
from .kernel_tables import of_kernel
from .registry import RULES, Answer, said_by


def ruled_by_kernel(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], on_cpu: bool) -> Answer | None:
    """Return an operator's result where its kernels are known to differ from its meta kernel, else None."""
    return said_by(of_kernel(func.name(), on_cpu), args, kwargs)


def ruled(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer | None:
    """Return an operator's result without running it; None if no rule applies, so that the meta kernel runs or raises.

    A tuple (shape, stride, dtype) is a new tensor. An int is the position, among all tensor arguments in order, of the
    one that is returned. A list of these stands for a tuple of outputs, in which None is an undefined one.
    """
    return said_by(RULES.get(func.name()), args, kwargs)
