"""The peak of a program's own step, as it runs: CUDA's statistics, or torch's profiler on the CPU."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..live import compat
from .profiled import ProfileReader, changes
from .quiet_profile import QuietProfile


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
            self.profile = QuietProfile()
            self.profile.start()

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
        self.profile.stop()
        reader = ProfileReader("cpu", [(address, nbytes, nbytes) for address, nbytes in self.existing.items()])
        reader.read(changes(self.profile, "cpu"))
        self.profile = None
        return reader.peak_bytes()
