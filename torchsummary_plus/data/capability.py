"""A GPU's compute capability, and its streaming multiprocessors, on which kernels' buffer sizes depend besides."""

from __future__ import annotations

Capability = tuple[int, int]  # Major and minor number: (9, 0) for an H200.
AMPERE: Capability = (8, 0)  # The GPU assumed if none is known: an A100.

THREADS: dict[Capability, int] = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
"""Most threads per multiprocessor, where it is not 2,048 (the CUDA C++ Programming Guide)."""

TYPICAL: dict[Capability, int] = {
    (6, 0): 56, (6, 1): 28, (7, 0): 80, (7, 5): 40, (8, 0): 108, (8, 6): 84, (8, 9): 128, (9, 0): 132, (10, 0): 148,
    (12, 0): 170,
}  # fmt: skip
"""Multiprocessors of the best-known GPU of a capability, for when no GPU is named."""


class Chip(tuple[int, int]):
    """A compute capability with a GPU's number of multiprocessors, or the typical one.

    >>> chip = Chip((8, 6), 82)
    >>> chip == (8, 6), chip.multiprocessors, chip.threads
    (True, 82, 1536)
    """

    multiprocessors: int

    def __new__(cls, capability: Capability, multiprocessors: int | None = None) -> Chip:
        chip = super().__new__(cls, capability)
        known = capability.multiprocessors if isinstance(capability, Chip) else TYPICAL.get(capability, 108)
        chip.multiprocessors = multiprocessors or known
        return chip

    @property
    def threads(self) -> int:
        """Most threads per multiprocessor."""
        return THREADS.get(self, 2048)
