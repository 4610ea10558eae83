"""Calls of ``benchmarks.cuda.calls`` whose operators have only a bound (``ops/scratch/cuda/bounds.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

L = torch.linalg


def regular(x: Tensor) -> Tensor:
    """Return square matrices that are symmetric and positive."""
    return x[..., : x.shape[-2]] + torch.eye(x.shape[-2], device=x.device)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper rows."""
    return x[: len(x) // 2], x[len(x) // 2 :]


def labels(x: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.long, device=x.device)


MATRICES: dict[str, Callable[[Tensor], Any]] = {
    "inverse": lambda x: L.inv(regular(x)),
    "solve": lambda x: L.solve(regular(x), x),
    "lu": lambda x: L.lu(regular(x)),
    "lu_solve": lambda x: L.lu_solve(*L.lu_factor(regular(x)), x),
    "det": lambda x: L.det(regular(x)),
    "slogdet": lambda x: L.slogdet(regular(x))[1],
    "cholesky": lambda x: L.cholesky(regular(x)),
    "cholesky_solve": lambda x: torch.cholesky_solve(x, regular(x)),
    "cholesky_inverse": lambda x: torch.cholesky_inverse(regular(x)),
    "triangular": lambda x: L.solve_triangular(regular(x), x, upper=True),
    "qr": L.qr,
    "householder": lambda x: torch.geqrf(x.mT)[0],
    "svd": lambda x: L.svd(x, full_matrices=False),
    "svdvals": L.svdvals,
    "eigh": lambda x: L.eigh(regular(x)),
    "eigvalsh": lambda x: L.eigvalsh(regular(x)),
    "eigvals": lambda x: L.eigvals(regular(x)),
    "pinv": L.pinv,
    "ldl": lambda x: L.ldl_factor(regular(x))[0],
    "exponential": lambda x: torch.matrix_exp(regular(x)),
    "rfft": torch.fft.rfft,
    "fft2": torch.fft.fft2,
}
ROWS: dict[str, Callable[[Tensor], Any]] = {
    "search": lambda x: torch.searchsorted(x[0].double(), x),
    "bucketize": lambda x: torch.bucketize(x.mT, x[0]),
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "mode": lambda x: x.mode(0)[0],
    "unique_consecutive": torch.unique_consecutive,
    "unique_rows": lambda x: torch.unique(x, dim=0, return_inverse=True),
    "count_nonzero": lambda x: torch.count_nonzero(x, 0),
    "ldexp": lambda x: torch.ldexp(x, x.int()),
    "mvlgamma": lambda x: torch.mvlgamma(x + 9, 3),
    "bernoulli": torch.bernoulli,
    "normal": lambda x: torch.normal(x, x),
    "cummax": lambda x: x.mT.cummax(0)[0],
    "logcumsumexp": lambda x: x.mT.logcumsumexp(0),
    "segments": lambda x: torch.segment_reduce(x, "sum", lengths=labels(x, len(x)) + 1, unsafe=True),
    "dist": lambda x: torch.dist(x, x[0]),
    "renorm": lambda x: x.renorm(2, 1, 1.0),
    "distances": lambda x: torch.cdist(*halves(x[:500])),
    "taxicab": lambda x: torch.cdist(*halves(x[:500].mT.contiguous().mT), p=1.0),
    "renormed": lambda x: F.embedding(labels(x, 5000), x.clone(), max_norm=1.0),
    "places": lambda x: torch.nonzero_static(x.mT, size=9),
    "bilinear": lambda x: F.bilinear(x, x, x[: x.shape[1], None].expand(-1, x.shape[1], -1)[:9]),
    "margin": lambda x: F.multi_margin_loss(x.mT.contiguous().mT, labels(x, len(x))),
    "soft_margin": lambda x: F.soft_margin_loss(x, x),
}


def total(value: Any) -> Tensor:
    """Return the sum of all numbers of a result."""
    parts = [value] if isinstance(value, Tensor) else value
    return sum((part.abs().float().sum() for part in parts), start=torch.zeros((), device=parts[0].device))


def bounded_call(operator: str, shape: Sequence[int]) -> tuple[Any, ...]:
    """Return a function that a parameter's gradient does not pass through, and the parameter's shape."""
    function = MATRICES.get(operator) or ROWS[operator]
    return lambda x: x.sum() + total(function(x.detach())), shape


def draw_bounded_call(draw: Any) -> dict[str, Any]:
    operator = draw.choice((*MATRICES, *ROWS))
    matrices = (
        (20, 30), (300, 400), (1000, 1000), (3, 40, 50), (64, 32, 32), (5, 300, 300), (256, 32, 32), (10_000, 3, 3),
    )  # fmt: skip
    sizes = matrices if operator in MATRICES else ((40, 30), (300, 200), (5000, 20), (20, 5000))
    return {"operator": operator, "shape": list(draw.choice(sizes))}
