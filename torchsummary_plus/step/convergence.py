"""Optimizers that iterate until convergence: as often as in a real step, or, by assumption, up to their limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import torch
from torch.optim import lbfgs

from ..trace.questions import OUTSIDE, Answers
from .ledger import Ledger

AS_REAL = "iterates as often as in a real step on the CPU"

TOLERANCES = ("tolerance_grad", "tolerance_change")

SEARCHED = 3.0
"""Further gradients, relative to the gathered one, that a line search may keep for its bracket.

Source: torch/optim/lbfgs.py, ``_strong_wolfe``: ``g_prev`` and both of ``bracket_g``.
"""


@contextmanager
def not_converging(optimizer: torch.optim.Optimizer, ledger: Ledger, answers: Answers) -> Iterator[None]:
    """Have LBFGS iterate as in a real step; without one it meets no tolerance, and searches accept the first point.

    Only values determine when it stops and how many pairs of steps and gradient changes it keeps, so without a real
    step its allocations outside the closure are an assumption.
    Raises :class:`DataDependentError` if a real step has not been tried yet.
    """
    if not isinstance(optimizer, torch.optim.LBFGS) or ledger.assuming is not None:
        yield
        return
    if answers.follows_real_step():
        answers.assume(OUTSIDE, type(optimizer).__name__, AS_REAL)
        yield
        return
    module: Any = lbfgs
    group = optimizer.param_groups[0]
    tolerances = {name: group[name] for name in TOLERANCES}
    group.update(dict.fromkeys(TOLERANCES, -inf))
    by_search = group["line_search_fn"] is not None
    answers.assume(OUTSIDE, type(optimizer).__name__, _limits(group["max_iter"], group["max_eval"], by_search))
    ledger.assuming = SEARCHED if by_search else 0.0
    outer, answers.is_search = answers.is_search, lambda: ledger.phase == "optimizer"
    module.min = _shorter
    try:
        yield
    finally:
        del module.min
        ledger.assuming, answers.is_search = None, outer
        group.update(tolerances)


def _shorter(*sizes: Any) -> Any:
    """Return the smaller step size: of a number and a tensor from the gradient, the tensor, which is kept.

    Source: torch/optim/lbfgs.py, ``t = min(1.0, 1.0 / flat_grad.abs().sum()) * lr``.
    """
    tensors = [value for value in sizes if isinstance(value, torch.Tensor)]
    return tensors[0] if len(sizes) == 2 and len(tensors) == 1 else min(*sizes)


def _limits(iterations: int, evaluations: int, by_search: bool) -> str:
    limits = f"assumed to run to its limits (max_iter {iterations}, max_eval {evaluations}) without converging"
    return f"{limits}; each line search is assumed to accept its first point" if by_search else limits
