"""Values that a step reads more than once: each read gets the answer that the real step got there."""

from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.told import Told
from torchsummary_plus import estimate_memory, measure_memory

READS: dict[str, Callable[[Tensor], int]] = {
    "item": lambda counts: int(counts[3].item()),
    "an array of NumPy": lambda counts: int(numpy.asarray(counts)[3]),
    "an iteration": lambda counts: [int(count) for count in counts][3],
}


LENGTHS = Told()
"""What was read, in order."""


@of_parts(lambda read, times: {"layer": nn.Linear(32, 256), "read": read, "times": times})
def Reader(self, x: Tensor) -> Tensor:
    total = x.new_zeros(())
    for turn in range(self.times):
        length = self.read((x > 2.0 - turn).sum(0))
        LENGTHS.put(length)
        total = total + self.layer(x[:length]).relu().sum()
    return total


@pytest.mark.parametrize("how", READS)
def test_each_read_gets_its_own_answer_also_after_a_step_that_changes_it(how: str) -> None:
    torch.manual_seed(0)
    model, x = Reader(READS[how], 3), torch.randn(256, 32)

    def step(model: Reader, x: Tensor) -> None:
        model(x).backward()
        model.zero_grad()
        x += 1.0

    LENGTHS.all()
    given = x.clone()
    for _ in range(2):
        step(model, given)
    lengths = LENGTHS.all()
    estimate = estimate_memory(model, input_data=x.clone(), train_step=step)
    assert LENGTHS.all()[-6:] == lengths and len(set(lengths)) > 3
    assert estimate.peak_bytes == measure_memory(model, input_data=x.clone(), train_step=step).peak_bytes
