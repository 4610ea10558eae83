"""Swap a model's tensors for those of a pass; :func:`.restore.restored` undoes it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..live.fakes import Fake
from ..live.offloading import AS_THEY_ARE, Away, absent, swap_offloaded
from ..live.structures import is_wrapper
from .kernels import SMALL
from .restore import DEEPEST, OPAQUE, PLAIN, script_tensors
from .user_logs import INERT

Swap = Callable[[torch.Tensor], torch.Tensor]


def swap_tensors(modules: Sequence[nn.Module], parameter: Swap, other: Swap, away: Away = AS_THEY_ARE) -> None:
    """Swap every parameter for ``parameter(p)``, every buffer and tensor attribute for ``other(t)``.

    Offloaded weights follow ``away``. A tensor held in several places gets one replacement. Call it inside
    :func:`restored`, which undoes it.
    """
    stand_ins: dict[int, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        replacement = stand_ins.get(id(tensor))
        if replacement is None:
            if not is_wrapper(tensor) and not isinstance(tensor, Fake):  # A fake's known values stay real.
                _swap_inside(vars(tensor), stand_in)
            change = parameter if isinstance(tensor, nn.Parameter) else other
            replacement = stand_ins[id(tensor)] = change(tensor)
        return replacement

    def small_or_stand_in(tensor: torch.Tensor) -> torch.Tensor:
        return stand_in(tensor) if id(tensor) in stand_ins or tensor.numel() > SMALL else tensor

    for module in modules:
        stand_ins.update({id(tensor): away.missing(tensor) for tensor in absent(module)})
        swap_offloaded(module, away)
    for module in modules:
        _swap_in_module(module, stand_in)
    for module in modules:
        for name, value in vars(module).items():
            if name not in MODULE_DICTS and name != "_hf_hook":
                _swap_inside_object(value, small_or_stand_in)
    stand_ins.clear()  # These functions refer to each other and would keep it alive until garbage collection.


def separate_buffers(modules: Sequence[nn.Module], again: Swap) -> None:
    """Put ``again(b)`` into every module but the first that holds a buffer ``b``.

    ``Module.to`` copies it for each of them, while a parameter remains the same object.
    """
    seen: set[int] = set()
    for module in dict.fromkeys(modules):
        buffers = vars(module).get("_buffers")
        if not isinstance(buffers, dict):
            continue
        for name, buffer in buffers.items():
            if buffer is not None and not isinstance(buffer, nn.Parameter):
                if id(buffer) in seen:
                    buffers[name] = again(buffer)
                seen.add(id(buffer))


MODULE_DICTS = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))


def _swap_in_module(module: nn.Module, stand_in: Swap) -> None:
    """Swap a module's parameters, buffers and tensor attributes, also those in its lists and dicts."""
    attributes = vars(module)
    if isinstance(module, torch.jit.ScriptModule):
        for name, tensor in script_tensors(module):
            module._c.setattr(name, stand_in(tensor))
    for tensors in (attributes.get("_parameters"), attributes.get("_buffers")):
        if isinstance(tensors, dict):
            tensors.update({name: stand_in(tensor) for name, tensor in tensors.items() if tensor is not None})
    for name, value in attributes.items():
        if type(value) in weakref.ProxyTypes:
            continue
        if isinstance(value, torch.Tensor):
            attributes[name] = stand_in(value)
        elif type(value) in (list, dict) and value and name not in MODULE_DICTS:
            _swap_inside(value, stand_in)


def _swap_inside(container: Any, stand_in: Swap, depth: int = 0) -> None:
    """Swap the tensors in a list or dict, and an RNN's weak references to its weights."""
    for key, value in container.items() if isinstance(container, dict) else enumerate(container):
        if type(value) in weakref.ProxyTypes:
            continue
        if isinstance(value, torch.Tensor):
            container[key] = stand_in(value)
        elif isinstance(value, weakref.ref):
            tensor = value()
            if isinstance(tensor, torch.Tensor):
                container[key] = weakref.ref(stand_in(tensor))
        elif type(value) in (list, dict) and depth < DEEPEST:
            _swap_inside(value, stand_in, depth + 1)
        else:
            _swap_inside_object(value, stand_in, depth + 1)


def _swap_inside_object(value: Any, stand_in: Swap, depth: int = 0) -> None:
    """Swap the tensors inside a user-defined object, such as the state of a quantised weight."""
    kind = type(value)
    if (
        depth >= DEEPEST
        or kind in INERT
        or kind in PLAIN
        or kind in weakref.ProxyTypes
        or isinstance(value, (*OPAQUE, torch.Tensor))
    ):
        return
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is dict and attributes and not callable(value):
        _swap_inside(attributes, stand_in, depth)
