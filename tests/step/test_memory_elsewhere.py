"""Steps that hand tensors to other code of torch: to printing, to profilers, to libraries and to other processes."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import profiler_legacy

from torchsummary_plus import UnsupportedError, estimate_memory, measure_memory, summary

TEXTS: tuple[Callable[[Tensor], str], ...] = (str, repr, lambda y: f"{y}" if y.dim() else repr(y))


class Printing(nn.Linear):
    def __init__(self, width: int, text: Callable[[Tensor], Any]) -> None:
        super().__init__(1, width)
        self.text = text

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.text(y)
        return y


@pytest.mark.parametrize("text", TEXTS, ids=["str", "repr", "format"])
def test_what_printing_allocates_is_said_not_to_be_counted(text: Callable[[Tensor], str]) -> None:
    x = torch.randn(4, 1)
    estimates = [estimate_memory(Printing(64, each), input_data=x, mode="eval") for each in (text, len)]
    assert estimates[0].peak_bytes == estimates[1].peak_bytes
    assert any("printing a tensor" in line for line in estimates[0].assumptions) and not estimates[1].assumptions


def test_a_table_has_no_rows_for_formatting() -> None:
    printing, plain = (summary(Printing(8, text), (1,), functional=True, verbose=0) for text in (str, len))
    assert [row.class_name for row in printing.rows] == [row.class_name for row in plain.rows]


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
