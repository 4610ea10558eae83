"""Memory figures of a device and of the process."""

from __future__ import annotations

from pathlib import Path

import torch

from ..data.tracking_records import DeviceMemory

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
