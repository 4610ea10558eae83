"""Steps that hand a tensor's memory to torch by DLPack, to another library, or to another process."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from tests.told import Told
from torchsummary_plus import estimate_memory, measure_memory

TO_TORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "from_dlpack": torch.from_dlpack,
    "a capsule": lambda y: torch.from_dlpack(torch.to_dlpack(y)),
    "a copy": lambda y: torch.from_dlpack(y, copy=True),
}
ELSEWHERE: dict[str, Callable[[Tensor], Any]] = {
    "NumPy": lambda y: torch.from_numpy(numpy.from_dlpack(y) * 2),
    "a method": lambda y: torch.from_dlpack(y.__dlpack__()) + 1,
    "another process": lambda y: y.share_memory_(),
}
HAS_OPTIONS = "copy" in inspect.signature(torch.from_dlpack).parameters


class Exporter(nn.Linear):
    def __init__(self, export: Callable[[Tensor], Any]) -> None:
        super().__init__(64, 256)
        self.export = export

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        kept = self.export(y.detach())
        return y * 2 if kept is None else y * 2 + len(kept)


@pytest.mark.parametrize("how", TO_TORCH)
def test_torch_imports_a_tensor_on_the_same_memory(how: str) -> None:
    if how in ("a device", "a copy") and not HAS_OPTIONS:
        pytest.skip("this release's from_dlpack() takes only a tensor")
    model, x = Exporter(lambda y: TO_TORCH[how](y).mul_(2) + 1), torch.randn(8, 64)
    estimate, measured = (call(model, input_data=x, optimizer="sgd") for call in (estimate_memory, measure_memory))
    assert estimate.peak_bytes == measured.peak_bytes
    assert not any("real step" in line for line in estimate.assumptions)


@pytest.mark.parametrize("how", ELSEWHERE)
def test_a_step_that_exports_memory_elsewhere_is_measured(how: str) -> None:
    model, x = Exporter(ELSEWHERE[how]), torch.randn(8, 64)
    estimate, measured = (call(model, input_data=x, optimizer="sgd") for call in (estimate_memory, measure_memory))
    assert estimate.peak_bytes == measured.peak_bytes
    assert any("measured in a real step" in line for line in estimate.assumptions)


def test_on_a_gpu_torch_imports_a_tensor_there() -> None:
    devices = Told()
    model = Exporter(lambda y: devices.put(torch.from_dlpack(y).device))
    plain = estimate_memory(Exporter(lambda y: None), (64,), 8, "cuda", mode="eval")
    assert estimate_memory(model, (64,), 8, "cuda", mode="eval").peak_bytes == plain.peak_bytes
    assert devices.all()[0] == torch.device("cuda", 0)
