"""Linear algebra on CUDA that takes cuBLAS's workspace, as torch 2.11 and 2.13 do on the no-op runtime.

``benchmarks/nocuda/tests/test_linalg.py`` compares random calls with torch itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.test_workspace_linalg import Applied
from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.data.capability import AMPERE
from torchsummary_plus.ops.scratch.cuda.blas import workspace_bytes
from torchsummary_plus.step.workspace import Workspaces

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("kept_workspaces")


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def takes_workspace(operator: Any, *args: Any, **kwargs: Any) -> bool:
    out = operator(*args, **kwargs)
    blocks = Workspaces("cuda", AMPERE).lasting(operator.name(), args, kwargs, out)
    assert blocks in ((), (workspace_bytes(AMPERE),))
    return bool(blocks)


@pytest.mark.parametrize(
    ("batch", "rows", "columns", "takes"),
    [
        ((), 3, 1, True), ((), 9, 300, False), ((), 16, 16, True), ((), 32, 8, False), ((), 33, 300, True),
        ((), 64, 16, False), ((), 64, 64, True), ((2,), 65, 2, False), ((2,), 65, 8, True), ((), 129, 1, True),
        ((3,), 17, 1, True), ((8,), 128, 300, True), ((), 3, 0, False),
    ],
)  # fmt: skip
def test_factored_systems_are_solved_by_cublas_or_cusolver(batch: Any, rows: int, columns: int, takes: bool) -> None:
    factors, pivots = meta(*batch, rows, rows), meta(*batch, rows, dtype=torch.int32)
    assert takes_workspace(aten.linalg_lu_solve.default, factors, pivots, meta(*batch, rows, columns)) == takes


@pytest.mark.parametrize(("batch", "takes"), [((), False), ((1,), False), ((2,), True), ((4, 5), True)])
@pytest.mark.parametrize("name", ["linalg_lu_factor_ex", "_linalg_slogdet", "_linalg_det", "cholesky_inverse"])
def test_batches_take_a_workspace_and_single_matrices_are_cusolvers(name: str, batch: Any, takes: bool) -> None:
    assert takes_workspace(getattr(aten, name).default, meta(*batch, 16, 16)) == takes


def test_a_triangular_solve_always_takes_one() -> None:
    assert takes_workspace(aten.linalg_solve_triangular.default, meta(3, 3), meta(3, 0), upper=True)
    assert takes_workspace(aten.triangular_solve.default, meta(3, 2), meta(3, 3))
    assert takes_workspace(aten.linalg_inv_ex.default, meta(3, 3))
    assert takes_workspace(aten._linalg_solve_ex.default, meta(3, 3), meta(3))
    assert not takes_workspace(aten._linalg_solve_ex.default, meta(20, 20), meta(20))


@pytest.mark.parametrize(("batch", "rows", "takes"), [(1, 16, False), (2, 16, True), (3, 64, False), (4, 64, True)])
def test_batches_of_small_matrices_are_factored_by_cublas(batch: int, rows: int, takes: bool) -> None:
    assert takes_workspace(aten.linalg_qr.default, meta(batch, rows, 8)) == takes


@from_release("2.11", "the release that CUDA rules were measured on")
def test_a_step_of_an_inverse_counts_a_workspace_of_each_thread() -> None:
    estimate = estimate_memory(Applied(torch.linalg.inv, 64, 64), (1,), gpu="H100", steps=1, progress=False)
    assert estimate.at_peak["workspace"] == 2 * workspace_bytes((9, 0))
