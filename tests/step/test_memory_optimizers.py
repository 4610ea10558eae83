"""torch's optimizers with all their flags, and others, predicted against real steps."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.step.step_parts import WIDTH, block, rows, squared
from torchsummary_plus import MemoryEstimate, estimate_memory, measure_memory
from torchsummary_plus.data.memory_records import LEAST_DOUBT
from torchsummary_plus.step.training import NAMES

pytestmark = pytest.mark.usefixtures("threads")

FLAGS: dict[str, Any] = {
    **dict.fromkeys(("amsgrad", "fused", "maximize", "differentiable", "nesterov", "centered", "capturable"), True),
    "foreach": True,
    "weight_decay": 0.1,
    "momentum": 0.9,
    "decoupled_weight_decay": True,
    "lr": "tensor",
    "initial_accumulator_value": 0.1,
    "lr_decay": 0.1,
}
ELSEWHERE = ("lbfgs", "sparseadam", "muon")


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.scale = nn.Parameter(torch.ones(()))
        self.turned = nn.Parameter(torch.ones(70, 64).t())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x))) * self.scale + self.turned.sum()


def flagged() -> Iterator[Any]:
    """Every optimizer with each of its flags, as far as it takes them."""
    for name, kind in NAMES.items():
        if name in ELSEWHERE:
            continue
        own = {flag: FLAGS[flag] for flag in inspect.signature(kind).parameters if flag in FLAGS}
        for flags in ({}, *({flag: value} for flag, value in own.items())):
            if accepts(kind, flags):
                yield pytest.param(kind, flags, id=f"{name} {' '.join(flags)}")


def optimizer_of(kind: Any, flags: dict[str, Any], params: Any) -> Any:
    options = {**flags, "lr": torch.tensor(0.01)} if "lr" in flags else flags
    return kind(params, **options)


def accepts(kind: Any, flags: dict[str, Any]) -> bool:
    """Whether a real optimizer with these flags steps on the CPU."""
    parameter = nn.Parameter(torch.ones(2, 2))
    parameter.grad = torch.ones(2, 2)
    try:
        optimizer_of(kind, flags, [parameter]).step()
    except (ValueError, RuntimeError, AssertionError):
        return False
    return True


def both(model: nn.Module, **options: Any) -> tuple[MemoryEstimate, MemoryEstimate]:
    torch.manual_seed(0)
    return estimate_memory(model, **options), measure_memory(model, **options)


def same(predicted: MemoryEstimate, measured: MemoryEstimate) -> None:
    assert predicted.phase_peaks == measured.phase_peaks
    assert predicted.peak_bytes == measured.peak_bytes
    assert predicted.steady_bytes == measured.steady_bytes
    assert predicted.unknown == ()


@pytest.mark.parametrize(("kind", "flags"), list(flagged()))
def test_an_optimizer_with_its_flags(kind: Any, flags: dict[str, Any]) -> None:
    same(*both(Mixed(), input_size=(WIDTH,), batch_size=4, optimizer=lambda params: optimizer_of(kind, flags, params)))


class SAM(Optimizer):
    """Two gradients a step, the second one where the first one leads; the closure is asked for when it steps."""

    def __init__(self, params: Any, base: Callable[..., Optimizer], **options: Any) -> None:
        super().__init__(params, {"rho": 0.05, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def first_step(self) -> None:
        norm = torch.stack([p.grad.norm() for p in self._parameters() if p.grad is not None]).norm()
        for p in self._parameters():
            self.state[p]["before"] = p.data.clone()
            p.add_(p.grad * (0.05 / (norm + 1e-12)))  # type: ignore[operator]
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self._parameters():
            p.data = self.state[p]["before"]
        self.base.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is not None, "SAM steps with a closure"
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()


def test_an_optimizer_of_others_that_needs_a_closure() -> None:
    optimizer = partial(SAM, base=torch.optim.SGD, lr=0.1, momentum=0.9)
    predicted, measured = both(block(), input_data=rows(), loss=squared, optimizer=optimizer, steps=3)
    same(predicted, measured)
    assert predicted.peak_range == (predicted.peak_bytes, predicted.peak_bytes)


Clip = Callable[[Any], object]
CLIPS: dict[str, Clip] = {
    "norm": lambda params: nn.utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True),
    "value": lambda params: nn.utils.clip_grad_value_(params, 1.0),
}


@pytest.mark.parametrize("clip", CLIPS)
def test_gradients_clipped_and_scaled(clip: str) -> None:
    model = block()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")

    def step(model: nn.Module, x: Tensor) -> None:
        scaler.scale(squared(model(x))).backward()
        scaler.unscale_(optimizer)
        CLIPS[clip](model.parameters())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    same(*both(model, input_data=rows(), train_step=step, steps=3))


class Fitted(nn.Module):
    """Two layers and a target that they don't reach: LBFGS goes on to its limits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (self.layers(x) - x[:, :8]).pow(2).mean()


def lbfgs(**options: Any) -> Any:
    return lambda params: torch.optim.LBFGS(params, **options)


def test_lbfgs_to_its_limits() -> None:
    predicted, measured = both(Fitted(), input_data=rows(), optimizer=lbfgs(lr=0.1, max_iter=5, max_eval=3))
    assert predicted.peak_bytes == measured.peak_bytes
    assert predicted.steady_bytes == measured.steady_bytes
    assert predicted.peak_range[0] < predicted.peak_bytes == predicted.peak_range[1] - LEAST_DOUBT
    limits = "assumed to run to its limits (max_iter 5, max_eval 3) without converging"
    assert f"LBFGS in the step, 2 times: {limits}" in predicted.assumptions


@pytest.mark.parametrize(("scale", "iterations", "search"), [(0, 6, None), (0.1, 8, "strong_wolfe")])
def test_lbfgs_that_converges_lies_in_the_range(scale: float, iterations: int, search: str | None) -> None:
    """It converges at once, after three or four iterations, or not at all."""
    optimizer = lbfgs(max_iter=iterations, line_search_fn=search, tolerance_grad=3e-3)
    predicted, measured = both(Fitted(), input_data=rows(), optimizer=optimizer, loss=lambda y: scale * y)
    assert predicted.peak_range[0] <= measured.peak_bytes <= predicted.peak_range[1]


def test_lbfgs_that_stops_at_its_first_loss_lies_in_the_range() -> None:
    """No other closure runs while that loss is held: four bytes less than the least of further iterations."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def step(model: nn.Module, x: Tensor) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (0 * model(x)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    predicted, measured = both(model, input_data=torch.randn(256, 64), train_step=step)
    assert predicted.peak_range[0] <= measured.peak_bytes < predicted.peak_bytes


class Unregistered(nn.Module):
    """Most of its parameters are in plain lists, so that ``parameters()`` lists only 401 of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.scale = [nn.Linear(400, 400), nn.BatchNorm1d(400)], [nn.Parameter(torch.ones(400))]
        self.last = nn.Linear(400, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(x * self.scale[0])


def test_optimizers_get_the_registered_parameters() -> None:
    model = Unregistered()
    optimizer = torch.optim.Adam(model.parameters())
    predicted = estimate_memory(model, (400,), 4, optimizer=optimizer)
    assert predicted.at_peak == measure_memory(model, (400,), 4, optimizer=optimizer).at_peak
    assert predicted.at_peak["optimizer_state"] == 4 * (2 * 401 + 2)  # Two averages, and a count of steps for each.
    assert predicted.at_peak["parameters"] == 4 * (401 + 400 * 401 + 800 + 400)
