"""The peak of a program's own step, as it runs: CUDA's statistics, or torch's profiler on the CPU."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..live import compat
from .profiled import ProfileReader, changes
from .quiet_profile import QuietProfile


class LivePeak:
    """Measures from ``start`` to ``stop`` the most bytes that tensors and kernels held at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.there: dict[int, int] = {}
        self.profile: QuietProfile | None = None

    def start(self, tensors: Iterable[Tensor]) -> None:
        """Begin. On the CPU, where nothing counts live bytes, ``tensors`` are those that exist already.

        Under the user's own profiler, which this one would end, nothing is measured on the CPU.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.device.type == "cpu" and not compat.profiler_enabled():
            self.add(tensors)
            self.profile = QuietProfile()
            self.profile.start()

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that existed before the start."""
        for tensor in tensors:
            if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                self.there.setdefault(storage.data_ptr(), storage.nbytes())

    def stop(self) -> int | None:
        """End, and return the peak in bytes; None on a device that reports no peak."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return torch.cuda.max_memory_allocated(self.device)
        if self.profile is None:
            return None
        self.profile.stop()
        reader = ProfileReader("cpu", [(address, nbytes, nbytes) for address, nbytes in self.there.items()])
        reader.read(changes(self.profile, "cpu"))
        self.profile = None
        return reader.peak_bytes()
