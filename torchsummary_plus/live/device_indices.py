"""Device numbers, which denote GPUs: torch queries the driver for them and fails without a GPU.

Source: torch/csrc/utils/python_arg_parser.h, ``toDevice``, and aten/src/ATen/DeviceAccelerator.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import compat

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
    """A mode in which torch's functions treat a number as a CUDA device."""

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
