"""Values that a step reads: each read gets the answer that the real step got there, also whole arrays and lists."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.told import Told
from torchsummary_plus import estimate_memory, measure_memory
from torchsummary_plus.live.compat import since
from torchsummary_plus.step.workspace import CUDA_FROM

NUMBERS: dict[str, Callable[[Tensor], int]] = {
    "item": lambda counts: int(counts[3].item()),
    "an array of NumPy": lambda counts: int(np.asarray(counts)[3]),
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


@pytest.mark.parametrize("how", NUMBERS)
def test_each_read_gets_its_own_answer_also_after_a_step_that_changes_it(how: str) -> None:
    torch.manual_seed(0)
    model, x = Reader(NUMBERS[how], 3), torch.randn(256, 32)

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


CLASSES = 10
ROWS = 512
Read = Callable[[Tensor], Any]

READS: dict[str, Read] = {
    "numpy": lambda y: y.detach().cpu().numpy(),
    "tolist": lambda y: np.array(y.tolist()),
    "values one by one": lambda y: np.array([[float(value) for value in row] for row in y[:110]]),
}


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, CLASSES))


def evaluation(read: Read) -> Callable[[nn.Module, Tensor], None]:
    """Return a step that keeps the predictions of three batches, and counts those of each class."""

    def run(model: nn.Module, x: Tensor) -> None:
        with torch.no_grad():
            arrays = [read(model(x)) for _ in range(3)]
        counts = np.zeros(CLASSES, dtype=np.int64)
        chosen = arrays[0].argmax(-1) if arrays[0].ndim == 2 else arrays[0]
        np.add.at(counts, chosen, 1)
        model(x.repeat(1 + int(counts.sum()) // ROWS, 1))

    return run


def settings(read: Read) -> dict[str, Any]:
    return {"input_data": torch.randn(ROWS, 64), "mode": "eval", "train_step": evaluation(read)}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_arrays_on_the_cpu_are_the_real_step_s(read: Read) -> None:
    result = settings(read)
    estimate = estimate_memory(classifier(), **result)
    assert not any("measured" in line for line in estimate.assumptions)
    assert estimate.peak_range == (measure_memory(classifier(), **result).peak_bytes,) * 2


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_arrays_on_a_gpu_come_from_a_real_step_or_are_assumed(read: Read) -> None:
    """A step without values has the same peak, since all its counts add up alike."""
    result = settings(read)
    real = estimate_memory(classifier(), device="cuda", gpu="H100", **result)
    assumed = estimate_memory(classifier().to("meta"), device="cuda", gpu="H100", **result)
    assert real.assumptions[0].endswith("value taken from a real run")
    assert "value assumed to be" in assumed.assumptions[0]
    assert real.unknown or real.peak_range == (real.peak_bytes,) * 2
    assert not real.unknown or not since(CUDA_FROM)
    assert assumed.peak_bytes == real.peak_bytes


def test_an_array_of_a_tensor_on_a_gpu_or_with_a_gradient_is_refused_as_in_torch() -> None:
    told = Told()

    def run(model: nn.Module, x: Tensor) -> None:
        for tensor, error in ((model(x).detach(), TypeError), (model(x).cpu(), RuntimeError)):
            with pytest.raises(error):
                tensor.numpy()
            told.put(error)

    estimate_memory(classifier(), input_data=torch.randn(ROWS, 64), device="cuda", gpu="H100", train_step=run)
    assert set(told.all()) == {TypeError, RuntimeError}
