"""Steps that are run several times for one estimate: each run starts as the user's own step would."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torchsummary_plus import estimate_memory, measure_memory

LARGE = 100_000
"""Elements of a tensor that takes most of the memory of these steps."""


def network() -> nn.Module:
    return nn.Linear(64, 64)


def learn(model: nn.Module, x: torch.Tensor) -> float:
    loss = model(x).square().mean()
    loss.backward()
    model.zero_grad()
    return loss.item()


def peaks(make_step: Callable[[], Callable[..., None]]) -> tuple[int, int]:
    """Return the peak that is estimated and the one that is measured, each of a new step."""
    options = {"input_data": torch.randn(8, 64)}
    estimate = estimate_memory(network(), train_step=make_step(), **options)
    assert estimate.peak_range == (estimate.peak_bytes, estimate.peak_bytes)
    return estimate.peak_bytes, measure_memory(network(), train_step=make_step(), **options).peak_bytes


def by_log(is_large: Callable[[list[float]], bool]) -> Callable[[], Callable[..., None]]:
    def make() -> Callable[..., None]:
        losses: list[float] = []

        def step(model: nn.Module, x: torch.Tensor) -> None:
            losses.append(round(learn(model, x), 3))
            if is_large(losses):
                torch.zeros(LARGE)

        return step

    return make


def counts() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


def by_number(make_numbers: Callable[[], Iterator[int]]) -> Callable[[], Callable[..., None]]:
    def make() -> Callable[..., None]:
        numbers = make_numbers()

        def step(model: nn.Module, x: torch.Tensor) -> None:
            if learn(model, x.repeat(next(numbers), 1)) < 0:
                raise ValueError

        return step

    return make


def tally() -> Callable[..., None]:
    seen: dict[str, int] = {}

    def step(model: nn.Module, x: torch.Tensor) -> None:
        key = "low" if learn(model, x) < 10 else "high"
        seen[key] = seen.get(key, 0) + 1
        if sum(seen.values()) > 2:
            torch.zeros(LARGE)

    return step


def mapped(function: Callable[[int], int], *numbers: int, last: int) -> Iterator[int]:
    yield from map(function, (*numbers, last))


STEPS = {
    "large in the first two steps": by_log(lambda losses: len(losses) <= 2),
    "large in every fifth step": by_log(lambda losses: len(losses) % 5 == 0),
    "counts in a dict": tally,
    "a count of itertools": by_number(lambda: itertools.count(1)),
    "a generator": by_number(counts),
    "a generator of another function": by_number(lambda: mapped(abs, -1, -2, last=-3)),
    "a generator expression": by_number(lambda: (number + 1 for number in range(4))),
    "numbers of pairs": by_number(lambda: map(sum, enumerate(itertools.cycle([1, 1])))),
}


@pytest.mark.parametrize("name", STEPS)
def test_every_run_of_a_step_starts_alike(name: str) -> None:
    predicted, measured = peaks(STEPS[name])
    assert predicted == measured


HISTORIES: dict[str, Callable[[Any, float], object]] = {
    "the least so far": lambda losses, loss: (losses.append(loss), min(losses)),
    "sorted": lambda losses, loss: (losses.append(loss), losses.sort()),
    "a heap": heapq.heappush,
    "known before": lambda losses, loss: (loss in losses, losses.append(loss)),
    "the last two": lambda losses, loss: (losses.append(loss), len(losses) > 1 and losses[-1] < losses[-2]),
}


OF_LISTS = ("sorted", "a heap")


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, list) for name in HISTORIES), *((name, deque) for name in HISTORIES if name not in OF_LISTS)],
)
def test_a_history_of_losses_may_be_compared(name: str, kind: type) -> None:
    use, losses = HISTORIES[name], kind()

    def step(model: nn.Module, x: torch.Tensor) -> None:
        use(losses, learn(model, x))

    model, x = network(), torch.randn(8, 64)
    predicted = estimate_memory(model, input_data=x, train_step=step).peak_bytes
    assert not losses
    assert predicted == measure_memory(model, input_data=x, train_step=step).peak_bytes


def test_iterators_and_generators_are_where_they_were() -> None:
    data = [torch.randn(8, 64) for _ in range(6)]
    pairs, numbers, cycle = zip(data, data), counts(), itertools.cycle(data)

    def step(model: nn.Module, x: torch.Tensor) -> None:
        (first, _), number, again = next(pairs), next(numbers), next(cycle)
        learn(model, first * number + again)

    for call in (estimate_memory, measure_memory):
        call(network(), input_data=data[0], train_step=step)
    assert next(pairs) == (data[0], data[0]) and next(numbers) == 1 and next(cycle) is data[0]


def test_seeds_and_exported_bytes_are_no_obstacle() -> None:
    seeds, raw = np.random.SeedSequence(5), bytearray(256)
    scale = np.frombuffer(raw, dtype=np.float32)

    def step(model: nn.Module, x: torch.Tensor) -> None:
        generator = np.random.default_rng(seeds.spawn(1)[0])
        raw[0] += 1
        learn(model, x * float(scale[1]) * generator.random())

    x = torch.randn(8, 64)
    estimate = estimate_memory(network(), input_data=x, train_step=step)
    assert estimate.peak_bytes == measure_memory(network(), input_data=x, train_step=step).peak_bytes
    assert raw == bytearray(256)
