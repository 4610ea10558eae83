"""Random numbers that decide what a step runs: other draws are in the range, and a line says so."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.parts import of_parts
from torchsummary_plus import estimate_memory, measure_memory

numpy = pytest.importorskip("numpy")

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
