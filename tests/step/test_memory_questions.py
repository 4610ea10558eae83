"""Values that a step reads: a real step's, or assumed so that checks pass; the range covers other random numbers."""

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.parts import of_parts
from tests.step.step_parts import truth
from tests.told import Told
from torchsummary_plus import estimate_memory, measure_memory
from torchsummary_plus.data.errors import StepError, UnsupportedError
from torchsummary_plus.step import real_steps

WIDTH = 64


def gaussian(y: Tensor) -> Tensor:
    return F.gaussian_nll_loss(y, torch.zeros_like(y), y.exp())


def guarded(y: Tensor) -> Tensor:
    """With checks of which some want yes for an answer, and some no, whatever the values are taken to be."""
    if y.sum() < -1e9 or not (y.mean() > -1e9):
        raise ValueError("too small")
    if bool((y + 5).max() > 1e9) or y.norm().item() > 1e9:
        raise ValueError("too large")
    if not (y.std() - 1 < 5):
        raise ValueError("too wide")
    if (y.min() - y.max() >= 0).any():
        raise ValueError("all alike")
    return y.pow(2).mean()


LOSSES = (gaussian, guarded)


def hard(y: Tensor) -> Tensor:
    loss = y.pow(2)
    rows, columns = torch.where(loss > 0.5)
    return loss[rows, columns].exp().sum() + loss[loss > 0.3].mean()


def by_class(y: Tensor) -> Tensor:
    chosen, place = torch.unique(y.argmax(-1), return_inverse=True)
    return torch.zeros(len(chosen), WIDTH).index_add(0, place, y).pow(2).mean()


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, WIDTH)


@pytest.mark.parametrize("loss", [*LOSSES, hard, by_class], ids=lambda loss: loss.__name__)
def test_a_real_step_tells_what_a_loss_asks(loss: Callable[[Tensor], Tensor]) -> None:
    model, x = linear(), torch.randn(32, WIDTH)
    estimate = estimate_memory(model, input_data=x, loss=loss)
    assert estimate.peak_bytes == truth(model, x, loss)
    assert estimate.assumptions
    assert all("taken from a real run" in assumption for assumption in estimate.assumptions)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_without_a_real_step_checks_pass(loss: Callable[[Tensor], Tensor], device: str) -> None:
    x = torch.randn(32, WIDTH)
    estimate = estimate_memory(linear().to("meta"), input_data=x, loss=loss, device=device)
    assert any("assumed to be" in assumption for assumption in estimate.assumptions)
    if device == "cpu":
        assert estimate.peak_bytes == truth(linear(), x, loss)


@pytest.mark.parametrize("loss", [hard, by_class], ids=lambda loss: loss.__name__)
def test_without_a_real_step_sizes_are_in_the_range(loss: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(32, WIDTH)
    low, high = estimate_memory(linear().to("meta"), input_data=x, loss=loss).peak_range
    assert low < truth(linear(), x, loss) <= high


def test_an_assumption_names_the_operator_the_place_and_the_answer() -> None:
    estimate = estimate_memory(linear().to("meta"), (WIDTH,), 4, loss=gaussian)
    (assumption,) = estimate.assumptions
    said, _, place = assumption.partition(" in gaussian_nll_loss ")
    assert said == "_local_scalar_dense in the step, 2 times: value assumed to be False"
    assert place.startswith("(functional.py:")


class Descent:
    """A step that goes on until a value is low enough, which no fake one ever is."""

    def __init__(self, least: float) -> None:
        self.least = least
        self.losses = Told()

    def __call__(self, model: nn.Module, x: Tensor) -> None:
        while True:
            loss = model(x).pow(2).mean()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.5 * parameter.grad
                    parameter.grad = None
            value = loss.item()
            self.losses.put(1.0)
            if value < self.least:
                return


def test_a_loop_until_convergence_ends() -> None:
    model, x = linear(), torch.randn(32, WIDTH)
    real, guessed = Descent(0.1), Descent(0.1)
    estimate = estimate_memory(model, input_data=x, train_step=real)
    assert "taken from a real run" in estimate.assumptions[0]
    assert estimate.peak_bytes == estimate_memory(model.to("meta"), input_data=x, train_step=guessed).peak_bytes
    assert len(guessed.losses.all()) > 101


def failing(y: Tensor) -> Tensor:
    if (y.abs() >= 0).any():
        raise ValueError("no value is right")
    return y.sum()


def undecided(y: Tensor) -> Tensor:
    if (y.abs() >= 0).any():
        raise ValueError("some values")
    raise KeyError("no values")


@pytest.mark.parametrize(("loss", "said"), [(failing, "no value is right"), (undecided, "some values")])
def test_what_the_real_step_raises_is_said_of_the_loss(loss: Any, said: str) -> None:
    with pytest.raises(StepError, match=f"the loss failed: ValueError: {said}"):
        estimate_memory(linear(), input_data=torch.randn(4, WIDTH), loss=loss)


@of_parts(lambda: {"layer": nn.Conv2d(1, 1, 3, padding=1)})
def Suppressed(self, x: Tensor) -> Tensor:
    """Picks points one by one, as suppression of non-maxima does."""
    heat = self.layer(x)[0, 0]
    free = torch.ones_like(heat, dtype=torch.bool)
    points = [point for point in (heat > -9.0).nonzero() if free[point[0], point[1]]]
    return torch.stack(points)


def test_a_loop_over_values_gets_each_of_them() -> None:
    model, x = Suppressed(), torch.rand(1, 1, 8, 8)
    predicted, measured = (call(model, input_data=x, mode="eval") for call in (estimate_memory, measure_memory))
    assert predicted.peak_bytes == measured.peak_bytes


@of_parts(lambda: {"layer": nn.Linear(8, 8)})
def Looped(self, x: Tensor) -> Tensor:
    """Adds up a layer's results one by one, without reading a value."""
    return sum(self.layer(x).flatten()[place] for place in range(16))  # type: ignore[return-value]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_loop_over_elements_ends_with_an_error_and_its_cure(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(real_steps, "MOST_OPERATORS", 30)
    with pytest.raises(UnsupportedError, match=r"more than 30 operators.* measure_memory"):
        estimate_memory(Looped(), (8,), 2, device=device, optimizer="sgd")


def test_a_step_that_takes_too_long_for_real_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_steps, "LONGEST", 1000)
    estimate = estimate_memory(linear(), (WIDTH,), 4, loss=gaussian)
    assert "assumed to be False" in estimate.assumptions[0]


