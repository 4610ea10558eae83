"""NVIDIA GPUs as cuDNN's heuristics see them: the fields of ``cudaGetDeviceProperties`` they read.

A GPU with a file in ``card_files`` has its own properties, each with its source. Any other GPU borrows those of the
nearest one (same compute capability, or an older one of the same major), with its own multiprocessors and memory.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from .....data.capability import Capability
from .....data.units import MIB
from .....live.cuda_calls import capability_of, cuda_driver

CARD_FILES = Path(__file__).parent / "card_files"


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU's device properties; ``like`` names the GPU they are borrowed from, if any.

    Field names are those of the card files.
    """

    name: str
    capability: Capability
    multiprocessors: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_block: int
    l2_bytes: int
    clock_khz: int
    memory_clock_khz: int
    memory_mib: int
    like: str = ""

    def properties(self, driver: int) -> str:
        """Return the JSON for cuDNN's device descriptor (``CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION``).

        Its keys are those that libcudnn_graph reads; ``driver`` is the CUDA version cuDNN was built with.
        """
        major, minor = self.capability
        keys: dict[str, Any] = {
            "cudaDeviceId": 0,
            "smCountOrigin": 0,
            "pciDeviceId": 0,
            "isTccDriver": 0,
            "warpSize": 32,
        }
        keys |= {"supportCoopLaunch": 1, "maxGridSize": [2**31 - 1, 65535, 65535], "maxBlockSize": [1024, 1024, 64]}
        keys |= {"maxThreadsPerBlock": 1024, "regsPerBlock": 65536, "maxRegistersPerSM": 65536}
        keys |= {"maxSharedMemoryPerBlock": 49152, "oversizedSharedMemoryPerBlock": 0}
        keys |= {"maxSharedMemoryPerBlockOptin": self.shared_per_block, "l2CacheSize": self.l2_bytes}
        keys |= {"reservedSharedMemoryPerBlock": 1024 if major >= 8 else 0, "multiProcessorCount": self.multiprocessors}
        keys |= {"maxCtasPerSM": self.blocks_per_multiprocessor, "maxThreadsPerSM": self.threads_per_multiprocessor}
        keys |= {"smClockRateKHz": self.clock_khz, "memClockRateKHz": self.memory_clock_khz}
        keys |= {"deviceVer": 100 * major + 10 * minor, "driverVer": driver, "deviceName": self.name}
        return json.dumps(keys | {"totalGlobalMem": self.memory_mib * MIB})


FIGURES = tuple(name for name in Card.__slots__ if name not in ("name", "capability", "like"))


@cache
def known_cards() -> dict[str, Card]:
    """Return the GPUs with a file, by file name."""
    cards = {}
    for path in sorted(CARD_FILES.glob("*.json")):
        figures = json.loads(path.read_text())
        own = {name: figures[name] for name in FIGURES}
        cards[path.stem] = Card(figures["name"], (figures["major"], figures["minor"]), **own)
    return cards


DRIVER = {
    "multiprocessors": 16,
    "threads_per_multiprocessor": 39,
    "blocks_per_multiprocessor": 106,
    "shared_per_block": 97,
    "l2_bytes": 38,
    "clock_khz": 13,
    "memory_clock_khz": 36,
}
"""The driver's device attributes (``CUdevice_attribute``)."""


@cache
def local_card(index: int = 0) -> Card | None:
    """Return the installed GPU's own properties, from the driver as in :func:`capability_of`; None without one."""
    capability = capability_of(index)
    if capability is None:
        return None
    driver, device, total = cuda_driver(), ctypes.c_int(), ctypes.c_size_t()
    failed = driver.cuDeviceGet(ctypes.byref(device), index)
    failed = failed or driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    figures: dict[str, Any] = {"memory_mib": total.value // MIB}
    for figure, attribute in DRIVER.items():
        value = ctypes.c_int()
        failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        figures[figure] = value.value
    return None if failed else Card("GPU", capability, **figures)


def nearest_card(name: str, capability: Capability, multiprocessors: int | None, memory_mib: int) -> Card | None:
    """Return a GPU with the properties of one with a file: same capability, or the nearest older one of the same major.

    >>> nearest_card("RTX 3080 10GB", (8, 6), 68, 10_002).like
    'NVIDIA GeForce RTX 3090'
    """
    older = [card for card in known_cards().values() if card.capability[0] == capability[0]]
    older = [card for card in older if card.capability <= capability]
    if not older:
        return None
    count = multiprocessors or 0
    near = min(older, key=lambda card: (capability[1] - card.capability[1], abs(card.multiprocessors - count)))
    own = count or near.multiprocessors
    return replace(near, name=name, capability=capability, multiprocessors=own, memory_mib=memory_mib, like=near.name)
