"""Devices of makers other than NVIDIA: their memory size is known, but their kernels are not modelled.

Whether a step fits is decided by its tensors alone, since kernels' scratch memory, contexts and allocators differ.

Sources: the makers' datasheets for the memory. Of Apple's unified memory, Metal recommends that a program use 2/3 up to
32 GB (21,845 of 32,768 MiB: ollama/ollama#434) and 3/4 beyond (49,152 of 65,536: ggml-org/llama.cpp#1870; 73,728 of
98,304: #3213).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ..data.errors import InputError, warn
from ..data.units import GIB, describe

AMD = {
    "MI355X": 288, "MI350X": 288, "MI325X": 256, "MI300X": 192, "MI300A": 128, "MI250X": 64, "MI250": 64, "MI210": 64,
    "MI100": 32, "MI60": 32, "MI50": 16, "Radeon PRO W7900": 48, "Radeon PRO W7800": 32, "Radeon PRO W6800": 32,
    "Radeon AI PRO R9700": 32, "RX 9070 XT": 16, "RX 9070": 16, "RX 9060 XT": 16, "RX 7900 XTX": 24, "RX 7900 XT": 20,
    "RX 7900 GRE": 16, "RX 7800 XT": 16, "RX 7700 XT": 12, "RX 7600 XT": 16, "RX 7600": 8, "RX 6950 XT": 16,
    "RX 6900 XT": 16, "RX 6800 XT": 16, "RX 6800": 16, "RX 6700 XT": 12, "RX 6600 XT": 8, "RX 6600": 8,
}  # fmt: skip
"""GB by name; MI250 and MI250X are two devices of 64 GB each."""

INTEL = {
    "Arc B580": 12, "Arc B570": 10, "Arc A770": 16, "Arc A750": 8, "Arc A580": 8, "Arc A380": 6, "Arc Pro B60": 24,
    "Arc Pro B50": 16, "Max 1550": 128, "Max 1100": 48, "Flex 170": 16, "Gaudi 2": 96, "Gaudi 3": 128,
}  # fmt: skip

APPLE = re.compile(r"(?:apple\s*)?(m[1-9])\s*(pro|max|ultra)?(?:[\s,()-]*(\d+)\s*gi?b?\)?)?", re.IGNORECASE)

SMALL_MAC = 32
"""Up to this many GB, 2/3 of a Mac's memory is available to programs."""

BRANDS = re.compile(r"amd|radeon|instinct|rx|intel|arc|datacentergpu|gpu|graphics")


class NotModelledWarning(UserWarning):
    """Warns that a result is for a device whose memory size is known but whose kernels are not modelled."""


@dataclass(frozen=True, slots=True)
class OtherDevice:
    """A device: its name, its memory in GB, and the bytes available to a program."""

    name: str
    maker: str
    gb: int
    usable_bytes: int

    @property
    def words(self) -> str:
        """A sentence on the device: known memory size, kernels not modelled."""
        return f"{self.maker} {self.name}: its memory size is known ({self.gb} GB), but its kernels are not modelled"

    def warn(self) -> None:
        """Warn that an answer counts tensors only, at the line that called this package."""
        warn(f"{self.words}; the answer counts tensors only", NotModelledWarning)


def other_device(name: object) -> OtherDevice | None:
    """Return the device of a name; None if unknown. Raises :class:`InputError` for a Mac whose name lacks its GB.

    >>> other_device("M2 Max 32GB").usable_bytes // 1024**2, other_device("AMD Instinct MI300X").gb
    (21845, 192)
    """
    if not isinstance(name, str):
        return None
    apple = APPLE.fullmatch(name.strip())
    if apple is not None:
        chip, kind, gb_text = apple.groups()
        model = chip.upper() + (f" {kind.capitalize()}" if kind else "")
        if gb_text is None:
            cure = f"which comes in several sizes; add yours, as in '{model} 32GB'"
            raise InputError(f"memory is {describe(name)}, {cure}")
        gb = int(gb_text)
        share = Fraction(2, 3) if gb <= SMALL_MAC else Fraction(3, 4)
        return OtherDevice(f"{model} {gb_text}GB", "Apple", gb, int(gb * GIB * share))
    wanted = _compact(name)
    for maker, devices in (("AMD", AMD), ("Intel", INTEL)):
        for known, gb in devices.items():
            if wanted in (_compact(known), f"{_compact(known)}{gb}gb"):
                return OtherDevice(known, maker, gb, gb * GIB)
    return None


def _compact(name: str) -> str:
    return BRANDS.sub("", re.sub(r"[^a-z0-9]", "", name.lower()))