def test_a_loss_on_cuda_gets_no_number_that_the_optimizer_reads_on_the_cpu() -> None:
    """Adam of one tensor at a time, as on the CPU, reads the count of its steps; Adam of all at once reads none."""
    estimate = estimate_memory(linear(), (WIDTH,), 4, loss=gaussian, optimizer="adam", gpu="T4")
    assert not any("kernels" in told for told in estimate.assumptions)
    assert sum("value taken from a real run" in told for told in estimate.assumptions) == 1


def test_a_loss_on_cuda_reads_its_own_number_in_every_step() -> None:
    """The second step's loss was taken for the count of steps that Adam read after the first one."""

    def plain(y: Tensor) -> Tensor:
        return y.pow(2).mean() + 100

    def branching(y: Tensor) -> Tensor:
        value = plain(y)
        return value if value.item() >= 100 else y.repeat(4096, 1).pow(2).mean()

    peaks = [
        estimate_memory(linear(), (WIDTH,), 4, loss=loss, optimizer="adam", steps=3, gpu="T4").peak_bytes
        for loss in (plain, branching)
    ]
    assert peaks[0] == peaks[1]


LINE = "random numbers decide what runs"

KEEPS: dict[str, Callable[[], bool]] = {
    "torch": lambda: bool(torch.rand([]) < 0.5),
    "python": lambda: random.random() < 0.5,
}


class LayerDrop(nn.Module):
    """Layers that a coin keeps, as in LayerDrop, after dropout, which draws only in a real step."""

    def __init__(self, keeps: Callable[[], bool]) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 64), nn.Dropout())
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))
        self.keeps = keeps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x) if self.keeps() else x
        return x


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


@pytest.mark.parametrize("drawn", KEEPS)
def test_the_range_covers_other_draws(drawn: str) -> None:
    seed_all(1)
    estimate = estimate_memory(LayerDrop(KEEPS[drawn]), (64,), 128, optimizer="sgd", progress=False)
    low, high = estimate.peak_range
    assert low < high and any(LINE in line for line in estimate.assumptions)
    peaks = []
    for seed in range(20, 26):
        seed_all(seed)
        peaks.append(measure_memory(LayerDrop(KEEPS[drawn]), (64,), 128, optimizer="sgd").peak_bytes)
    assert len(set(peaks)) > 1
    assert sum(low <= peak <= high for peak in peaks) >= 5


def test_draws_that_change_no_peak_are_not_mentioned() -> None:
    class Mixup(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            share = numpy.random.beta(1, 1)
            return super().forward(share * x + (1 - share) * x[torch.randperm(len(x))])

    estimate = estimate_memory(Mixup(8, 8), (8,), 16, optimizer="sgd", progress=False)
    assert estimate.peak_range == (estimate.peak_bytes, estimate.peak_bytes)
    assert not any(LINE in line for line in estimate.assumptions)


@of_parts(lambda: {"first": nn.Linear(32, 64), "score": nn.Linear(64, 1), "last": nn.Linear(64, 64)})
def Sampled(self, x: torch.Tensor) -> torch.Tensor:
    """Continues with the rows that a learnt probability keeps: how many there are, a real pass tells."""
    hidden = self.first(x)
    chosen = torch.rand(len(x)) < self.score(hidden).sigmoid().squeeze(1)
    return self.last(self.last(hidden[chosen]).relu())  # type: ignore[no-any-return]


def test_a_real_pass_is_repeated_with_other_draws_if_it_drew() -> None:
    torch.manual_seed(0)
    model = Sampled()
    estimate = estimate_memory(model, (32,), 64)
    low, high = estimate.peak_range
    assert low < high and any(LINE in line for line in estimate.assumptions)
    peaks = []
    for seed in range(10, 16):
        torch.manual_seed(seed)
        peaks.append(measure_memory(model, (32,), 64).peak_bytes)
    assert len(set(peaks)) > 1
    assert sum(low <= peak <= high for peak in peaks) >= 5
