"""Workspaces of cuBLAS that torch frees after each product, as it does from 2.15 on."""

import pytest
import torch
from torch import Tensor, nn

from tests.ops.test_workspace_cuda import HOPPER, meta, recorded, scratches, workspaces
from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.data.capability import AMPERE
from torchsummary_plus.ops.scratch.cuda import attention, blas
from torchsummary_plus.ops.scratch.registry import Alloc
from torchsummary_plus.step.workspace import Workspaces

CUBLAS, CUBLASLT = 8_519_680, 1 << 20


pytestmark = from_release("2.11", "the release that CUDA rules were measured on")


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.15's defaults, whatever torch this is."""
    monkeypatch.delenv("TORCH_CUBLAS_WORKSPACE_CACHE", raising=False)
    monkeypatch.setattr(blas, "since", lambda _: True)


@pytest.mark.usefixtures("passing")
def test_each_product_has_a_workspace_until_it_ends() -> None:
    """Two in each of the two steps that are recorded."""
    model = nn.Sequential(nn.Linear(16, 8, bias=False), nn.Linear(8, 4, bias=False))
    log = recorded(model, (16,), HOPPER, "eval")
    assert (workspaces(log), scratches(log)) == ([], [32 << 20] * 4)


@pytest.mark.usefixtures("passing")
@pytest.mark.parametrize(("beta", "nbytes"), [(1, CUBLASLT), (2, CUBLAS)])
def test_a_row_is_added_by_cublaslt_with_a_workspace_of_its_own_alone(beta: int, nbytes: int) -> None:
    """Measured on the no-op runtime with torch 2.15."""
    spaces, args = Workspaces("cuda", AMPERE), (meta(48), meta(64, 32), meta(32, 48))
    assert spaces.scratch("aten::addmm", args, {"beta": beta}, meta(64, 48)) == (Alloc(nbytes),)
    assert spaces.unknown == {}


@pytest.mark.usefixtures("passing")
def test_an_operator_with_only_a_bound_may_take_a_workspace_each_time() -> None:
    def distances(model: nn.Module, x: Tensor) -> None:
        torch.cdist(model(x), x, compute_mode="use_mm_for_euclid_dist").sum().backward()

    estimate = estimate_memory(nn.Linear(8, 8), (8,), 64, device="cuda", train_step=distances)
    assert "aten::_euclidean_dist" in dict(estimate.unknown)
    assert [doubt.nbytes > CUBLAS > doubt.lasting == 0 for doubt in estimate.log.doubts] == [True] * 2
    assert estimate.peak_range[1] > estimate.peak_bytes


@pytest.mark.parametrize(("release", "setting", "is_kept"), [(True, "", False), (True, "1", True), (False, "0", True)])
def test_the_environment_and_the_release_say_whether_they_are_kept(
    monkeypatch: pytest.MonkeyPatch, release: bool, setting: str, is_kept: bool
) -> None:
    monkeypatch.setattr(blas, "since", lambda _: release)
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", setting)
    assert blas.are_workspaces_kept() == is_kept


@pytest.mark.parametrize(("newer", "dropout", "sizes"), [(True, 0.0, ()), (True, 0.1, (None, None, 0, 0)),
                                                         (False, 0.0, (None, None, 0, 0))])  # fmt: skip
def test_the_random_state_without_dropout_is_on_the_gpu_from_2_15_on(
    monkeypatch: pytest.MonkeyPatch, newer: bool, dropout: float, sizes: tuple[int | None, ...]
) -> None:
    """Measured on the no-op runtime with torch 2.13 and 2.15."""
    monkeypatch.setattr(attention, "since", lambda _: newer)
    x = meta(2, 8, 256, 64)
    assert attention.efficient_results(x, x, x, x, None, True, dropout) == sizes
