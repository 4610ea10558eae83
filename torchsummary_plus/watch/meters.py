"""Memory figures: of a device, of the process and of what it can still take; the peak of a program's own step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from ..data.tracking_records import DeviceMemory
from ..live import compat
from .profiled import ProfileReader, QuietProfile, changes

STATM = Path("/proc/self/statm")


def default_device() -> torch.device:
    """Return the device to watch: the current CUDA device if there is one, then MPS, then the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """Return a device with the name of its model, if it has one: "cuda:0 (NVIDIA A100-SXM4-80GB)"."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def device_memory(device: torch.device) -> DeviceMemory:
    """Return a device's figures; the peak is since the last call, which resets CUDA's peak statistics."""
    process = process_bytes()
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        return DeviceMemory(allocated, reserved, peak, total - free, process)
    if device.type == "mps":
        allocated, driver = torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()
        return DeviceMemory(allocated, driver, None, None, process)
    return DeviceMemory(process_bytes=process)


def process_bytes() -> int | None:
    """Return this process's resident memory in bytes; None if the system provides no file for it."""
    if not STATM.exists():
        return None
    import resource

    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def empty_cache(device: torch.device) -> None:
    """Return the caching allocator's free memory to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


class LivePeak:
    """Measures the peak of the bytes held by tensors and kernels from ``start`` to ``stop``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.existing: dict[int, int] = {}
        self.profile: QuietProfile | None = None

    def start(self, tensors: Iterable[Tensor]) -> None:
        """Start measuring. On the CPU, which keeps no statistics, ``tensors`` are those that exist already.

        On the CPU nothing is measured under the user's own profiler, which a second one would end.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.device.type == "cpu" and not compat.profiler_enabled():
            self.add(tensors)
            self.profile = QuietProfile().__enter__()

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that existed before the start."""
        for tensor in tensors:
            if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                self.existing.setdefault(storage.data_ptr(), storage.nbytes())

    def stop(self) -> int | None:
        """Stop measuring and return the peak in bytes; None on a device that reports no peak."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return torch.cuda.max_memory_allocated(self.device)
        if self.profile is None:
            return None
        self.profile.__exit__()
        reader = ProfileReader("cpu", [(address, nbytes, nbytes) for address, nbytes in self.existing.items()])
        reader.read(changes(self.profile, "cpu"))
        self.profile = None
        return reader.peak_bytes()
