"""Fake CUDA without a card: torch's own fake device guard in the place of CUDA's.

Composite operators, autocast and indexing ask C++ for a tensor's device, and then for a guard of that device. A build
without CUDA has none, and the process dies at the question; a CUDA build has one that asks the driver: it fails without
a card, and with one takes memory of it for a context. torch can put a fake one there (``_ensureCUDADeviceGuardSet``),
but does so only in the place of a guard that counts no devices: where there is none, a stub that answers 0 to
everything is put there for that one question. Where any step is missing (another platform) nothing is
changed and the caller is told so: fakes then have CUDA's dispatch keys only. What a backward asks on a CUDA build is
the subject of :mod:`cuda_engine`.

A process that has begun to use CUDA has its contexts, and perhaps other threads that need the guard: it is left alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from . import compat

_CUDA = 1
_META = 14
"""Their numbers in ``c10::DeviceType``."""

_REGISTER = "_ZN3c104impl24DeviceGuardImplRegistrarC1ENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_METHODS = 64
"""More virtual methods than the interface of a device guard has."""

_CAPABILITY = (75, 76)
"""``CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`` and ``_MINOR``."""


@contextmanager
def cuda_guard() -> Iterator[bool]:
    """Whether C++ may be told of CUDA devices while it holds; what it installs it takes away again."""
    if torch.cuda.is_initialized():
        yield True
        return
    slot = Slot.find()
    if slot is None:
        yield torch.cuda.is_available()
        return
    outer = Slot.filled
    try:
        Slot.filled = slot if slot.fill() else outer
        yield Slot.filled is not None
    finally:
        Slot.filled = outer
        slot.put(slot.own)


class Slot:
    """CUDA's place in c10's registry of device guards; ``own`` is the address of the guard that was there."""

    filled: Slot | None = None
    """The one that torch's fake guard is in at present."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._register = getattr(library, _REGISTER)
        self._register.argtypes = [ctypes.c_void_p, ctypes.c_int8, ctypes.c_void_p]
        self._register.restype = None
        registry = ctypes.c_void_p.in_dll(library, _REGISTRY)
        self._slots = (ctypes.c_void_p * (_META + 1)).from_address(ctypes.addressof(registry))
        self.own = self.holds()
        self.has_cards = torch.backends.cuda.is_built() and compat.cuda_device_count() > 0
        answer_zero = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda _: 0)
        pointer = ctypes.cast(answer_zero, ctypes.c_void_p).value
        methods = (ctypes.c_void_p * _METHODS)(*[pointer] * _METHODS)
        stub = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
        self._kept = answer_zero, methods, stub
        self._stub = ctypes.addressof(stub)

    @classmethod
    def find(cls) -> Slot | None:
        """The slot of this build; None where it is not to be found."""
        path = Path(torch.__file__).parent / "lib" / "libc10.so"
        try:
            return cls(ctypes.CDLL(str(path)))
        except (OSError, AttributeError, ValueError):
            return None

    def holds(self) -> int | None:
        """The address of the guard in the slot."""
        return self._slots[_CUDA]

    def put(self, address: int | None) -> None:
        """Register a guard, or none."""
        self._register(None, _CUDA, address)

    def fill(self) -> bool:
        """Let torch put its fake guard there; False, and the slot as it was, if it did not.

        An older torch has none: there the guard of meta devices, which does nothing either, takes its place.

        In a CUDA build without a card it may be there already, for good: torch's own fake mode puts it there. It is
        then not replaced, as torch gives the memory of one up when it makes another.
        """
        if compat.set_cuda_guard is None:
            self.put(self._slots[_META])
            return self.holds() is not None
        if self.own is None or self.has_cards:
            self.put(self._stub)
        compat.set_cuda_guard()
        if self.holds() == self._stub:
            self.put(self.own)
            return False
        return True

    def put_one_that_counts(self) -> None:
        """Register a guard that counts the cards which are there, as the build's own would."""
        self.put(self.own if self.has_cards else self._stub)


def capability_of(index: int) -> tuple[int, int] | None:
    """The compute capability of a card, asked of the driver, which takes no memory of it; None where there is none.

    Source: ``cuDeviceGetAttribute`` in NVIDIA's CUDA Driver API.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    card, values = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
    failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(card), index)
    for value, attribute in zip(values, _CAPABILITY):
        failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, card)
    return None if failed else (values[0].value, values[1].value)
