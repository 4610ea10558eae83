"""A step as compiled, if that can be predicted, else as its uncompiled source with the reason.

A process keeps its answers while their models live, since compiling takes longer than all else.
"""

from __future__ import annotations

import hashlib
import io
import marshal
import pickle
import sys
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..data.errors import UnsupportedError
from ..data.memory_records import AS_COMPILED, COMPILED_ON_CUDA, NOT_COMPILED, MemoryLog
from ..live.copying import is_library
from ..live.versions import parsed
from ..step.fake_steps import NeedsValuesError, Task
from .subprocess import in_subprocess

SECONDS = 900.0
"""After how many seconds the uncompiled step is the answer."""
ANSWERS: MutableMapping[nn.Module, dict[bytes, MemoryLog]] = WeakKeyDictionary()
CONFIGS = "torch._dynamo.config", "torch._functorch.config", "torch._inductor.config"


def is_known_release() -> bool:
    """Return whether this release of torch is one with whose compiler this was tested."""
    return (2, 13) <= parsed(torch.__version__) <= (2, 15)


def as_compiled(task: Task, source: MemoryLog, tick: Callable[[], None]) -> MemoryLog:
    """Return the memory events of a compiled step; ``source`` is the log of the uncompiled one, and the fallback."""

    def work() -> MemoryLog:
        from .step import record  # Not here: it imports the compiler.

        try:
            return record(task)
        except NeedsValuesError:
            raise UnsupportedError("its code reads tensors' values") from None

    key, known = key_of(task), ANSWERS.setdefault(task.tree.modules[0], {})
    try:
        if any(moment.operator == "aten::_cudnn_rnn" for moment in source.moments):
            raise UnsupportedError("recurrent layers on CUDA, which torch.compile does not compile")
        log = known[key] if key in known else in_subprocess(work, SECONDS, tick)
    except UnsupportedError as error:
        return replace(source, assumptions=(*source.assumptions, f"{NOT_COMPILED}{error}"))
    if key is not None:
        known[key] = log
    first = len(log.moments)
    return replace(
        log,
        assumptions=(*log.assumptions, AS_COMPILED, *([COMPILED_ON_CUDA] if task.device.type == "cuda" else [])),
        moments=(*log.moments, *source.moments),
        kernels=tuple(replace(kernel, moment=first + kernel.moment) for kernel in source.kernels),
        mult_adds=source.mult_adds,
        uncounted=source.uncounted,
    )


def key_of(task: Task) -> bytes | None:
    """Return what identifies a step's answer; None if something that it depends on cannot be described."""
    imported: dict[str, Any] = sys.modules
    configs = [imported[name].get_hash() for name in CONFIGS if name in imported]
    precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    device = str(task.device), task.capability, task.cudnn.card, task.cudnn.how
    buffer = io.BytesIO()
    try:
        parts = task.tree.called, task.tree.modules, task.example, task.step, device, configs, precision
        _Describing(buffer).dump(parts)
    except Exception:  # Whatever a class raises that cannot be pickled.
        return None
    return hashlib.sha256(buffer.getvalue()).digest()


class _Describing(pickle.Pickler):
    """Pickles what an answer depends on: tensors without their values, functions with their code."""

    def reducer_override(self, value: Any) -> Any:
        """Describe what cannot be pickled, or may change behind its name."""
        kind = type(value)
        if isinstance(value, FunctionType):
            code = value.__code__
            used = {} if is_library(code.co_filename) else value.__globals__
            names = {name: used[name] for name in code.co_names if name in used}
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            return tuple, ((marshal.dumps(code), cells, value.__defaults__, value.__kwdefaults__, names),)
        is_private = kind.__module__.startswith("torch._") and not isinstance(value, nn.Module)
        if isinstance(value, Tensor):
            text = f"{kind} {value.shape} {value.stride()} {value.dtype} {value.device} {value.requires_grad}"
        elif isinstance(value, ModuleType):
            text = value.__name__
        elif is_private or (isinstance(value, type) and value.__module__ != "builtins"):
            text = f"{kind.__qualname__} {id(value)}"
        else:
            return NotImplemented
        return str, (text,)
