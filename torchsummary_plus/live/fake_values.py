"""Inputs with values, and how code reads a fake's: from the kernels, as an array, or as a number nothing depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .compat import no_dispatch, no_function

MASK = 1 << 21
"""Largest integer tensor, in elements, whose values a fake pass keeps, so that they can steer the forward."""


def real_input(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a real input: uniform in [0, 1) for floating-point dtypes, else zeros. No global RNG is advanced."""
    if device.type == "meta":
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        generator = torch.Generator("cpu").manual_seed(0)
        return torch.rand(tuple(shape), dtype=wide, generator=generator, device="cpu").to(device=device, dtype=dtype)
    return torch.zeros(tuple(shape), dtype=dtype, device=device)


class _ArrayMemory:
    """The memory of an array, which keeps alive the tensors that own it."""

    def __init__(self, values: Any, *owners: Tensor) -> None:
        self.__array_interface__ = values.__array_interface__
        self.owners = values, owners


def check_readable(tensor: Tensor) -> None:
    """Raise the exceptions of :meth:`torch.Tensor.numpy`."""
    if tensor.is_cuda:
        raise TypeError(f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() first.")
    if tensor.requires_grad:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")


def array_of(values: Tensor, tensor: Tensor) -> Any:
    """Return a CPU tensor's values as an array that keeps ``tensor`` alive too.

    >>> import torch
    >>> array_of(torch.arange(3), torch.empty(3)).tolist()
    [0, 1, 2]
    """
    import numpy

    with no_dispatch(), no_function():  # Tensor.numpy() detaches; the question has been counted.
        return numpy.asarray(_ArrayMemory(values.numpy(), tensor))


class UndecidedFloat(float):
    """A placeholder for a fake tensor's value: it can be printed or logged, but raises when a decision needs it.

    It is an ordinary number once its pass has ended.
    """

    def __new__(cls, value: float, refusal: Callable[[], None]) -> UndecidedFloat:
        fake = super().__new__(cls, value)
        fake.refusal = refusal
        return fake

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)

    refusal: Callable[[], None]
    __hash__ = float.__hash__


def _deciding(name: str) -> Callable[..., Any]:
    def decide(self: UndecidedFloat, *others: Any) -> Any:
        self.refusal()
        return getattr(float, name)(self, *others)

    return decide


def _reckoning(name: str) -> Callable[..., Any]:
    def reckon(self: UndecidedFloat, *others: Any) -> Any:
        value = getattr(float, name)(self, *others)
        return UndecidedFloat(value, self.refusal) if isinstance(value, float) else value

    return reckon


for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "trunc", "round", "floor", "ceil"):
    setattr(UndecidedFloat, f"__{_name}__", _deciding(f"__{_name}__"))
for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs"):
    setattr(UndecidedFloat, f"__{_name}__", _reckoning(f"__{_name}__"))
