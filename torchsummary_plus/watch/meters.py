"""What a device and the process say of their memory."""

from __future__ import annotations

from pathlib import Path

import torch

from ..data.tracking_records import DeviceMemory

STATM = Path("/proc/self/statm")


def default_device() -> torch.device:
    """The device that is worth watching: CUDA's current one where there is one, then MPS, then the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def device_memory(device: torch.device) -> DeviceMemory:
    """The figures of a device; the peak is since the last call, for which CUDA's peak statistics are reset."""
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
    """The resident memory of this process in bytes; None where the system does not tell by a file."""
    if not STATM.exists():
        return None
    import resource

    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def empty_cache(device: torch.device) -> None:
    """Give the device back what its caching allocator keeps."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
