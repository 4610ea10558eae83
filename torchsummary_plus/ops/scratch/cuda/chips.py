"""Streaming multiprocessors per GPU, on which kernels' buffer sizes depend besides the compute capability.

Sources: NVIDIA's architecture whitepapers and datasheets for the multiprocessors (CUDA cores divided by those per SM:
64 in 6.0, 7.x, 8.0, 128 in 6.1, 8.6, 8.9, 9.0 and later), the CUDA C++ Programming Guide for threads.
"""

from __future__ import annotations

from ....data.capability import Capability

MULTIPROCESSORS: dict[str, int] = {
    "GTX 1080 Ti": 28,
    "P100": 56,
    "V100 16GB": 80,
    "V100 32GB": 80,
    "TITAN V": 80,
    "T4": 40,
    "TITAN RTX": 72,
    "RTX 2060": 30,
    "RTX 2070": 36,
    "RTX 2080 Ti": 68,
    "Quadro RTX 8000": 72,
    "A10": 72,
    "A10G": 80,
    "A30": 56,
    "A40": 84,
    "A100 40GB": 108,
    "A100 80GB": 108,
    "RTX A4000": 48,
    "RTX A5000": 64,
    "RTX A6000": 84,
    "RTX 3060 12GB": 28,
    "RTX 3070": 46,
    "RTX 3080 10GB": 68,
    "RTX 3080 12GB": 70,
    "RTX 3080 Ti": 80,
    "RTX 3090": 82,
    "RTX 3090 Ti": 84,
    "L4": 58,
    "L40": 142,
    "L40S": 142,
    "RTX 6000 Ada": 142,
    "RTX 4060": 24,
    "RTX 4060 Ti 8GB": 34,
    "RTX 4060 Ti 16GB": 34,
    "RTX 4070": 46,
    "RTX 4070 Ti": 60,
    "RTX 4070 Ti SUPER": 66,
    "RTX 4080": 76,
    "RTX 4080 SUPER": 80,
    "RTX 4090": 128,
    "H100 SXM": 132,
    "H100 PCIe": 114,
    "H100 NVL": 132,
    "H200": 132,
    "GH200 96GB": 132,
    "B200": 148,
    "RTX PRO 6000": 188,
    "RTX 5060 Ti 8GB": 36,
    "RTX 5060 Ti 16GB": 36,
    "RTX 5070": 48,
    "RTX 5070 Ti": 70,
    "RTX 5080": 84,
    "RTX 5090": 170,
}
"""By GPU name in the registry."""

THREADS: dict[Capability, int] = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
"""Most threads per multiprocessor, where it is not 2,048."""

TYPICAL: dict[Capability, int] = {
    (6, 0): 56,
    (6, 1): 28,
    (7, 0): 80,
    (7, 5): 40,
    (8, 0): 108,
    (8, 6): 84,
    (8, 9): 128,
    (9, 0): 132,
    (10, 0): 148,
    (12, 0): 170,
}
"""Multiprocessors of the best-known GPU of a capability, for when no GPU is named."""


class Chip(tuple[int, int]):
    """A compute capability with a GPU's number of multiprocessors.

    >>> chip = Chip((8, 6), 82)
    >>> chip == (8, 6), chip.multiprocessors, chip.threads
    (True, 82, 1536)
    """

    multiprocessors: int

    def __new__(cls, capability: Capability, multiprocessors: int | None = None) -> Chip:
        chip = super().__new__(cls, capability)
        chip.multiprocessors = multiprocessors or TYPICAL.get(capability, 108)
        return chip

    @property
    def threads(self) -> int:
        """Most threads per multiprocessor."""
        return THREADS.get(self, 2048)


def chip_named(name: str, capability: Capability) -> Chip:
    """Return the chip of a GPU by its name in the registry.

    >>> chip_named("A10G", (8, 6)).multiprocessors, chip_named("another", (8, 0)).multiprocessors
    (80, 108)
    """
    return Chip(capability, MULTIPROCESSORS.get(name))


def chip_of(capability: Capability) -> Chip:
    """Return the chip itself, or the typical one of a plain capability."""
    return capability if isinstance(capability, Chip) else Chip(capability)
