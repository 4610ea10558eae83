"""Values that a step reads more than once: each read gets the answer that the real step got there."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor, nn

from tests.told import Told
from torchsummary_plus import estimate_memory, measure_memory

READS: dict[str, Callable[[Tensor], int]] = {
    "item": lambda counts: int(counts[3].item()),
    "tolist": lambda counts: int(counts.tolist()[3]),
    "numpy": lambda counts: int(counts.numpy()[3]),
    "an array of NumPy": lambda counts: int(numpy.asarray(counts)[3]),
    "an iteration": lambda counts: [int(count) for count in counts][3],
    "an integer": lambda counts: int(counts[3]),
}


LENGTHS = Told()
"""What was read, in order."""


class Reader(nn.Module):
    """Takes as many rows as a tensor says, several times."""

    def __init__(self, read: Callable[[Tensor], int], times: int) -> None:
        super().__init__()
        self.layer, self.read, self.times = nn.Linear(32, 256), read, times

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(())
        for turn in range(self.times):
            length = self.read((x > 2.0 - turn).sum(0))
            LENGTHS.put(length)
            total = total + self.layer(x[:length]).relu().sum()
        return total


@pytest.mark.parametrize("how", READS)
def test_each_read_gets_its_own_answer(how: str) -> None:
    torch.manual_seed(0)
    times = 3
    model, x = Reader(READS[how], times), torch.randn(256, 32)
    LENGTHS.all()
    model(x)
    lengths = LENGTHS.all()
    estimate = estimate_memory(model, input_data=x, mode="eval", steps=1)
    assert LENGTHS.all()[-times:] == lengths
    assert estimate.peak_bytes == measure_memory(model, input_data=x, mode="eval", steps=1).peak_bytes


@pytest.mark.parametrize("how", READS)
def test_a_second_step_reads_what_the_first_one_changed(how: str) -> None:
    torch.manual_seed(0)
    model, x = Reader(READS[how], 1), torch.randn(256, 32)

    def step(model: Reader, x: Tensor) -> None:
        model(x).backward()
        model.zero_grad()
        x += 1.0

    estimate = estimate_memory(model, input_data=x.clone(), train_step=step)
    assert len(set(LENGTHS.all()[-2:])) == 2
    assert estimate.peak_bytes == measure_memory(model, input_data=x.clone(), train_step=step).peak_bytes
