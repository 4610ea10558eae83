"""Tensor subclasses as users and libraries write them: wrappers of other tensors, and some with a storage."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


def _wrapper(cls: Any, like: Tensor, dtype: torch.dtype) -> Any:
    return Tensor._make_wrapper_subclass(cls, like.size(), strides=like.stride(), dtype=dtype, device=like.device)


class Scaled(Tensor):
    """Integers and a scale for each row, made whole again for every operator: a quantised weight."""

    data8: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls: Any, data8: Tensor, scale: Tensor) -> Any:
        return _wrapper(cls, data8, scale.dtype)

    def __init__(self, data8: Tensor, scale: Tensor) -> None:
        self.data8, self.scale = data8, scale

    @classmethod
    def of(cls, weight: Tensor) -> Scaled:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def whole(self) -> Tensor:
        return self.data8.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["data8", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: None, size: Any, stride: Any) -> Scaled:
        return cls(inner["data8"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(cls, kind) for kind in types):
            return NotImplemented
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten.alias.default):
            return cls(func(args[0].data8), func(args[0].scale))
        return func(*tree_map_only(Scaled, Scaled.whole, args), **tree_map_only(Scaled, Scaled.whole, kwargs or {}))


class Both(Tensor):
    """Two tensors that share their life: each operator runs on both; does not say how it is flattened."""

    first: Tensor
    second: Tensor

    @staticmethod
    def __new__(cls: Any, first: Tensor, second: Tensor) -> Any:
        return _wrapper(cls, first, first.dtype)

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = func(*tree_map_only(Both, lambda pair: pair.first, args), **kwargs)
        second = func(*tree_map_only(Both, lambda pair: pair.second, args), **kwargs)
        if isinstance(first, Tensor):
            return args[0] if func._schema.name.endswith("_") else cls(first, second)
        return first


class Tagged(Tensor):
    """A tensor with its own storage and an attribute; results of operators are of its class."""

    scale: Tensor | None = None


class Scaling(nn.Parameter):
    scale: Tensor

    def scaled(self) -> Tensor:
        return self * self.scale
