"""CUDA without a GPU: what ``torch.cuda`` answers, and torch's own fake device guard in place of CUDA's.

Where a step on CUDA runs for real, on the CPU, the CPU takes the place of CUDA devices in the user's code.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from itertools import count, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..data.capability import Capability
from ..data.errors import UnsupportedError
from . import compat
from .isolation import all_in_pass

_RESETS = ("reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated")
AMP_CHECK = torch.cuda.amp.common, "amp_definitely_not_available"
"""What torch's gradient scaler and autocast ask whether CUDA is there."""
_READS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


@contextmanager
def cuda_answered(device: torch.device, **more: Callable[..., Any]) -> Iterator[None]:
    """Have ``torch.cuda`` answer without a GPU on behalf of ``device``; ``more`` are further answers of its functions.

    Streams and events work, and ``record_stream`` is reported. Each replacement is a function of its own, by which
    modules that copied it get torch's back.
    """
    answers = {place: always(answer) for place, answer in _answers(device).items()}
    for name, answer in more.items():
        answers[torch.cuda, name] = answer
    answers = all_in_pass(answers | Streams(device).answers())
    with _captures_undone(answers), compat.replaced(answers):
        yield


def always(answer: Any) -> Callable[..., Any]:
    """Return a function that gives the same answer to every call."""
    return lambda *_, **__: answer


def _answers(device: torch.device) -> dict[tuple[Any, str], Any]:
    """Return what functions answer that fail without a GPU, or write to the statistics of one that is in use.

    What reads statistics answers only where torch finds no GPU: there are none then.
    """
    cuda, accelerator = torch.cuda, torch.accelerator
    answers: dict[tuple[Any, str], Any] = dict.fromkeys(product((cuda, accelerator), _RESETS))
    answers |= dict.fromkeys(product((cuda,), ("synchronize", "ipc_collect", "reset_max_memory_cached")))
    answers |= {AMP_CHECK: False, (cuda, "is_current_stream_capturing"): False}
    answers[cuda, "current_device"] = device.index or 0
    if not cuda.is_available():
        answers |= dict.fromkeys(product((cuda.nvtx,), ("range_push", "range_pop", "mark")), 0)
        answers |= {(cuda, "memory_summary"): "", (cuda, "memory_snapshot"): []}
        if not accelerator.is_available():
            answers |= dict.fromkeys(product((accelerator,), ("synchronize", "empty_cache")))
            answers |= dict.fromkeys(product((accelerator,), _READS), 0)
            answers[accelerator, "memory_stats"] = {}
    return answers


class Event:
    """A replacement for ``torch.cuda.Event`` and ``torch.Event``, at which all work is already done."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, stream: Any = None) -> Any:
        """Return the event."""
        return self

    wait = synchronize = always(None)
    query, elapsed_time = always(True), always(0.0)


class Stream:
    """A replacement for ``torch.cuda.Stream`` and ``torch.Stream``, ``of`` a device's streams."""

    of: Streams

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = self.stream_id = self.cuda_stream = next(self.of.numbers)
        self.device, self.device_index, self.device_type = self.of.device, self.of.device.index, 1

    wait_stream = wait_event = synchronize = always(None)
    query = always(True)

    def record_event(self, event: Any = None) -> Any:
        """Return the event, or a new one."""
        return event or Event()

    def __enter__(self) -> Any:
        self.of.stack.append(self)
        self.of.switched()
        return self

    def __exit__(self, *_: object) -> None:
        self.of.stack.pop()
        self.of.switched()


class Streams:
    """A device's streams by number, 0 being the default one."""

    active: Streams | None = None
    """The streams of the current pass, if it is on CUDA."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.numbers = count()
        self.kind: Any = type("Stream", (Stream,), {"of": self})
        self.stack: list[Any] = [self.kind()]
        self.follower: Any = None
        """The ledger that is notified of switches (``switched``) and of ``record_stream`` (``handed_over``)."""
        self._real: dict[Any, Any] = {0: self.stack[0]}

    @property
    def current(self) -> int:
        """Return the current stream's number."""
        number: int = self.stack[-1].number
        return number

    def answers(self) -> dict[tuple[Any, str], Any]:
        """Return the replacements for torch's streams and events."""
        return {
            (torch.cuda, "Stream"): self.kind,
            (torch, "Stream"): self.kind,
            (torch.cuda, "Event"): Event,
            (torch, "Event"): Event,
            (torch.cuda, "stream"): lambda stream: nullcontext() if stream is None else self._ours(stream),
            (torch.cuda, "set_stream"): lambda stream: self._switch(stream),
            (torch.cuda, "current_stream"): lambda *_, **__: self.stack[-1],
            (torch.accelerator, "current_stream"): lambda *_, **__: self.stack[-1],
            (torch.cuda, "default_stream"): lambda *_, **__: self._real[0],
            (Tensor, "record_stream"): lambda tensor, stream: self._record(tensor, stream),
            (Streams, "active"): self,
        }

    def _ours(self, stream: Any) -> Any:
        """Return a replacement stream; one of torch's own, created before the pass, gets a new number."""
        if isinstance(stream, self.kind):
            return stream
        if stream.cuda_stream not in self._real:
            self._real[stream.cuda_stream] = self.kind()
        return self._real[stream.cuda_stream]

    def _switch(self, stream: Any) -> None:
        if stream is not None:
            self.stack[-1] = self._ours(stream)
            self.switched()

    def switched(self) -> None:
        """Notify the follower of a switch."""
        if self.follower is not None:
            self.follower.switched(self.current)

    def _record(self, tensor: Tensor, stream: Any) -> None:
        if self.follower is not None:
            self.follower.handed_over(tensor, self._ours(stream).number)


