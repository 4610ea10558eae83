"""Nested arguments and results of modules: find, describe and replace their tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CoroutineType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn, strided

from ..data.records import Group, Structure, TensorSpec
from . import compat

DEEPEST = 12
"""Nesting depth at which the search for tensors stops; it also ends cycles."""

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, type, ModuleType, nn.Module)
"""Values that hold no tensors to change; those of an ``nn.Module`` and of imported code are their own."""


INERT = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, slice, type, type(Ellipsis), type(NotImplemented)}
    | {ModuleType}
    | {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format}
)
"""Types of values that cannot change and hold no tensor."""

_BOOKKEEPING = frozenset(vars(nn.Module()))


def own_attributes(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the attributes in which a module itself may hold tensors or modules, with their names."""
    own = []
    for name, value in vars(module).items():
        if name in _BOOKKEEPING or (kind := type(value)) in INERT:
            continue
        if kind is not tuple or not INERT.issuperset(map(type, value)):
            own.append((name, value))
    return own


def describe_tensors(value: Any, depth: int = 0) -> Structure:
    """Describe a value's tensors in their nesting; plain values are left out, and None means no tensors.

    >>> describe_tensors({"a": torch.zeros(2, 3), "n": 7})
    Group(items=(TensorSpec(shape=(2, 3), dtype='float32', nbytes=24, batch_axes=()),), names=('a',))
    """
    if isinstance(value, Tensor):
        return describe_tensor(value)
    if isinstance(value, PLAIN) or depth > DEEPEST:
        return None
    items: list[Structure] = []
    names: list[str] = []
    for name, item in parts(value):
        described = describe_tensors(item, depth + 1)
        if described is not None:
            items.append(described)
            names.append(str(name))
    if not items:
        return None
    return Group(tuple(items), None if isinstance(value, (list, tuple, set, frozenset)) else tuple(names))


def describe_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Structure:
    """Describe the tensors of a call; a single argument with tensors is described on its own."""
    described: list[Structure] = list(filter(None, map(describe_tensors, (*args, *kwargs.values()))))
    return described[0] if len(described) == 1 else (Group(tuple(described)) if described else None)


def describe_tensor(tensor: Tensor) -> Structure:
    """Describe shape, dtype and bytes of a tensor; a nested tensor is the group of its rows."""
    if tensor.is_nested:
        with compat.no_modes():
            return Group(tuple(describe_tensor(row) for row in tensor.unbind()))
    if tensor.layout is strided and (type(tensor) in CLASSES or not is_wrapper(tensor)):
        return _strided_spec(tensor.shape, tensor.dtype)
    return TensorSpec(tuple(tensor.shape), dtype_name(tensor.dtype), held_bytes(tensor))


@lru_cache(maxsize=4096)
def _strided_spec(shape: torch.Size, dtype: torch.dtype) -> TensorSpec:
    return TensorSpec(tuple(shape), dtype_name(dtype), shape.numel() * dtype.itemsize)


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name as records spell it.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def held_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements; of a wrapper or sparse tensor, those of its parts.

    >>> held_bytes(torch.eye(4).to_sparse())
    80
    """
    parts = inner_tensors(tensor)
    return sum(map(held_bytes, parts)) if parts else tensor.numel() * tensor.element_size()


_COMPRESSED = {
    torch.sparse_csr: ("values", "crow_indices", "col_indices"),
    torch.sparse_bsr: ("values", "crow_indices", "col_indices"),
    torch.sparse_csc: ("values", "ccol_indices", "row_indices"),
    torch.sparse_bsc: ("values", "ccol_indices", "row_indices"),
    torch.sparse_coo: ("_values", "_indices"),
}
SPARSE = frozenset(_COMPRESSED)
"""The layouts of sparse tensors."""


def inner_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that hold the elements of a wrapper or sparse tensor; none for other tensors.

    >>> [tuple(part.shape) for part in inner_tensors(torch.eye(3).to_sparse())]
    [(3,), (2, 3)]
    """
    if tensor.layout in _COMPRESSED:
        with compat.no_modes():
            return [getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]]
    return [getattr(tensor, name) for name in inner_names(tensor)] if is_wrapper(tensor) else []


def is_wrapper(tensor: Tensor) -> bool:
    """Whether a tensor's class dispatches its own operators to inner tensors that hold the elements."""
    kind = type(tensor)
    if kind in CLASSES or kind.__torch_dispatch__ is Tensor.__torch_dispatch__:
        return False
    known = _WRAPPERS.get(kind)
    if known is None:
        try:
            tensor.untyped_storage().data_ptr()
            known = False
        except (RuntimeError, NotImplementedError):
            known = bool(inner_names(tensor))
        _WRAPPERS[kind] = known
    return known


CLASSES: set[type] = {*compat.PLAIN}
"""Tensor classes without behaviour of their own: torch's, and the class of fakes."""


