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
from torchsummary_plus.ops.scratch.registry import Alloc, Lasting, Result
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


LONE, BATCH = (20, 20), (3, 20, 20)
HANDLE = 33_554_432


def requested(operator: Any, *args: Any) -> list[int | None]:
    """Return what a kernel requests in order, None for a result and a name's place for cuBLAS's workspace."""
    out = operator(*args)
    spaces = Workspaces("cuda", (9, 0))
    lasting = spaces.lasting(operator.name(), args, {}, out)
    sizes: list[int | None] = []
    for step in spaces.scratch(operator.name(), args, {}, out):
        if isinstance(step, Alloc):
            sizes.append(step.nbytes)
        elif isinstance(step, Lasting):
            sizes += lasting
        elif isinstance(step, Result):
            sizes.append(None)
    return sizes


@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.usefixtures("kept_workspaces")
@pytest.mark.parametrize(
    ("operator", "args", "sizes"),
    [
        (aten.triangular_solve, (meta(20, 3), meta(*LONE)), [None, None, 8, 8, HANDLE]),
        (aten.triangular_solve, (meta(64, 3), meta(64, 64)), [None, None, HANDLE]),
        (aten.triangular_solve, (meta(9, 64, 3), meta(9, 64, 64)), [None, None, 72, 72, HANDLE]),
        (aten._linalg_solve_ex, (meta(*LONE), meta(20, 3)), [None, None, None, None, 4]),
        (aten.linalg_inv_ex, (meta(*LONE),),
         [None, None, 1600, 80, 160, 160, 160, 1600, 8, 8, HANDLE, 8, 8, HANDLE]),
        (aten.linalg_lu_solve, (meta(*LONE), meta(20, dtype=torch.int32), meta(20, 3)), [None, 1600, 4]),
        (aten.linalg_lu_solve, (meta(3, 300, 300), meta(3, 300, dtype=torch.int32), meta(3, 300, 3)),
         [None, 1_080_000, 2400, 7200, 2400, 7200, 10_800, HANDLE, HANDLE]),
        (aten.linalg_lu_solve, (meta(*BATCH), meta(3, 20, dtype=torch.int32), meta(3, 20, 3)),
         [None, 4800, 24, 24, HANDLE]),
        (aten.linalg_lu_solve, (meta(3, 40, 40), meta(3, 40, dtype=torch.int32), meta(3, 40, 10)),
         [None, 19_200, 320, 960, 320, 960, 4800, 24, 24, HANDLE, 24, 24, HANDLE]),
        (aten.lu_unpack, (meta(*BATCH), meta(3, 20, dtype=torch.int32)), [None, None, None, 160, 480]),
        (aten.linalg_cholesky_ex, (meta(*BATCH),), [None, None, 24]),
        (aten.cholesky_solve, (meta(20, 3), meta(*LONE)), [4, None, 1600]),
        (aten.linalg_qr, (meta(30, 20),), [None, None, 80, 4, 4]),
        (aten.linalg_qr, (meta(3, 30, 20),), [None, None, 240, 24, 24, HANDLE, 4]),
        (aten.linalg_householder_product, (meta(30, 20), meta(20)), [None, 4]),
        (aten.ormqr, (meta(30, 20), meta(20), meta(30, 2)), [None, 2400, 4]),
        (aten._linalg_svd, (meta(30, 20),), [None, None, None, 4, 2400, 3600]),
        (aten._linalg_eigh, (meta(*LONE),), [None, None, 4, 1, 1]),
    ],
)  # fmt: skip
def test_torch_itself_allocates_for_solvers_what_it_does_beside_a_cusolver_that_asks_for_nothing(
    operator: Any, args: Any, sizes: Any
) -> None:
    """As torch 2.11 and 2.13 do on the no-op runtime, if cuSOLVER's queries of sizes answer 0."""
    assert requested(operator.default, *args) == sizes


def least_squares(*batch: int) -> tuple[Any, ...]:
    x, b = meta(*batch, 30, 20), meta(*batch, 30, 2)
    return x, b, (meta(*batch, 20, 2), meta(0), meta(*batch, dtype=torch.int64), meta(0))


@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.parametrize(
    ("batch", "sizes"), [((), [4, 2400, 80, 4, 4, 8, 8]), ((3,), [12, 7200, 7200, 24, 24])], ids=["lone", "batch"]
)
def test_least_squares_keep_the_right_hand_sides(batch: tuple[int, ...], sizes: list[int]) -> None:
    x, b, out = least_squares(*batch)
    spaces = Workspaces("cuda", (9, 0))
    assert spaces.reserves("aten::linalg_lstsq", (x, b), {}, out)[0] == 4 * b.numel()
    steps = spaces.scratch("aten::linalg_lstsq", (x, b), {}, out)
    assert [step.nbytes for step in steps if isinstance(step, Alloc)] == sizes
    assert spaces.unknown == {"aten::linalg_lstsq": 1}


def test_what_cusolver_works_in_is_in_the_range_alone() -> None:
    estimate = estimate_memory(Applied(torch.linalg.cholesky, 64, 64), (1,), gpu="H100", mode="eval", progress=False)
    low, high = estimate.peak_range
    assert low == estimate.peak_bytes < 4 * 4 * 64 * 64
    assert high - low >= 8 * 4 * 64 * 64 and "aten::linalg_cholesky_ex" in dict(estimate.unknown)


def test_reflections_have_an_estimate_without_a_real_step() -> None:
    """torch has no meta kernel for them; the CPU's log has other kernels and an assumed workspace of cuBLAS."""
    model = Applied(lambda x: torch.geqrf(x)[0], 20, 20)
    estimate = estimate_memory(model, (1,), gpu="H100", mode="eval", progress=False)
    assert estimate.peak_range[0] == estimate.peak_bytes < 20_000
