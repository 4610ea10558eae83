"""Steps that hand a tensor's memory to a library by DLPack, or to another process."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import estimate_memory, measure_memory

ELSEWHERE: dict[str, Callable[[Tensor], Any]] = {
    "torch": torch.from_dlpack,
    "a capsule": lambda y: torch.from_dlpack(torch.to_dlpack(y)),
    "NumPy": lambda y: torch.from_numpy(numpy.from_dlpack(y) * 2),
    "a method": lambda y: torch.from_dlpack(y.__dlpack__()) + 1,
    "another process": lambda y: y.share_memory_(),
}


class Exporter(nn.Linear):
    def __init__(self, export: Callable[[Tensor], Any]) -> None:
        super().__init__(64, 256)
        self.export = export

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        kept = self.export(y.detach())
        return y * 2 if kept is None else y * 2 + len(kept)


@pytest.mark.parametrize("how", ELSEWHERE)
def test_a_step_that_exports_memory_elsewhere_is_measured(how: str) -> None:
    model, x = Exporter(ELSEWHERE[how]), torch.randn(8, 64)
    estimate, measured = (call(model, input_data=x, optimizer="sgd") for call in (estimate_memory, measure_memory))
    assert estimate.peak_bytes == measured.peak_bytes
    assert any("measured in a real step" in line for line in estimate.assumptions)