@contextmanager
def _captures_undone(answers: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Give modules imported inside this context torch's own functions and classes where they copied an answer.

    ``answers`` are the replacements by module and name, not yet installed. For example, ``torch._dynamo`` copies
    ``torch.cuda.Event`` into a class when it is imported, and would use the replacement as long as the process lives.
    """
    own: dict[int, Any] = {}
    for place, answer in answers.items():
        own.setdefault(id(answer), getattr(*place, None))
    imported_before = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - imported_before:
            holders: list[Any] = [sys.modules[name]]
            for holder in holders:  # Which grow by the classes that the module defines.
                for attribute, value in list(getattr(holder, "__dict__", {}).items()):
                    is_static = isinstance(value, staticmethod)
                    usual = own.get(id(value.__func__ if is_static else value))
                    if usual is not None:
                        setattr(holder, attribute, staticmethod(usual) if is_static else usual)
                    elif isinstance(value, type) and value.__module__ == name and value not in holders:
                        holders.append(value)


_DEVICE_AT = {Tensor.to: 1, Tensor.cuda: 1, compat.parse_to: 0}
"""Functions that take a device at this position; the others take one only by keyword."""


def _with_device(func: Any, args: Any, kwargs: Any, change: Callable[[Any], Any]) -> tuple[tuple[Any, ...], Any]:
    """Return a function's arguments with its device changed."""
    place = _DEVICE_AT.get(func, len(args))
    if place < len(args):
        args = (*args[:place], change(args[place]), *args[place + 1 :])
    if kwargs and "device" in kwargs:
        kwargs = {**kwargs, "device": change(kwargs["device"])}
    return args, kwargs


def on_numbered_gpus(func: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[tuple[Any, ...], Any]:
    """Return a function's arguments with device numbers replaced by CUDA devices.

    >>> on_numbered_gpus(torch.zeros, (2,), {"device": 1})
    ((2,), {'device': device(type='cuda', index=1)})
    """
    return _with_device(func, args, kwargs, lambda value: torch.device("cuda", value) if type(value) is int else value)


class NumberedGpus(TorchFunctionMode):
    """A mode in which torch's functions treat a number as a CUDA device, for which torch asks the driver.

    Source: torch/csrc/utils/python_arg_parser.h, ``toDevice``, and aten/src/ATen/DeviceAccelerator.cpp.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = on_numbered_gpus(func, args, kwargs or {})
        return func(*args, **kwargs)


def numbers_named() -> AbstractContextManager[None]:
    """Inside the block, make ``torch.device(1)`` mean the CUDA device of that number."""
    own: Any = torch.device

    class Named(type):
        """The type of the replacement for ``torch.device``, which compares equal to it."""

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return own("cuda", args[0]) if len(args) == 1 and type(args[0]) is int else own(*args, **kwargs)

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, own)

        def __eq__(cls, other: Any) -> bool:
            return other is cls or other is own

        def __hash__(cls) -> int:
            return hash(own)

    return compat.replaced({(torch, "device"): Named("device", (), {"__module__": "torch"})})


_CPU = torch.device("cpu")


class _CudaAsCpu(TorchFunctionMode):
    """Replaces CUDA devices in the arguments of torch's functions by the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.cuda, Tensor.pin_memory):
            return args[0]
        args, kwargs = _with_device(func, args, kwargs, lambda value: _CPU if _is_cuda(value) else value)
        return func(*args, **(kwargs or {}))


def _is_cuda(device: Any) -> bool:
    """Whether a value denotes a CUDA device: a name, a device object or a number.

    >>> [_is_cuda(device) for device in ("cuda:1", torch.device("cuda"), 0, "cpu", True, None)]
    [True, True, True, False, False, False]
    """
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    return type(device) is int or (isinstance(device, torch.device) and device.type == "cuda")


@contextmanager
def cuda_as_cpu(applies: bool = True) -> Iterator[None]:
    """Let code that names CUDA devices run on CPU tensors; an installed GPU is not used."""
    if not applies:
        yield
        return
    usual = _CPU if torch.get_default_device().type == "cuda" else nullcontext()
    with cuda_answered(torch.device("cuda", 0)), numbers_named(), usual, _CudaAsCpu():
        yield


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


def driver_figures(index: int, *attributes: int) -> tuple[int, ...] | None:
    """Return a GPU's bytes and attributes (``CUdevice_attribute``), for which nothing is allocated on it.

    None if there is no such GPU. Source: ``cuDeviceGetAttribute`` in NVIDIA's CUDA Driver API.
    """
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    device, total, values = ctypes.c_int(), ctypes.c_size_t(), [ctypes.c_int() for _ in attributes]
    failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index)
    failed = failed or driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    for value, attribute in zip(values, attributes):
        failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return None if failed else (total.value, *(value.value for value in values))


@cache
def capability_of(index: int) -> Capability | None:
    """Return a GPU's compute capability; None if there is no such GPU."""
    figures = driver_figures(index, 75, 76)
    return None if figures is None else (figures[1], figures[2])
