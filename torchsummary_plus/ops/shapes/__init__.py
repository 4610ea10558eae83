"""Closed-form result rules for operators of common models, used instead of running a meta kernel.

Most meta kernels are written in Python, slow, and import torch's compiler stack on first use, and some lay results out
differently from the kernels; steps need the real layout. A rule reads only shapes, strides, dtypes and the device,
agrees with the kernel where it answers (``tests/ops/test_rules.py``), and declines the rest.
"""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

from . import layers, pointwise, views  # noqa: F401 - they register
from .registry import RULES, Answer, said_by


def ruled(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer | None:
    """Return an operator's result without running it; None if no rule applies, so that the meta kernel runs or raises.

    A tuple (shape, stride, dtype) is a new tensor. An int is the position, among all tensor arguments in order, of the
    one that is returned. A list of these stands for a tuple of outputs, in which None is an undefined one.
    """
    return said_by(RULES.get(func.name()), args, kwargs)
