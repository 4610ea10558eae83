"""NVIDIA's driver, which describes the installed GPUs without allocating on them.

Source: ``cuDeviceGetAttribute`` in NVIDIA's CUDA Driver API.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from ..data.capability import Capability

_CAPABILITY = (75, 76)
"""``CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`` and ``_MINOR``."""


@cache
def cuda_driver() -> Any:
    """Return the driver's library, initialised; None without a driver or a GPU."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    return None if driver.cuInit(0) else driver


@cache
def capability_of(index: int) -> Capability | None:
    """Return a GPU's compute capability; None if there is no such GPU."""
    driver = cuda_driver()
    if driver is None:
        return None
    card, values = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
    failed = driver.cuDeviceGet(ctypes.byref(card), index)
    for value, attribute in zip(values, _CAPABILITY):
        failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, card)
    return None if failed else (values[0].value, values[1].value)
