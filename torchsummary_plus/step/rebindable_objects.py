"""What a step can replace by rebinding a name: containers, objects of Python classes, and other models."""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict, deque
from copy import copy
from types import CellType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..live.code_names import package_of
from ..live.reach import Reached
from ..live.structures import slot_names
from ..trace.swap import MODULE_DICTS

KINDS = frozenset({list, dict, set, deque, defaultdict, OrderedDict})
TENSORS = ("_parameters", "_buffers", "_modules")
"""A module's dictionaries whose entries a step may replace."""


def is_replaceable(value: Any) -> bool:
    """Whether :func:`duplicate` can copy a value: a container, a module, or an object with attributes and no more."""
    kind: Any = type(value)
    if kind in KINDS:
        return True
    if kind.__new__ is not object.__new__ or hasattr(kind, "__del__"):
        return False
    if isinstance(value, (Optimizer, torch.jit.ScriptModule)) or slot_names(value):
        return False
    return isinstance(getattr(value, "__dict__", None), dict)


def duplicate(value: Any) -> Any:
    """Return a container with the same items, or an object with the same attributes, made without a constructor."""
    if type(value) in KINDS:
        return copy(value)
    new = object.__new__(type(value))
    vars(new).update(vars(value))
    if isinstance(value, nn.Module):
        vars(new).update({name: copy(vars(value)[name]) for name in MODULE_DICTS if name in vars(value)})
    return new


def parts(value: Any) -> list[Any]:
    """Return what holds a value's entries: a container itself, an object's attributes, a module's dictionaries."""
    if type(value) in KINDS:
        return [value]
    return [vars(value), *(vars(value)[name] for name in TENSORS)] if isinstance(value, nn.Module) else [vars(value)]


def items(part: Any) -> list[tuple[Any, Any]]:
    """Return the keys and values of a part; those of a set have its order for keys."""
    return list(part.items() if isinstance(part, dict) else enumerate(part))


def is_known_weakly(value: Any) -> bool:
    """Whether weak references lead to a value, as from a user's cache; torch's compiler keeps one to each module."""
    return any(package_of(reference.__callback__) != "torch" for reference in weakref.getweakrefs(value))


def is_rebound(place: tuple[Any, Any], value: Any, reach: Reached) -> bool:
    """Whether a step's code may put another object in the place of this one; it names what it assigns."""
    holder, key = place
    if isinstance(holder, CellType):
        return reach.cell_names.get(id(holder)) in reach.rebinds
    is_item = not isinstance(value, nn.Module) and type(holder) in KINDS and id(holder) not in reach.namespaces
    return is_item or key in reach.rebinds
