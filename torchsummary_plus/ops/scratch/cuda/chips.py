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
    "V100 PCIe 16GB": 80,
    "V100 PCIe 32GB": 80,
    "TITAN V": 80,
    "T4": 40,
    "TITAN RTX": 72,
    "RTX 2060 6GB": 30,
    "RTX 2070": 36,
    "RTX 2080 Ti": 68,
    "Quadro RTX 8000": 72,
    "A10": 72,
    "A10G": 80,
    "A30": 56,
    "A40": 84,
    "A100 40GB": 108,
    "A100 80GB": 108,
    "A100 PCIe 40GB": 108,
    "A100 PCIe 80GB": 108,
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
    "RTX PRO 6000 Max-Q": 188,
    "RTX 5060 Ti 8GB": 36,
    "RTX 5060 Ti 16GB": 36,
    "RTX 5070": 48,
    "RTX 5070 Ti": 70,
    "RTX 5080": 84,
    "RTX 5090": 170,
    "K80": 13,
    "M40 12GB": 24,
    "M40 24GB": 24,
    "M60": 16,
    "Jetson Nano": 1,
    "P4": 20,
    "P40": 30,
    "GTX 1050 Ti": 6,
    "GTX 1060 3GB": 9,
    "GTX 1060 6GB": 10,
    "GTX 1070": 15,
    "GTX 1070 Ti": 19,
    "GTX 1080": 20,
    "GTX 1650": 14,
    "GTX 1650 SUPER": 20,
    "GTX 1650 Ti": 16,
    "GTX 1660": 22,
    "GTX 1660 SUPER": 22,
    "GTX 1660 Ti": 24,
    "RTX 2060 12GB": 34,
    "RTX 2060 SUPER": 34,
    "RTX 2070 SUPER": 40,
    "RTX 2080": 46,
    "RTX 2080 SUPER": 48,
    "Jetson Xavier NX 8GB": 6,
    "Jetson AGX Xavier 32GB": 8,
    "A2": 10,
    "A16": 10,
    "A800": 108,
    "RTX A2000 6GB": 26,
    "RTX A2000 12GB": 26,
    "RTX A4500": 56,
    "Jetson Orin Nano 4GB": 4,
    "Jetson Orin Nano 8GB": 8,
    "Jetson Orin NX 8GB": 8,
    "Jetson Orin NX 16GB": 8,
    "Jetson AGX Orin 32GB": 14,
    "Jetson AGX Orin 64GB": 16,
    "RTX 3050 6GB": 18,
    "RTX 3050 8GB": 20,
    "RTX 3050 Laptop": 16,
    "RTX 3050 Ti Laptop": 20,
    "RTX 3060 Laptop": 30,
    "RTX 3070 Laptop": 40,
    "RTX 3070 Ti Laptop": 46,
    "RTX 3080 Laptop 8GB": 48,
    "RTX 3080 Laptop 16GB": 48,
    "RTX 3080 Ti Laptop": 58,
    "RTX 3060 8GB": 28,
    "RTX 3060 Ti": 38,
    "RTX 3070 Ti": 48,
    "L20": 92,
    "RTX 2000 Ada": 22,
    "RTX 4000 Ada": 48,
    "RTX 4500 Ada": 60,
    "RTX 5000 Ada": 100,
    "RTX 4050 Laptop": 20,
    "RTX 4060 Laptop": 24,
    "RTX 4070 Laptop": 36,
    "RTX 4080 Laptop": 58,
    "RTX 4090 Laptop": 76,
    "RTX 4070 SUPER": 56,
    "H20": 78,
    "H800": 132,
    "GB10": 48,
    "Jetson AGX Thor": 20,
    "RTX 5060 Laptop": 26,
    "RTX 5070 Laptop": 36,
    "RTX 5070 Ti Laptop": 46,
    "RTX 5080 Laptop": 60,
    "RTX 5090 Laptop": 82,
    "RTX 5060": 30,
    "RTX 5050": 20,
}
"""By GPU name in the registry."""

THREADS: dict[Capability, int] = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
"""Most threads per multiprocessor, where it is not 2,048."""

LITTLE_SHARED_MEMORY = frozenset({(8, 6), (8, 9), (12, 0), (12, 1)})
"""Capabilities with 99 KiB of shared memory per block, less than that of data-centre GPUs of their generation."""

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
