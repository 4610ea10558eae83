"""Everything that a summary must leave unchanged, as one comparable value.

`snapshot` reads: the model's whole graph of attributes (by identity and by content), every tensor's bytes, gradient and
flags, hooks, modes, classes, the states of the random generators, and torch's global switches.
"""

import ctypes
import logging
import random
from collections import deque
from dataclasses import fields, is_dataclass
from inspect import getattr_static
from typing import Any

import numpy as np
import torch
import torch._dynamo  # it sets up torch's loggers: here, not between two snapshots
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils import _python_dispatch

State = dict[str, Any]

METHODS = ("__call__", "_call_impl", "_wrapped_call_impl", "__getattr__", "__setattr__", "forward", "train", "apply")

LOGGERS = {name: logging.getLogger(name) for name in [*logging.root.manager.loggerDict] if name.startswith("torch")}


def snapshot(model: nn.Module, *others: Any) -> State:
    """The state of ``model``, of ``others`` (inputs, an optimizer) and of the process, as path -> comparable value.

    The values hold the objects themselves where identity counts, so that no address can be used again meanwhile.
    """
    state: State = _process()
    walk = _Walk(state)
    walk.read("model", model)
    for number, other in enumerate(others):
        walk.read(f"input {number}", other)
    for name, module in model.named_modules(remove_duplicate=False):
        kind = type(module)
        state[f"class of {name!r}"] = [Same(kind), *(Same(getattr_static(kind, a)) for a in ("forward", "__call__"))]
    if not any(module._state_dict_hooks or module._state_dict_pre_hooks for module in model.modules()):
        for key, tensor in model.state_dict(keep_vars=True).items():
            state[f"state_dict {key!r}"] = elements(tensor) if isinstance(tensor, Tensor) else repr(tensor)
    return state


class Same:
    """Equal to another only if both hold the very same objects."""

    def __init__(self, *things: object) -> None:
        self.things = things

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and [*map(id, self.things)] == [*map(id, other.things)]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return ", ".join(f"<{type(thing).__name__} at {id(thing):x}>" for thing in self.things)


class _Walk:
    """Reads a graph of objects into a flat state; an object met again is only named."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.met: dict[int, str] = {}

    def read(self, path: str, value: Any) -> None:
        self.state[path] = value if isinstance(value, (int, float, str, bool, type(None))) else Same(value)
        if id(value) in self.met or isinstance(value, (int, float, str, bool, type(None), type)):
            return
        self.met[id(value)] = path
        if isinstance(value, Tensor):
            self.state[f"{path}: tensor"] = contents(value)
            self.entries(f"{path}: dict", vars(value))
            self.read(f"{path}.grad", value.grad if value.is_leaf else None)
        elif isinstance(value, torch.jit.ScriptModule):
            self.state[f"{path}: mode"] = value.training
        elif isinstance(value, (nn.Module, torch.optim.Optimizer, torch.amp.GradScaler)):
            self.entries(path, vars(value))
        elif isinstance(value, dict):
            self.entries(path, value)
        elif isinstance(value, (list, tuple, deque)):
            self.entries(path, dict(enumerate(value)))
        elif isinstance(value, (torch.Generator, random.Random, np.random.RandomState, np.random.Generator)):
            self.state[f"{path}: generator"] = _generator(value)
        elif isinstance(value, (bytearray, np.ndarray)):
            self.state[f"{path}: bytes"] = bytes(value)
        elif isinstance(value, (set, frozenset)):
            self.state[f"{path}: set"] = sorted(map(repr, value))
        elif is_dataclass(value):
            self.entries(path, {f.name: getattr(value, f.name) for f in fields(value)})
        elif type(value).__module__.startswith("zoo"):
            self.entries(path, vars(value))

    def entries(self, path: str, named: Any) -> None:
        """The keys, in their order, and each value."""
        self.state[f"{path}: keys"] = [k if isinstance(k, (str, int)) else Same(k) for k in named]
        for number, (key, value) in enumerate(list(named.items())):
            self.read(f"{path}.{key if isinstance(key, (str, int)) else number}", value)


def contents(tensor: Tensor) -> tuple[Any, ...]:
    """What a tensor is: its class, flags and place, and its elements to the last byte."""
    place = None
    if not isinstance(tensor, UninitializedTensorMixin) and tensor.layout == torch.strided and not tensor.is_nested:
        place = (tensor.stride(), tensor.storage_offset(), 0 if tensor.is_meta else tensor.data_ptr())
    return (Same(type(tensor)), tensor.requires_grad, tensor.is_leaf, place, elements(tensor))


def elements(tensor: Tensor) -> tuple[Any, ...]:
    """The dtype, the device, the shape, and the bytes."""
    kind = (str(tensor.dtype), str(tensor.device))
    if isinstance(tensor, UninitializedTensorMixin):
        return kind
    tensor = tensor.detach()
    if tensor.is_nested:
        return (*kind, *map(elements, tensor.unbind()))
    kind = (*kind, tuple(tensor.shape))
    if tensor.layout == torch.sparse_coo:
        return (*kind, elements(tensor._indices()), elements(tensor._values()))
    if tensor.is_meta:
        return kind
    if hasattr(tensor, "to_local"):
        return (*kind, elements(tensor.to_local()))
    storage = tensor.untyped_storage()
    return (*kind, ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b"")


def _generator(value: Any) -> Any:
    """The state of one random generator of any make."""
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    return (
        _numbers_of(value.get_state()) if isinstance(value, np.random.RandomState) else repr(value.bit_generator.state)
    )


def _numbers_of(state: Any) -> tuple[Any, ...]:
    """The state of one of numpy's older generators."""
    return tuple(part.tobytes() if isinstance(part, np.ndarray) else part for part in state)


def _process() -> State:
    """The generators, and the switches of torch that a pass may touch."""
    hooks = [name for name in vars(torch_module) if name.startswith("_global_") and name.endswith("_hooks")]
    state: State = {
        "python's generator": random.getstate(),
        "numpy's generator": _numbers_of(np.random.get_state()),
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.empty(0).device),
        "dispatch modes": len(_python_dispatch._get_current_dispatch_mode_stack()),
        "function modes": torch._C._len_torch_function_stack(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "global hooks": {name: list(getattr(torch_module, name)) for name in hooks},
        "nn.Module": {name: Same(vars(nn.Module).get(name)) for name in METHODS},
        "torch.Tensor": Same(*(value for name, value in vars(Tensor).items() if name != "__doc__")),
    }
    state["loggers"] = {
        name: (logger.level, logger.disabled, logger.propagate, logger.filters[:], logger.handlers[:])
        for name, logger in LOGGERS.items()
    }
    return state


def changes(before: State, after: State) -> list[str]:
    """The paths whose values differ, each with both values."""
    paths = [*before, *(path for path in after if path not in before)]
    missing = object()
    return [
        f"{path}: {_short(before.get(path))} -> {_short(after.get(path))}"
        for path in paths
        if before.get(path, missing) != after.get(path, missing)
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 120 else text[:117] + "..."
