"""Steps that start one of torch's profilers, of which torch runs one at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import profiler_legacy

from torchsummary_plus import UnsupportedError, estimate_memory, measure_memory

CPU = [torch.profiler.ProfilerActivity.CPU]
PROFILERS: dict[str, Callable[[], Any]] = {
    "torch.profiler": lambda: torch.profiler.profile(activities=CPU),
    "with a schedule": lambda: torch.profiler.profile(
        activities=CPU, schedule=torch.profiler.schedule(wait=0, warmup=1, active=1)
    ),
    "the legacy one": lambda: profiler_legacy.profile(),
}


class Profiled(nn.Linear):
    def __init__(self, start: Callable[[], Any]) -> None:
        super().__init__(64, 64)
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        with self.start():
            return super().forward(x)


@pytest.mark.parametrize("kind", PROFILERS)
def test_a_profiler_in_a_measured_step_is_refused(kind: str) -> None:
    plain = nn.Linear(64, 64)

    def step(model: nn.Module, x: Tensor) -> None:
        with PROFILERS[kind]():
            model(x).sum().backward()

    for arguments in ({"model": plain, "train_step": step}, {"model": Profiled(PROFILERS[kind])}):
        with pytest.raises(UnsupportedError, match="remove the profiler from the step"):
            measure_memory(input_size=(64,), batch_size=8, **arguments)
    with PROFILERS[kind]():
        plain(torch.ones(1, 64))
    estimate = estimate_memory(Profiled(PROFILERS[kind]), (64,), 8)
    assert estimate.peak_bytes == measure_memory(plain, (64,), 8).peak_bytes
