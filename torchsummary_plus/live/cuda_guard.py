"""Fake CUDA without a GPU: torch's own fake device guard in place of CUDA's.

Composite operators, autocast and indexing ask C++ for a tensor's device and then for that device's guard. A CPU build
has no CUDA guard, and the process aborts. A CUDA build has one that calls the driver: without a GPU it fails, with one
it allocates a CUDA context. torch can install a fake guard (``_ensureCUDADeviceGuardSet``), but only over a guard that
counts no devices; without a guard, a stub that returns 0 from every call is registered first. :mod:`cuda_engine`
handles a backward's queries on a CUDA build.

A process that already uses CUDA has contexts, and perhaps threads that need the guard, so its guard is left in place.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from ..data.capability import Capability
from ..data.errors import UnsupportedError
from . import compat

_CUDA = 1
_META = 14
"""Device numbers in ``c10::DeviceType``."""

_ITANIUM = (
    "_ZN3c104impl24DeviceGuardImplRegistrarC1ENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE",
    "_ZN3c104impl26device_guard_impl_registryE",
)
_LIBRARIES = {
    "linux": ("libc10.so", *_ITANIUM),
    "darwin": ("libc10.dylib", *_ITANIUM),
    "win32": (
        "c10.dll",
        "??0DeviceGuardImplRegistrar@impl@c10@@QEAA@W4DeviceType@2@PEBUDeviceGuardImplInterface@12@@Z",
        "?device_guard_impl_registry@impl@c10@@3V?$array@U?$atomic@PEBUDeviceGuardImplInterface@impl@c10@@@std@@$0BF@@std@@A",
    ),
}
"""By platform: c10's library, and its names for the constructor that registers a guard and for the registry of 21
guards. They are those of the wheels of torch 2.6 to 2.13; nothing has run on macOS or Windows yet."""
_METHODS = 64
"""An upper bound on the virtual methods of a device guard."""

_OLDER_METHODS = 23
"""Virtual methods of a device guard in torch 2.8, the first three of which return its type, its device before it was
changed, and its device (c10/core/impl/DeviceGuardImplInterface.h)."""


@contextmanager
def cuda_guard() -> Iterator[None]:
    """Install a fake CUDA guard and remove it on exit.

    Raises :class:`UnsupportedError` if this build of torch takes none, and there is no GPU that it could use instead.
    """
    slot = None if torch.cuda.is_initialized() else Slot.find()
    if slot is None or not slot.fill():
        if not torch.cuda.is_available():
            raise UnsupportedError(
                f"torch {torch.__version__} on {sys.platform} cannot stand in for a GPU, so nothing can be estimated "
                'for CUDA: install torch 2.11 or later, use Linux, or pass device="cpu"'
            )
        yield
        return
    outer, Slot.filled = Slot.filled, slot
    try:
        yield
    finally:
        Slot.filled = outer
        slot.put(slot.own)


@cache
def _start_engine() -> None:
    """Start autograd's engine while no guard counts a GPU: it would start a thread for it.

    A process with such a thread cannot use the engine after a fork (torch/csrc/autograd/engine.cpp,
    ``track_bad_autograd_forks``).
    """
    with torch.inference_mode(False), torch.enable_grad(), compat.no_modes():
        torch.ones((), device="cpu", requires_grad=True).backward()


class Slot:
    """CUDA's entry in c10's registry of device guards; ``own`` is the address of the original guard."""

    filled: Slot | None = None
    """The entry that currently holds torch's fake guard."""

    def __init__(self, library: ctypes.CDLL, register: str, registry: str) -> None:
        self._register = getattr(library, register)
        self._register.argtypes = [ctypes.c_void_p, ctypes.c_int8, ctypes.c_void_p]
        self._register.restype = None
        guards = ctypes.c_void_p.in_dll(library, registry)
        self._slots = (ctypes.c_void_p * (_META + 1)).from_address(ctypes.addressof(guards))
        self.own = self.holds()
        self.has_cards = torch.backends.cuda.is_built() and compat.cuda_device_count() > 0
        answer_zero = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda _: 0)
        pointer = ctypes.cast(answer_zero, ctypes.c_void_p).value
        methods = (ctypes.c_void_p * _METHODS)(*[pointer] * _METHODS)
        stub = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
        self._kept: tuple[Any, ...] = answer_zero, methods, stub
        self._stub = ctypes.addressof(stub)

    @classmethod
    def find(cls) -> Slot | None:
        """Return this build's entry, or None if it cannot be found."""
        name, *symbols = _LIBRARIES.get(sys.platform, _LIBRARIES["linux"])
        try:
            return cls(ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name)), *symbols)
        except (OSError, AttributeError, ValueError):
            return None

    def holds(self) -> int | None:
        """Return the address of the registered guard."""
        return self._slots[_CUDA]

    def put(self, address: int | None) -> None:
        """Register a guard, or clear the entry."""
        self._register(None, _CUDA, address)

    def fill(self) -> bool:
        """Have torch install its fake guard; on failure return False and leave the entry unchanged.

        Older torch has no fake guard; one like the meta device's, which also does nothing, takes its place, except on
        Windows, where methods return devices in another way.

        In a CUDA build without a GPU, torch's own fake mode may already have installed one for good. That one is kept,
        because torch leaks it when it creates another.
        """
        if compat.set_cuda_guard is None:
            if self._slots[_META] is None or sys.platform == "win32":
                return False
            self.put(self._older)
            return True
        if not self.has_cards:
            _start_engine()
        if self.own is None or self.has_cards:
            self.put(self._stub)
        compat.set_cuda_guard()
        if self.holds() == self._stub:
            self.put(self.own)
            return False
        return True

    @cached_property
    def _older(self) -> int:
        """Return the address of a guard like the meta device's, but on the first GPU: "cuda" means its device.

        A ``c10::Device`` is returned by value: its type in the low byte, its index in the next.
        """
        own = ctypes.c_void_p.from_address(self._slots[_META] or 0).value
        methods = (ctypes.c_void_p * _OLDER_METHODS).from_address(own or 0)
        first = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda _: _CUDA)
        pointer = ctypes.cast(first, ctypes.c_void_p).value
        table = (ctypes.c_void_p * _OLDER_METHODS)(pointer, pointer, pointer, *methods[3:])
        guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        self._kept += (first, table, guard)
        return ctypes.addressof(guard)

    def put_one_that_counts(self) -> None:
        """Register a guard that reports the number of GPUs present, as the build's own would."""
        self.put(self.own if self.has_cards else self._stub)


@contextmanager
def wrappers_reported() -> Iterator[None]:
    """Have every new wrapper tensor query the pass for its device, as fakes do."""
    kind: Any = torch.Tensor
    make = kind._make_wrapper_subclass

    def make_reported(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **kwargs) if len(args) > 3 else make(*args, **{**kwargs, "dispatch_device": True})

    kind._make_wrapper_subclass = staticmethod(make_reported)
    try:
        yield
    finally:
        del kind._make_wrapper_subclass


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
    """Return a GPU's compute capability, for which nothing is allocated on it; None if there is no such GPU.

    Source: ``cuDeviceGetAttribute`` in NVIDIA's CUDA Driver API.
    """
    driver = cuda_driver()
    if driver is None:
        return None
    card, values = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
    failed = driver.cuDeviceGet(ctypes.byref(card), index)
    for value, attribute in zip(values, _CAPABILITY):
        failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, card)
    return None if failed else (values[0].value, values[1].value)
