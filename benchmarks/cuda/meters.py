"""Measure the phases of a step, with CUDA's allocator or on the CPU with torch's profiler."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C._profiler import _EventType  # the event tree has no public reader
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.cuda.history import reduce_history
from benchmarks.nocuda.runtime import is_active
from tests.truth.memory_truth import storage_bytes

Run = Callable[[], object]


class Meter:
    """Peaks in bytes by phase and overall; ``extra`` has further figures."""

    device = "cpu"

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}

    def begin(self) -> None:
        """Start before anything is allocated."""

    def hold(self, tensors: list[torch.Tensor]) -> None:
        """Continue once the model and its input exist."""

    def phase(self, name: str, run: Run) -> None:
        """Run a phase and record its peak; if it runs again, the higher peak counts."""
        raise NotImplementedError

    def note(self, name: str, peak: int) -> None:
        self.peaks[name] = max(self.peaks.get(name, 0), peak)

    def end(self) -> dict[str, Any]:
        """Return the measurements in the form in which they are written."""
        return {"peak_bytes": max(self.peaks.values()), "phase_peaks": self.peaks}


class CpuMeter(Meter):
    """Measures every allocation and free that torch's profiler sees, after the model and its input exist."""

    def hold(self, tensors: list[torch.Tensor]) -> None:
        self.static = storage_bytes(tensors)
        gc.collect()
        self.profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self.profiler.__enter__()

    def phase(self, name: str, run: Run) -> None:
        with record_function(PHASE + name):
            run()

    def end(self) -> dict[str, Any]:
        self.profiler.__exit__(None, None, None)
        phases, level = [(0, "")], self.static
        moments = sorted(_moments(self.profiler), key=lambda moment: moment[:2])
        for start, _, what in moments:
            if isinstance(what, str):
                phases.append((start, what))
            else:
                level += what
            self.note(phases[-1][1], level)
        return {**super().end(), "steady_bytes": level}


PHASE = "phase: "


def _moments(profiler: Any) -> Iterator[tuple[int, int, int | str]]:
    """Yield the time, a serial number, and the bytes of every allocation and free, or the name of a starting phase."""
    waiting = list(reversed(profiler.profiler.kineto_results.experimental_event_tree()))
    for number in itertools.count():
        if not waiting:
            return
        event = waiting.pop()
        fields = event.extra_fields
        if event.tag == _EventType.Allocation and fields.device.type == "cpu":
            yield event.start_time_ns, number, fields.alloc_size
        elif event.name.startswith(PHASE):
            yield event.start_time_ns, number, event.name.removeprefix(PHASE)
        waiting.extend(reversed(event.children))


class CudaMeter(Meter):
    """Reads the caching allocator's figures, starting from an empty cache without cuBLAS workspaces."""

    device = "cuda"

    def __init__(self) -> None:
        super().__init__()
        self.reserved = 0

    def begin(self) -> None:
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        self.left = torch.cuda.memory_reserved()
        torch.cuda.memory._record_memory_history(context=None, max_entries=10_000_000, clear_history=True)

    def hold(self, tensors: list[torch.Tensor]) -> None:
        torch.cuda.empty_cache()

    def phase(self, name: str, run: Run) -> None:
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        self.note(name, torch.cuda.max_memory_allocated())
        self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())

    def end(self) -> dict[str, Any]:
        figures = {
            **super().end(), "reserved_bytes": self.reserved, "steady_bytes": torch.cuda.memory_allocated(),
            "left_before_bytes": self.left,
        }  # fmt: skip
        if not is_active():  # the no-op runtime's context is a constant, not a measurement
            figures["device_bytes"] = used = process_bytes()
            figures["outside_bytes"] = used - torch.cuda.memory_reserved() if used else None
        figures["history"] = reduce_history(torch.cuda.memory._snapshot())
        torch.cuda.memory._record_memory_history(enabled=None)
        return figures


def process_bytes() -> int | None:
    """Return the GPU memory of this process according to NVML, if the driver tells."""
    import pynvml  # nvidia-ml-py, an optional part of torch.cuda

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
    used = {process.pid: process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    return used.get(os.getpid())