_WRAPPERS: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def inner_names(tensor: Tensor) -> list[str]:
    """Return the attributes that hold a wrapper's inner tensors: those it flattens to, or else all of them."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    names = (*vars(tensor), *slot_values(tensor)) if flatten is None else flatten()[0]
    return [name for name in names if isinstance(getattr(tensor, name, None), Tensor)]


def logical_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape a weight stands for; for packed elements (bitsandbytes), the original weight's."""
    state = getattr(tensor, "quant_state", None)
    return tuple(tensor.shape if state is None else getattr(state, "shape", None) or tensor.shape)


_CODE = (FunctionType, BuiltinFunctionType, MethodType, partial)


def parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the named parts of a container or object, in order: items, keys and values, attributes."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from enumerate(value)
    elif not isinstance(value, _CODE):
        yield from {**getattr(value, "__dict__", {}), **slot_values(value)}.items()


_SLOTS: WeakKeyDictionary[type, list[MemberDescriptorType]] = WeakKeyDictionary()


def slots_of(kind: type) -> list[MemberDescriptorType]:
    """Return the slots of a class and its bases, also those that a property hides."""
    if kind not in _SLOTS:
        attributes = (value for base in kind.__mro__ if "__slots__" in vars(base) for value in vars(base).values())
        _SLOTS[kind] = [value for value in attributes if isinstance(value, MemberDescriptorType)]
    return _SLOTS[kind]


def slot_values(value: Any) -> dict[str, Any]:
    """Return what is in an object's slots, by name."""
    values = {}
    for slot in slots_of(type(value)):
        with suppress(AttributeError):  # It may be empty.
            values[slot.__name__] = slot.__get__(value)
    return values


def all_tensors(value: Any) -> list[Tensor]:
    """Return every tensor of a value, in order. Nothing is copied, so objects that cannot be copied work too."""
    return list(_search(value, (Tensor,), 0, set()))


def _search(value: Any, kinds: tuple[type, ...], depth: int, seen: set[int]) -> Iterator[Any]:
    """Yield the objects of some kinds in a value; each is searched once, since references may form cycles."""
    if isinstance(value, kinds):
        yield value
    elif not isinstance(value, PLAIN) and depth <= DEEPEST:
        if hasattr(value, "__dict__"):
            if id(value) in seen:
                return
            seen.add(id(value))
        for _, item in parts(value):
            yield from _search(item, kinds, depth + 1, seen)


_CACHES = ("past_key_values", "cache_params", "mems")


_SUSPENDED = {GeneratorType: "gi_frame", CoroutineType: "cr_frame", AsyncGeneratorType: "ag_frame"}
"""Code that runs where it is consumed, and the attribute in which it has its frame until it has finished."""


def suspended_code(value: Any) -> list[Any]:
    """Return the generators and coroutines in a value, whose code runs only where they are consumed."""
    return [] if isinstance(value, Tensor) else list(_search(value, (*_SUSPENDED,), 0, set()))


def kinds_left(code: Iterable[Any]) -> list[str]:
    """Return the kinds of the generators and coroutines that have not finished; coroutines are closed."""
    kinds = []
    for item in code:
        if getattr(item, _SUSPENDED[type(item)]):
            kinds.append(type(item).__name__.replace("_", " "))
            if isinstance(item, CoroutineType):
                item.close()  # Without a warning that it was never awaited.
    return kinds


def not_run(kinds: Iterable[str]) -> str:
    """Return the sentence about the generators and coroutines that a forward returned; "" without any."""
    names = " and a ".join(dict.fromkeys(kinds)).replace("a async", "an async")
    article = "an" if names.startswith("async") else "a"
    return f"the forward returned {article} {names}, whose code did not run" if names else ""


def cached_tensors(output: Any) -> list[Tensor]:
    """Return the tensors of an output's cache, by transformers' names: keys and values, or recurrent states."""
    if isinstance(output, Tensor):
        return []
    return all_tensors([getattr(output, name, None) for name in _CACHES])


def first_tensor(value: Any) -> Tensor | None:
    """Return the first tensor with at least one axis, or None."""
    return next((tensor for tensor in all_tensors(value) if tensor.dim()), None)


def shapes_text(values: Sequence[Any], named: Mapping[str, Any]) -> str:
    """Format a call's arguments for an error message: shapes and dtypes of tensors, other values as they are."""
    texts = [_argument_text(value) for value in values]
    return ", ".join(texts + [f"{name}={_argument_text(value)}" for name, value in named.items()]) or "nothing"


def _argument_text(value: Any) -> str:
    if isinstance(value, Tensor) and value.is_nested:
        return f"nested of {value.size(0)} {dtype_name(value.dtype)}"
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {dtype_name(value.dtype)}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(_argument_text, value)) + ")"
    return repr(value) if isinstance(value, (type(None), bool, int, float, str)) else type(value).__name__
