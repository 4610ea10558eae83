"""Rules for element-wise results that kernels lay out differently from torch's meta kernels.

On the CPU, ``TensorIteratorBase::compute_types`` casts operands to their common dtype before the result's strides are
computed; a copy of an expanded or sliced operand is dense (aten/src/ATen/TensorIterator.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..dtypes import result_type
from .kernel_tables import CPU_RULES, KERNEL_RULES, register
from .pointwise import CAST, Operand, broadcast, common_dtype, result, stretched
from .registry import FLOATS, NUMBERS, Out, Shape, dense_strides, fresh, is_dense, numel, preserved_strides, sure


def _casting(count: int, dtype_of: Callable[[torch.dtype], torch.dtype]) -> Callable[..., Out]:
    """Return the rule of an operator with ``count`` operands of several dtypes that are not all dense."""

    def rule(*args: Any, **options: Any) -> Out:
        tensors = [operand for operand in args[:count] if isinstance(operand, Tensor)]
        sure(len({tensor.dtype for tensor in tensors}) > 1 and not all(map(is_dense, tensors)))
        sure(not any(isinstance(value, (float, str)) for value in (*args[count:], *options.values())))
        common = common_dtype(args[:count])
        dtype = dtype_of(common)
        return _cast(tensors, dtype if dtype in FLOATS else common, dtype)

    return rule


def _cast(tensors: Sequence[Tensor], common: torch.dtype, dtype: torch.dtype) -> Out:
    """Return the result of operands that are first cast to their common dtype."""
    shape = broadcast([tensor.shape for tensor in tensors])
    sure(numel(shape))
    return shape, dense_strides(shape, [_steps(tensor, common, shape) for tensor in tensors]), dtype


def _steps(tensor: Tensor, dtype: torch.dtype, shape: Shape) -> list[int]:
    """Return the strides in the broadcast shape of a tensor, or of its cast to another dtype."""
    strides = tensor.stride() if tensor.dtype is dtype else preserved_strides(tensor)
    return stretched(tensor.shape, strides, shape)


for _name, (_count, _dtype_of) in CAST.items():
    register(CPU_RULES, _name)(_casting(_count, _dtype_of))


@register(KERNEL_RULES, "copysign.Tensor logaddexp logaddexp2 special_xlog1py igamma igammac hypot nextafter")
def of_two(x: Operand, other: Operand) -> Out:
    """Floating-point results in the iterator's layout, where the meta kernels are decompositions."""
    dtype = common_dtype((x, other))
    dtype = dtype if dtype in FLOATS else torch.get_default_dtype()
    tensors = [operand for operand in (x, other) if isinstance(operand, Tensor)]
    return _cast(tensors, dtype, dtype) if tensors[0].device.type == "cpu" else result(tensors, dtype)


@register(CPU_RULES, "div.Tensor_mode")
def divided(x: Tensor, other: Tensor, *, rounding_mode: str | None) -> Out:
    """The quotient of operands of several dtypes that are not all dense; floating-point unless it is rounded."""
    sure(x.dtype is not other.dtype and not (is_dense(x) and is_dense(other)))
    common = common_dtype((x, other))
    sure(common is not torch.bool)
    common = common if rounding_mode or common in FLOATS else torch.get_default_dtype()
    return _cast((x, other), common, common)


@register(KERNEL_RULES, "pow.Scalar")
def power(base: complex, exponent: Tensor) -> Out:
    """Row-major, because the kernel allocates its result before it iterates over the operands."""
    sure(exponent.dtype in NUMBERS or exponent.dtype.is_complex)
    dtype = result_type(base, exponent)
    sure(dtype is not torch.bool)
    return fresh(exponent.shape, dtype)


@register(KERNEL_RULES, "heaviside")
def heaviside(x: Tensor, values: Tensor) -> Out:
    """The step function, in the iterator's layout."""
    sure(x.dtype is values.dtype)
    return result((x, values), x.dtype)


@register(KERNEL_RULES, "isin.Tensor_Tensor isin.Tensor_Scalar")
def is_in(x: Tensor, tested: Operand, **_: bool) -> Out:
    """Row-major, for the same reason."""
    common_dtype((x, tested))
    return fresh(x.shape, torch.bool)


@register(KERNEL_RULES, "where.self")
def where(condition: Tensor, x: Tensor, other: Tensor) -> Out:
    """The choice by a mask of bytes, which is cast to booleans; the branches are cast to their common dtype."""
    sure(condition.dtype is torch.uint8)
    dtype = common_dtype((x, other))
    shape = broadcast([condition.shape, x.shape, other.shape])
    sure(numel(shape))
    steps = [_steps(condition, torch.bool, shape), _steps(x, dtype, shape), _steps(other, dtype, shape)]
    return shape, dense_strides(shape, steps), dtype


@register(KERNEL_RULES, "mse_loss_backward smooth_l1_loss_backward")
def loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, *_: float) -> Out:
    """The gradient is written into row-major zeros of the input's shape, which grow if it is larger (``Loss.cpp``)."""
    sure(x.dtype in FLOATS and {grad.dtype, target.dtype} <= NUMBERS)
    shape = broadcast([x.shape, target.shape, grad.shape])
    if shape == x.shape:
        return fresh(shape, x.dtype)
    sure(x.dtype is target.dtype is grad.dtype)
    return result((x, target, grad), x.dtype)


@register(KERNEL_RULES, "huber_loss_backward")
def huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Out:
    """The same, of a target of the input's dtype."""
    sure(x.dtype is target.dtype)
    return loss_backward(grad, x, target, reduction)  # type: ignore[return-value]


@register(KERNEL_RULES, "normal.float_Tensor normal.Tensor_float normal.Tensor_Tensor")
def normal(mean: Operand, deviation: Operand = 1.0, **_: object) -> Out:
    """Random numbers in a row-major tensor (``DistributionTemplates.h``)."""
    tensors = [operand for operand in (mean, deviation) if isinstance(operand, Tensor)]
    sure(tensors[0].dtype in FLOATS and all(tensor.dtype in NUMBERS for tensor in tensors))
    shape = broadcast([tensor.shape for tensor in tensors])
    return fresh(shape, tensors[0].dtype)


@register(KERNEL_RULES, "uniform")
def uniform(x: Tensor, *_: float, **__: object) -> Out:
    """Random numbers in a tensor created like the first argument."""
    sure(x.dtype in FLOATS)
    return x.shape, preserved_strides(x), x.dtype


@register(KERNEL_RULES, "rrelu_with_noise")
def leaky(x: Tensor, noise: Tensor, *_: object, **__: object) -> Out:
    """Row-major, in training and in evaluation (``Activation.cpp``)."""
    sure(x.dtype in FLOATS)
    return fresh(x.shape, x.dtype)


@register(KERNEL_RULES, "rrelu_with_noise_backward")
def leaky_backward(
    grad: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, *_: object
) -> Out:
    """In training the noise times the gradient, else as the gradient of ``leaky_relu``."""
    sure(grad.dtype is x.dtype is noise.dtype and x.dtype in FLOATS and grad.shape == x.shape == noise.shape)
    sure(numel(x.shape))
    return result((noise if training else x, grad), x.dtype)


@register(CPU_RULES, "nonzero_static")
def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Out:
    """Row-major positions."""
    return fresh((size, x.dim()), torch.int64)
