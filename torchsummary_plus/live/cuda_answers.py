"""Memory statistics, ranges for profilers and the like in a step on CUDA, where no GPU is used.

Modules imported meanwhile copy such replacements of torch's functions; they get torch's own back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import compat

_RESETS = ("reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated")
_READS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


def statistics_answered() -> dict[tuple[Any, str], Callable[..., Any]]:
    """Return replacements for functions that fail without a GPU, or write to the statistics of one that is in use.

    What reads statistics is replaced only where torch finds no GPU: there are none then. Each replacement is a function
    of its own, by which modules that copied it get torch's back.
    """
    answers = {(torch.cuda, name): always(None) for name in (*_RESETS, "reset_max_memory_cached", "ipc_collect")}
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        answers |= {(accelerator, name): always(None) for name in _RESETS}
    if torch.cuda.is_available():
        return answers
    answers |= {(torch.cuda, "memory_summary"): always(""), (torch.cuda, "memory_snapshot"): lambda *_, **__: []}
    answers |= {(torch.cuda.nvtx, name): always(0) for name in ("range_push", "range_pop", "mark")}
    if accelerator is not None and not accelerator.is_available():
        answers |= {(accelerator, name): always(None) for name in ("synchronize", "empty_cache")}
        answers |= {(accelerator, name): always(0) for name in _READS}
        answers[accelerator, "memory_stats"] = lambda *_, **__: {}
    return answers


def always(answer: Any) -> Callable[..., Any]:
    """Return a function that gives the same answer to every call."""
    return lambda *_, **__: answer


@contextmanager
def captures_undone(answers: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
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
            module = sys.modules[name]
            if isinstance(module, ModuleType):
                for holder in (module, *_classes_of(module, name)):
                    for attribute, value in list(vars(holder).items()):
                        is_static = isinstance(value, staticmethod)
                        usual = own.get(id(value.__func__ if is_static else value))
                        if usual is not None:
                            setattr(holder, attribute, staticmethod(usual) if is_static else usual)


def _classes_of(holder: Any, module: str) -> Iterator[type]:
    """Yield the classes that a module, or a class in it, defines."""
    for value in list(vars(holder).values()):
        if not isinstance(value, type):
            continue
        is_inside = not isinstance(holder, type) or value.__qualname__.startswith(f"{holder.__qualname__}.")
        if value.__module__ == module and is_inside and value is not holder:
            yield value
            yield from _classes_of(value, module)


_MOVES = {torch.Tensor.to, torch.Tensor.cuda}
_parse_to: Any = compat.parse_to


def on_numbered_gpus(func: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[tuple[Any, ...], Any]:
    """Return a function's arguments with device numbers replaced by CUDA devices.

    >>> on_numbered_gpus(torch.zeros, (2,), {"device": 1})
    ((2,), {'device': device(type='cuda', index=1)})
    """
    place = 1 if func in _MOVES else 0 if func is _parse_to else len(args)
    if place < len(args) and type(args[place]) is int:
        args = (*args[:place], torch.device("cuda", args[place]), *args[place + 1 :])
    if kwargs and type(kwargs.get("device")) is int:
        kwargs = {**kwargs, "device": torch.device("cuda", kwargs["device"])}
    return args, kwargs


class NumberedGpus(TorchFunctionMode):
    """A mode in which torch's functions treat a number as a CUDA device, for which torch asks the driver.

    Source: torch/csrc/utils/python_arg_parser.h, ``toDevice``, and aten/src/ATen/DeviceAccelerator.cpp.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = on_numbered_gpus(func, args, kwargs or {})
        return func(*args, **kwargs)


@contextmanager
def numbers_named() -> Iterator[None]:
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

    with compat.replaced({(torch, "device"): Named("device", (), {"__module__": "torch"})}):
        yield
