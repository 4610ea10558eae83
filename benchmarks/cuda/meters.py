"""Measure steps with CUDA's caching allocator."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cuda.history import reduce_history
from benchmarks.nocuda.runtime import is_active


class CudaMeter:
    """Reads the allocator's figures in bytes, starting from an empty cache without cuBLAS workspaces."""

    def begin(self) -> None:
        """Start before anything is allocated."""
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        self.left = torch.cuda.memory_reserved()
        torch.cuda.memory._record_memory_history(context=None, max_entries=10_000_000, clear_history=True)

    def hold(self) -> None:
        """Continue once the model and its input exist."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def run(self, step: Callable[[], object]) -> None:
        step()
        torch.cuda.synchronize()

    def end(self) -> dict[str, Any]:
        """Return the measurements in the form in which they are written."""
        figures: dict[str, Any] = {
            "peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(),
            "steady_bytes": torch.cuda.memory_allocated(), "left_before_bytes": self.left,
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
