"""The time of real steps: laps by phase and module, with a clock that only the model's own code moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.parts import of_parts
from torchsummary_plus import InputError, compare, estimate_memory, measure_memory
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step import real_steps

CLOCK = [0.0]


class Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:  # type: ignore[override]
        ctx.backward_seconds = backward
        CLOCK[0] += forward
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        CLOCK[0] += ctx.backward_seconds
        return grad, None, None


def wait(x: Tensor, forward: float, backward: float) -> Tensor:
    out: Tensor = Wait.apply(x, forward, backward)  # type: ignore[no-untyped-call]
    return out


@of_parts(lambda forward, backward: {"linear": nn.Linear(4, 4), "seconds": (forward, backward)})
def Slow(self, x: Tensor) -> Tensor:
    return self.linear(wait(self.linear(x), *self.seconds))  # type: ignore[no-any-return]


@of_parts(lambda: {"first": Slow(1, 2), "second": nn.Sequential(Slow(4, 8), nn.ReLU()), "again": Slow(16, 32)})
def Net(self, x: Tensor) -> Tensor:
    """Waits before, between and after its children, in a residual branch, and in a call that is checkpointed."""
    x = wait(self.first(wait(x, 64, 0)), 128, 256)
    x = x + self.second(x)
    return wait(checkpoint(self.again, x, use_reentrant=False), 512, 1024)


class SlowSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        CLOCK[0] += 2048
        return super().step(closure)


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_steps, "perf_counter", lambda: CLOCK[0])


def timed(**step: Any) -> MemoryEstimate:
    return measure_memory(Net(), (4,), 2, time=True, **step)


def test_a_training_steps_laps_belong_to_phases_and_modules() -> None:
    measured = timed(optimizer=lambda parameters: SlowSGD(parameters, 0.1))
    time = measured.time()
    forward = 1 + 4 + 16 + 64 + 128 + 512
    backward = 2 + 8 + 16 + 32 + 256 + 1024
    assert time.by_phase == {"forward": forward, "backward": backward, "optimizer": 2048}
    assert {module.path: module.own_seconds for module in time.by_module if module.own_seconds} == {
        "": 64 + 128 + 256 + 512 + 1024 + 2048,
        "first": 1 + 2,
        "second.0": 4 + 8,
        "again": 16 + 16 + 32,
    }
    assert time.by_module[0].inclusive_seconds == time.seconds == time.low == time.high
    assert (time.bound, time.by_kind, time.gpu) == (None, {}, "")
    assert "measured on the CPU" in str(time) and "optimizer 50%" in str(time)
    assert MemoryEstimate.from_json(measured.to_json()).time() == time


def test_the_run_in_the_middle_counts_and_the_first_ones_do_not() -> None:
    seconds = iter([900.0, 800, 700, 5, 1, 7, 3, 2, 6, 4])

    class Varying(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return wait(x, next(seconds), 0)

    time = measure_memory(Varying(), input_data=torch.zeros(2, 4), mode="eval", time=True).time()
    assert (time.low, time.seconds, time.high) == (1, 4, 7)


def test_a_measured_time_beside_a_predicted_one(tmp_path: Any) -> None:
    measured, predicted = timed(optimizer="sgd"), estimate_memory(Net(), (4,), 2, gpu="T4", optimizer="sgd")
    row = next(line for line in compare(predicted, measured).to_csv().splitlines() if "time_ms" in line)
    assert float(row.split(",")[4]) == 1e3 * measured.time().seconds
    known = predicted.time(measured=measured.time())
    assert known.seconds == pytest.approx(measured.time().seconds)
    page = measured.to_html_report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Own ms" in page and "Kernels" not in page


def test_a_step_measured_without_its_time_has_none() -> None:
    measured = measure_memory(Net(), (4,), 2)
    with pytest.raises(InputError, match=r"ran for real.*time=True"):
        measured.time()
    with pytest.raises(InputError, match=r"ran for real.*kernels are unknown"):
        timed().time("T4")
    assert measured.known_time() is None


class Event:
    """A CUDA event on a stream whose clock, in milliseconds, each recording moves by twice as much."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:0"
        CLOCK[0] *= 2
        self.at = CLOCK[0]

    def elapsed_time(self, later: Event) -> float:
        return later.at - self.at


def test_on_cuda_the_laps_are_between_events_on_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append(str(device)))
    CLOCK[0] = 0.5
    watch = real_steps.Stopwatch(torch.device("cuda:0"))
    watch.enter("forward", 0)
    for phase in ("forward", "backward", "end"):
        watch.enter(phase, 1)
    assert not waited, "the host does not wait for the GPU between laps"
    watch.stop()
    measured = watch.measured(warm_up=1)
    assert {phase: seconds for phase, _, seconds in measured.parts} == {"forward": 0.002, "backward": 0.012}
    assert measured.runs == (0.014,) and waited == ["cuda:0"]
