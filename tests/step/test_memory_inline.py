"""Python functions of torch free their tensors as without a mode."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from tests.told import Told
from torchsummary_plus import estimate_memory, measure_memory
from torchsummary_plus.data.errors import StepError
from torchsummary_plus.step.autograd.functions import StepFunctions

Loss = Callable[[Tensor], Tensor]

pytestmark = pytest.mark.usefixtures("threads")

LOSSES: dict[str, Loss] = {
    "gaussian_nll_loss": lambda out: F.gaussian_nll_loss(out, torch.zeros_like(out), torch.ones_like(out)),
    "GaussianNLLLoss": lambda out: nn.GaussianNLLLoss(full=True)(out, torch.zeros_like(out), torch.ones_like(out)),
    "cosine_embedding_loss": lambda out: F.cosine_embedding_loss(out * 2, out * 3, torch.ones(len(out))),
    "max_pool1d": lambda out: F.max_pool1d((out * 2)[:, None].detach(), 2).sum() + out.sum(),
    "max_pool1d with indices": lambda out: F.max_pool1d((out * 2)[:, None], 2, return_indices=True)[0].sum(),
    "Tensor.norm": lambda out: (out * 1).norm(dim=-1).sum(),
    "torch.norm": lambda out: torch.norm(out * 1),
    "einsum": lambda out: torch.einsum("ij,kj->ik", out * 2, out * 3).sum(),
    "gumbel_softmax": lambda out: F.gumbel_softmax(out * 2, hard=True).sum(),
    "a number minus it": lambda out: (1 - out * 2).sum(),
    "a checkpoint that runs a number again": lambda out: checkpoint(
        lambda y: y / (y.norm(dim=-1, keepdim=True) + 1), out * 1, use_reentrant=False
    ).sum(),
    "pca_lowrank": lambda out: torch.pca_lowrank(out * 2, q=3)[1].sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_function_in_python_takes_what_it_takes_for_real(name: str) -> None:
    options: dict[str, Any] = {"input_data": torch.randn(128, 32), "loss": LOSSES[name]}
    predicted, measured = (call(nn.Linear(32, 32), **options).peak_bytes for call in (estimate_memory, measure_memory))

    assert predicted == measured


class Noting(Tensor):
    """A tensor that notes which functions it is given to."""

    called: ClassVar = Told()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.called.put(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


class NotingMode(TorchFunctionMode):
    """A mode that notes which functions are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called = Told()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.put(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_class_of_tensors_is_still_told_of_functions() -> None:
    def loss(out: Tensor) -> Tensor:
        Noting.called.all()
        return F.mse_loss(out.as_subclass(Noting), torch.zeros(4, 8)).as_subclass(Tensor)

    estimate_memory(nn.Linear(8, 8), (8,), 4, loss=loss)

    assert Noting.called.all()[0] == "mse_loss"


def test_a_mode_is_still_told_of_functions() -> None:
    mode = NotingMode()

    def loss(out: Tensor) -> Tensor:
        with mode:
            return F.mse_loss(out, torch.zeros_like(out))

    estimate_memory(nn.Linear(8, 8), (8,), 4, loss=loss)

    assert "mse_loss" in mode.called.all()


def test_another_thread_is_told_what_it_is_told_without() -> None:
    mode = NotingMode()

    def elsewhere() -> None:
        F.relu(torch.ones(2))
        with mode:
            F.relu(torch.ones(2))

    def loss(out: Tensor) -> Tensor:
        mode.called.all()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return out.sum()

    estimate_memory(nn.Linear(8, 8), (8,), 4, loss=loss)

    assert mode.called.all() == ["ones", "relu"]


def test_afterwards_torch_asks_as_before() -> None:
    checks = [vars(module)["has_torch_function"] for module in (torch.functional, torch.overrides, torch.autograd)]

    def fails(out: Tensor) -> Tensor:
        raise KeyError

    with pytest.raises(StepError):
        estimate_memory(nn.Linear(8, 8), (8,), 4, loss=fails)

    assert [
        vars(module)["has_torch_function"] for module in (torch.functional, torch.overrides, torch.autograd)
    ] == checks
    assert checks[0] is torch._C._has_torch_function


def test_the_mode_sees_nothing_of_what_is_booked_in_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once saw every attribute that was read of a tensor there: most of the time of a step."""
    seen: list[Any] = []
    call = StepFunctions.__torch_function__

    def counted(self: StepFunctions, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(func)
        return call(self, func, types, args, kwargs)

    monkeypatch.setattr(StepFunctions, "__torch_function__", counted)
    counts = []
    for depth in (4, 12):
        seen.clear()
        model = nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8))))
        estimate_memory(model, (8,), batch_size=4, steps=1, progress=False)
        counts.append(len(seen))
    assert counts[1] - counts[0] <= 8 * 30, "per pair of layers: 20, where it once was 140"
