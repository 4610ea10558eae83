"""Fake CUDA on a build without CUDA: torch's own fake device guard in the slot that such a build leaves empty.

Composite operators, autocast and indexing ask C++ for a tensor's device, and then for a guard of that device. A CUDA
build has one, a CPU build dies at the question. torch can install a fake one (``_ensureCUDADeviceGuardSet``), but
does so only in the place of a guard that counts no devices. So a stub that answers 0 to everything is put there for
that one question. Where any step is missing (another platform, an older torch) nothing is changed and the caller
is told so: fakes then have CUDA's dispatch keys only. So they do in a backward on a CUDA build without a card, whose
autograd engine asks the driver about every device that the fake guard counts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_CUDA = 1
_REGISTER = "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_METHODS = 64
"""More virtual methods than the interface of a device guard has."""


@contextmanager
def cuda_guard(backward: bool = False) -> Iterator[bool]:
    """Whether C++ may be told of CUDA devices while it holds; what it installs it takes away again."""
    if torch.cuda.is_available():
        yield True
        return
    ensure = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if torch.backends.cuda.is_built():
        if ensure is not None and not backward:
            ensure()
        yield ensure is not None and not backward
        return
    slot = None if ensure is None else _Slot.find()
    if slot is None:
        yield False
        return
    try:
        yield slot.fill()
    finally:
        slot.put(None)


class _Slot:
    """CUDA's place in c10's registry of device guards."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._register = getattr(library, _REGISTER)
        self._register.argtypes = [ctypes.c_int8, ctypes.c_void_p]
        self._register.restype = None
        registry = ctypes.c_void_p.in_dll(library, _REGISTRY)
        self._slots = (ctypes.c_void_p * (_CUDA + 1)).from_address(ctypes.addressof(registry))

    @classmethod
    def find(cls) -> _Slot | None:
        """The empty slot of this build; None where there is none to be found."""
        path = Path(torch.__file__).parent / "lib" / "libc10.so"
        try:
            slot = cls(ctypes.CDLL(str(path)))
        except (OSError, AttributeError, ValueError):
            return None
        return slot if slot.holds() is None else None

    def holds(self) -> int | None:
        """The address of the guard in the slot."""
        return self._slots[_CUDA]

    def put(self, address: int | None) -> None:
        """Register a guard, or none."""
        self._register(_CUDA, address)

    def fill(self) -> bool:
        """Let torch put its fake guard there; False, and an empty slot, if it did not."""
        answer_zero = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda _: 0)
        pointer = ctypes.cast(answer_zero, ctypes.c_void_p).value
        methods = (ctypes.c_void_p * _METHODS)(*[pointer] * _METHODS)
        stub = (ctypes.c_void_p * 8)(ctypes.addressof(methods))
        self.put(ctypes.addressof(stub))
        torch._C._ensureCUDADeviceGuardSet()
        if self.holds() == ctypes.addressof(stub):
            self.put(None)
            return False
        return True
