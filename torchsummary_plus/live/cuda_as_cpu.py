"""A real CPU pass for a CUDA step: the CPU takes the place of CUDA devices in the user's code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import compat
from .cuda_answers import captures_undone, numbers_named, statistics_answered
from .streams import streams_alone
from .threads import all_in_pass

CPU = torch.device("cpu")
_STAYS = {Tensor.cuda, Tensor.pin_memory}
"""Methods that return a CPU tensor itself here."""
_DEVICE_AT = {Tensor.to: 1, compat.parse_to: 0}
"""Functions that take a device at this position; the others take one only by keyword."""


class CudaAsCpu(TorchFunctionMode):
    """Replaces CUDA devices in the arguments of torch's functions by the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _STAYS:
            return args[0]
        place = _DEVICE_AT.get(func, len(args))
        if place < len(args) and _is_cuda(args[place]):
            args = (*args[:place], CPU, *args[place + 1 :])
        if kwargs and _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": CPU}
        return func(*args, **(kwargs or {}))


def _is_cuda(device: Any) -> bool:
    """Whether a value denotes a CUDA device: a name, a device object or a number.

    >>> [_is_cuda(device) for device in ("cuda:1", torch.device("cuda"), 0, "cpu", True, None)]
    [True, True, True, False, False, False]
    """
    if type(device) is int:
        return True
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    return isinstance(device, torch.device) and device.type == "cuda"


@contextmanager
def cuda_as_cpu(applies: bool = True) -> Iterator[None]:
    """Let code that names CUDA devices run on CPU tensors; an installed GPU is not used."""
    if not applies:
        yield
        return
    first = torch.device("cuda", 0)
    stand_ins: dict[tuple[Any, str], Any] = {
        (torch.cuda, "synchronize"): lambda *_: None,
        (torch.cuda, "current_device"): lambda: 0,
        (torch.cuda, "is_current_stream_capturing"): lambda: False,
        **statistics_answered(),
    }
    answers = all_in_pass(stand_ins)
    with ExitStack() as stack:
        stack.enter_context(captures_undone(answers))
        stack.enter_context(compat.replaced(answers))
        stack.enter_context(compat.autocast_available())
        stack.enter_context(streams_alone(first))
        stack.enter_context(numbers_named())
        if torch.get_default_device().type == "cuda":
            stack.enter_context(CPU)
        stack.enter_context(CudaAsCpu())
        yield
