"""What is asked, and this process's answers, kept while their models live: compiling takes longer than all else."""

from __future__ import annotations

import hashlib
import io
import marshal
import pickle
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..data.capability import Capability
from ..data.memory_records import MemoryLog
from ..live.copying import is_library
from ..ops.scratch.cuda.cudnn.queries import Cudnn
from ..step.step import Step
from ..table.inputs import Example
from ..table.modules import ModuleTree


@dataclass(frozen=True)
class CompiledStep:
    """A step, and the device with its kernels; the tree knows the compiled model around its modules."""

    tree: ModuleTree
    example: Example
    step: Step
    device: torch.device
    capability: Capability | None
    cudnn: Cudnn


ANSWERS: MutableMapping[nn.Module, dict[bytes, MemoryLog]] = WeakKeyDictionary()
CONFIGS = "torch._dynamo.config", "torch._functorch.config", "torch._inductor.config"


class _Describing(pickle.Pickler):
    """Pickles what an answer depends on: tensors without their values, functions with their code."""

    def reducer_override(self, value: Any) -> Any:
        """Describe what cannot be pickled, or may change behind its name."""
        if isinstance(value, Tensor):
            place = value.shape, value.stride(), value.dtype, value.device, value.requires_grad
            return str, (repr((type(value), *place)),)
        if isinstance(value, type) and value.__module__ != "builtins":
            return str, (f"{value.__qualname__} {id(value)}",)
        if isinstance(value, FunctionType):
            code = value.__code__
            used = {} if is_library(code.co_filename) else value.__globals__
            names = {name: used[name] for name in code.co_names if name in used}
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            return tuple, ((marshal.dumps(code), cells, value.__defaults__, value.__kwdefaults__, names),)
        if isinstance(value, ModuleType):
            return str, (value.__name__,)
        if type(value).__module__.startswith("torch._") and not isinstance(value, nn.Module):
            return str, (f"{type(value).__qualname__} {id(value)}",)
        return NotImplemented


def key_of(step: CompiledStep) -> bytes | None:
    """Return what identifies a step's answer; None if something that it depends on cannot be described."""
    imported: dict[str, Any] = sys.modules
    configs = [imported[name].get_hash() for name in CONFIGS if name in imported]
    precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    device = str(step.device), step.capability, step.cudnn.card, step.cudnn.how
    buffer = io.BytesIO()
    try:
        parts = step.tree.called, step.tree.modules, step.example, step.step, device, configs, precision
        _Describing(buffer).dump(parts)
    except Exception:  # Whatever a class raises that cannot be pickled.
        return None
    return hashlib.sha256(buffer.getvalue()).digest()
