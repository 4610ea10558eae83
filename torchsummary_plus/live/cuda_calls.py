"""What ``torch.cuda`` answers in a step on CUDA, where no GPU is used: streams, statistics, and device numbers.

Where such a step runs for real, on the CPU, the CPU takes the place of CUDA devices in the user's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count, product
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

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

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, own)

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
