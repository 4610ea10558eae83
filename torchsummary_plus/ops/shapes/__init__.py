"""Closed-form result rules for operators of common models, used instead of running a meta kernel.

Most meta kernels are written in Python, slow, and import torch's compiler stack on first use, and some lay results out
differently from the kernels; steps need the real layout. A rule reads only shapes, strides, dtypes and the device,
agrees with the kernel where it answers (``tests/ops/test_rules.py``), and declines the rest.
"""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

from . import layers  # noqa: F401 - they register
from .registry import RULES, Answer, Unsure, results_of_two
from .tensors import elementwise, is_elementwise


def ruled(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer | None:
    """Return an operator's result; None if no rule applies, so that the meta kernel runs or raises."""
    rule = RULES.get(func.name())
    try:
        if rule is None:
            return elementwise(func, args, kwargs) if is_elementwise(func) else None
        answer = rule(*args, **kwargs)
        outs = answer if isinstance(answer, list) else [answer]
        if not any(isinstance(out, tuple) and out[2] is None for out in outs):
            return answer
        results = results_of_two(func, args, kwargs)
    except Unsure:
        return None
    typed: list[Any] = [(*out[:2], result.dtype) for out, result in zip(outs, results)]  # type: ignore[index]
    return typed if isinstance(answer, list) else typed[0]
