"""Rules for element-wise operators (broadcasting, type promotion, strides as in TensorIterator), reductions and losses.

Sources: ``aten/src/ATen/TensorIterator.cpp`` (shapes, strides) and ``native/TypeProperties.cpp`` (``result_type``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..dtypes import HALVES, result_type
from ..strides import contiguous
from .registry import (
    FLOATS,
    NUMBERS,
    Out,
    Outs,
    Shape,
    Sizes,
    Unsure,
    axis_of,
    channels_last,
    dense_strides,
    floats_of,
    fresh,
    is_contiguous,
    is_contiguous_channels_last,
    is_dense,
    numel,
    preserved_strides,
    rule,
    sure,
)

Operand: TypeAlias = "Tensor | float | int | bool"

WORDS = ("none", "tanh", "floor", "trunc")
"""The options of element-wise operators that are words: how gelu approximates, and how a quotient is rounded."""


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the broadcast shape."""
    rank = max(map(len, shapes))
    common = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                sure(common[axis] in (1, size))
                common[axis] = size
    return tuple(common)


def layout(shape: Shape, tensors: Sequence[Tensor], alike: bool = True) -> Shape:
    """Return the strides of an element-wise result; ``alike`` is False if a further operand is a number."""
    if alike and all(tensor.shape == shape for tensor in tensors):
        if all(map(is_contiguous, tensors)):
            return contiguous(shape)
        if all(map(is_contiguous_channels_last, tensors)):
            return channels_last(shape)
        if all(map(is_dense, tensors)) and len({tensor.stride() for tensor in tensors}) == 1:
            return tensors[0].stride()
    sure(numel(shape))
    operands = []
    for tensor in tensors:
        missing = len(shape) - tensor.dim()
        steps = [0 if a == 1 != b else step for a, b, step in zip(tensor.shape, shape[missing:], tensor.stride())]
        operands.append([0] * missing + steps)  # A stride is 0 where the tensor is expanded.
    return dense_strides(shape, operands)


def promoted(operands: Sequence[Operand]) -> torch.dtype:
    """Return the dtype that real operands are promoted to; no rule if casting a tensor would change its layout.

    CUDA kernels cast each element as they read it.
    """
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    is_alike = len({tensor.dtype for tensor in tensors}) == 1 or all(map(is_dense, tensors))
    sure(is_alike or any(tensor.device.type == "cuda" for tensor in tensors))
    sure(all(operand.dtype in NUMBERS if isinstance(operand, Tensor) else is_real(operand) for operand in operands))
    return result_type(*operands)


def is_real(number: object) -> bool:
    """Whether a number is one of Python's, and not complex."""
    return isinstance(number, (bool, int, float))


def result(operands: Sequence[Operand], dtype: torch.dtype) -> Out:
    """Return the new tensor of an element-wise operator."""
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    shape = broadcast([tensor.shape for tensor in tensors])
    return shape, layout(shape, tensors, len(tensors) == len(operands) or not shape), dtype


def written(into: Tensor, others: Sequence[Operand], dtype: torch.dtype) -> int:
    """Return the answer of an operator that writes a result of this dtype into its first argument."""
    shapes = [other.shape for other in others if isinstance(other, Tensor)]
    sure(broadcast([into.shape, *shapes]) == into.shape and torch.can_cast(dtype, into.dtype))
    sure(all(size < 2 or step for size, step in zip(into.shape, into.stride())))
    return 0


def _only(is_common: Callable[[torch.dtype], bool]) -> Callable[[torch.dtype], torch.dtype]:
    """Return a function that returns such dtypes and declines others."""

    def checked(common: torch.dtype) -> torch.dtype:
        sure(is_common(common))
        return common

    return checked


_not_bool = _only(lambda common: common is not torch.bool)
_floating = _only(lambda common: common in FLOATS)
_not_float = _only(lambda common: common not in FLOATS)


def _to_float(common: torch.dtype) -> torch.dtype:
    return common if common in FLOATS else torch.get_default_dtype()


def _to_bool(common: torch.dtype) -> torch.dtype:
    return torch.bool


def _elementwise(
    names: str, overloads: str, count: int, dtype_of: Callable[[torch.dtype], torch.dtype], in_place: bool = True,
    casts: bool = True,
) -> None:  # fmt: skip
    """Register operators of ``count`` operands, followed only by numbers and options, and their in-place forms."""

    def dtype(args: Sequence[Any], options: Iterable[Any]) -> torch.dtype:
        operands = args[:count]
        sure(casts or len({operand.dtype for operand in operands if isinstance(operand, Tensor)}) == 1)
        common = dtype_of(promoted(operands))
        for value in (*args[count:], *options):
            sure(not isinstance(value, complex) and (not isinstance(value, str) or value in WORDS))
            sure(common in FLOATS or not isinstance(value, (float, str)))
        return common

    def apart(*args: Any, **options: Any) -> Out:
        return result(args[:count], dtype(args, options.values()))

    def in_first(*args: Any, **options: Any) -> int:
        return written(args[0], args[1:count], dtype(args, options.values()))

    for name in names.split():
        into = f"__i{name[2:]}" if name.startswith("__") else f"{name}_"
        for overload in overloads.split():
            rule(name + overload.removeprefix("default"))(apart)
            if in_place:
                rule(into + overload.removeprefix("default"))(in_first)


_elementwise("abs ceil floor nan_to_num neg relu round sgn sign square trunc", "default", 1, _not_bool)
_elementwise("bitwise_not", "default", 1, _not_float)
_elementwise("celu elu frac gelu hardsigmoid hardswish hardtanh", "default", 1, _floating)
_elementwise("leaky_relu mish selu silu threshold", "default", 1, _floating)
_elementwise("hardshrink softplus softshrink", "default", 1, _floating, in_place=False)
_elementwise("acos acosh asin asinh atan atanh cos cosh digamma erf erfc erfinv", "default", 1, _to_float)
_elementwise("exp exp2 expm1 i0 lgamma log log10 log1p log2 logit reciprocal", "default", 1, _to_float)
_elementwise("rsqrt sigmoid sin sinc sinh sqrt tan tanh", "default", 1, _to_float)
_elementwise("logical_not", "default", 1, _to_bool)
_elementwise("isinf isnan isneginf isposinf signbit", "default", 1, _to_bool, in_place=False)
_elementwise("add sub mul remainder fmod", ".Tensor .Scalar", 2, _not_bool)
_elementwise("rsub", ".Scalar", 2, _not_bool, in_place=False)
_elementwise("maximum minimum fmax fmin floor_divide", "default", 2, _not_bool, in_place=False)
_elementwise("bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__", ".Tensor .Scalar", 2, _not_float)
_elementwise("div true_divide", ".Tensor .Scalar", 2, _to_float)
_elementwise("atan2", "default", 2, _to_float)
_elementwise("xlogy", ".Tensor", 2, _to_float)
_elementwise("eq ne lt le gt ge", ".Tensor .Scalar", 2, _to_bool)
_elementwise("logical_and logical_or logical_xor", "default", 2, _to_bool)
_elementwise("_prelu_kernel", "default", 2, _floating, in_place=False, casts=False)
_elementwise("lerp", ".Scalar", 2, _floating, casts=False)
_elementwise("lerp", ".Tensor", 3, _floating, casts=False)
_elementwise("addcmul addcdiv", "default", 3, _floating, casts=False)


@rule("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(base: Operand, exponent: Operand) -> Out:
    """The power, of a number row-major; no rule for negative exponents of integers."""
    dtype = _not_bool(promoted((base, exponent)))
    if not isinstance(exponent, Tensor):
        sure(dtype in FLOATS or exponent >= 0)
        return result((base,), dtype)
    return result((base, exponent), dtype) if isinstance(base, Tensor) else fresh(exponent.shape, dtype)


@rule("where.self")
def where(condition: Tensor, x: Tensor, other: Tensor) -> Out:
    """The broadcast choice between two operands by a boolean condition."""
    sure(condition.dtype is torch.bool)
    return result((condition, x, other), promoted((x, other)))


@rule("clamp", "clamp.Tensor", "clamp_min", "clamp_min.Tensor", "clamp_max", "clamp_max.Tensor")
def clamp(x: Tensor, *limits: Operand | None, **named: Operand | None) -> Out:
    """The input within one or two limits, numbers or tensors."""
    bounds = [limit for limit in (*limits, *named.values()) if limit is not None]
    sure(bounds)
    return result([x, *(limit for limit in bounds if isinstance(limit, Tensor))], _not_bool(promoted((x, *bounds))))


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(x: Tensor, mask: Tensor, value: Operand) -> Out:
    """A row-major clone of the broadcast input."""
    sure(mask.dtype is torch.bool and torch.can_cast(promoted((x, value)), x.dtype))
    sure(not (isinstance(value, Tensor) and value.dim()))
    shape, _, dtype = result((x, mask), x.dtype)
    return fresh(shape, dtype)


def _backward(names: str, *positions: int) -> None:
    """Register gradients of one operand, whose kernels iterate over the arguments at ``positions`` in this order."""

    def gradient(*args: Any, **options: Any) -> Out:
        first, second = (args[place] for place in positions)
        sure(first.dtype is second.dtype and first.dtype in FLOATS and first.shape == second.shape)
        return result((first, second), first.dtype)

    rule(*names.split())(gradient)


_backward("hardswish_backward hardsigmoid_backward hardtanh_backward softplus_backward mish_backward", 0, 1)
_backward("silu_backward gelu_backward logit_backward sigmoid_backward tanh_backward", 0, 1)
_backward("threshold_backward leaky_relu_backward", 1, 0)
_backward("elu_backward", 0, 5)


@rule("glu_backward")
def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Out:
    """The input's gradient, row-major."""
    sure(grad.dtype is x.dtype and x.dtype in FLOATS and grad.dim() == x.dim() and numel(x.shape))
    return fresh(x.shape, x.dtype)


@rule("native_dropout_backward")
def dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Out:
    """The input's gradient, in the layout of the iterator over gradient and mask."""
    sure(grad.dtype in FLOATS and mask.dtype is torch.bool and grad.shape == mask.shape)
    return result((grad, mask), grad.dtype)


KEEPING = (
    "abs add.List add.Scalar add.ScalarList addcdiv.Scalar addcdiv.ScalarList addcmul.Scalar addcmul.ScalarList "
    "div.List div.Scalar div.ScalarList lerp.List lerp.Scalar maximum.List mul.List mul.Scalar mul.ScalarList neg "
    "pow.Scalar reciprocal sign sqrt sub.List sub.Scalar"
)
"""Element-wise operators of optimizers, whose results have the dtype of floating-point operands."""


@rule(*(f"_foreach_{name}" for name in KEEPING.split()))
def elementwise(*args: Any, **options: Any) -> Outs:
    """New tensors like those of the lists, if these agree in shape, strides and dtype and all numbers are real."""
    for value in (*args, *options.values()):
        numbers = value if isinstance(value, (list, tuple)) else (value,)
        sure(_is_tensors(value) or all(isinstance(number, (int, float)) for number in numbers))
    return [_like(tensors) for tensors in _by_place(args)]


def writes_alike(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether an operator only writes to lists of floating-point tensors that agree in shape, strides and dtype.

    No kernel refuses these; any other arguments are for torch's own kernel to run or to refuse.
    """
    if not _writes_lists(func):
        return False
    try:
        return all(_like(tensors) for tensors in _by_place(args))
    except Unsure:
        return False


@cache
def _writes_lists(func: OpOverload) -> bool:
    schema = func._schema
    return schema.name.startswith("aten::_foreach_") and schema.is_mutable and not schema.returns


def _is_tensors(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value)


def _by_place(args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the tensors of each place of the lists."""
    lists = [value for value in args if _is_tensors(value)]
    sure(lists and len({len(value) for value in lists}) == 1)
    sure(not any(isinstance(value, Tensor) for value in args))
    return list(zip(*lists))


def _like(tensors: tuple[Any, ...]) -> Out:
    """Return a new tensor like several that agree."""
    first = tensors[0]
    sure(all(isinstance(tensor, Tensor) and tensor.layout is torch.strided for tensor in tensors))
    sure(first.dtype in FLOATS and (first.is_contiguous() or is_dense(first)))
    shape, strides, dtype, device = first.shape, first.stride(), first.dtype, first.device
    for tensor in tensors[1:]:
        sure(tensor.dtype is dtype and tensor.device == device and tensor.shape == shape and tensor.stride() == strides)
    return shape, strides, dtype


# Reductions, cumulative operators, sorting and losses


def _reduced(x: Tensor, dims: int | Sizes | None, keepdim: bool) -> Shape:
    """Return the reduced shape; no axes means all axes."""
    dims = [dims] if isinstance(dims, int) else dims
    axes = [axis_of(dim, x.dim()) for dim in dims] if dims else list(range(x.dim()))
    sure(len(set(axes)) == len(axes))
    if keepdim:
        return tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    return tuple(size for axis, size in enumerate(x.shape) if axis not in axes)


DtypeOf: TypeAlias = "Callable[[Tensor, torch.dtype | None], torch.dtype]"
"""A result's dtype from the input and the requested one."""


def _reduction(names: str, *dtypes: DtypeOf) -> None:
    """Register reductions with one or several results of one shape."""

    def reduced(
        x: Tensor, dims: int | Sizes | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None,
        correction: float | None = None,
    ) -> Out | Outs:  # fmt: skip
        shape = _reduced(x, dims, keepdim)
        first, *others = (fresh(shape, dtype_of(x, dtype)) for dtype_of in dtypes)
        return [first, *others] if others else first

    rule(*names.split())(reduced)


def _summed(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Integers and booleans as int64."""
    sure(x.dtype in NUMBERS)
    return dtype or (x.dtype if x.dtype in FLOATS else torch.int64)


def _averaged(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """No rule for integers without a dtype."""
    sure(x.dtype in NUMBERS and (dtype or x.dtype) in FLOATS)
    return dtype or x.dtype


def _floating_input(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    sure(x.dtype in FLOATS)
    return x.dtype


def _extreme(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """No rule for empty tensors."""
    sure(x.dtype in NUMBERS and numel(x.shape))
    return x.dtype


def _place(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    sure(x.dtype in NUMBERS and x.dtype is not torch.bool and numel(x.shape))
    return torch.int64


def _truth(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """No rule for uint8, which stays."""
    sure(x.dtype in NUMBERS and x.dtype is not torch.uint8)
    return torch.bool


_reduction("sum sum.dim_IntList prod prod.dim_int", _summed)
_reduction("mean mean.dim", _averaged)
_reduction("var.correction std.correction", _floating_input)
_reduction("var_mean.correction std_mean.correction", _floating_input, _floating_input)
_reduction("amax amin max min", _extreme)
_reduction("max.dim min.dim", _extreme, lambda x, dtype: torch.int64)
_reduction("argmax argmin", _place)
_reduction("any any.dim all all.dim", _truth)


@rule("linalg_vector_norm")
def vector_norm(
    x: Tensor, ord: float = 2, dims: Sizes | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Out:
    """The norm of floats along axes; no rule for another dtype."""
    sure(x.dtype in FLOATS and dtype is None and numel(x.shape))
    return fresh(_reduced(x, dims, keepdim), x.dtype)


@rule("cumsum", "cumprod")
def cumulative(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Out:
    """A tensor like the input, row-major; integers and booleans as int64."""
    sure(x.dtype in NUMBERS)
    axis_of(dim, x.dim())
    return fresh(x.shape, dtype or (x.dtype if x.dtype in FLOATS else torch.int64))


@rule("topk")
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Outs:
    """The k extremes along one axis and their indices."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and x.dtype in NUMBERS and 0 <= k <= x.shape[axis])
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [fresh(shape, x.dtype), fresh(shape, torch.int64)]


@rule("sort", "sort.stable")
def sorted_and_index(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Outs:
    """The sorted input and the indices, in the input's layout."""
    sure(x.dtype in NUMBERS)
    axis_of(dim, x.dim())
    return [(x.shape, preserved_strides(x), x.dtype), (x.shape, preserved_strides(x), torch.int64)]


NONE = 0
"""A loss per element; other reductions give one number."""


def _nll_loss(name: str, *ranks: int) -> None:
    """Register a loss of scores with one of these ranks, whose second axis, or only one, is the classes', and back."""

    def dtype_of(x: Tensor, target: Tensor, weight: Tensor | None) -> torch.dtype:
        """Return the scores' dtype, if targets and weights fit."""
        axis = min(x.dim() - 1, 1)
        sure(x.dim() in ranks and target.dtype is torch.int64 and numel(x.shape))
        sure(target.shape == (*x.shape[:axis], *x.shape[axis + 1 :]))
        sure(weight is None or weight.shape == (x.shape[axis],))
        return floats_of(x, weight)

    def forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, _: int) -> Outs:
        dtype = dtype_of(x, target, weight)
        return [fresh(target.shape if reduction == NONE else (), dtype), fresh((), dtype)]

    def backward(
        grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, _: int, total: Tensor
    ) -> Out:
        dtype_of(x, target, weight)
        sure(grad.shape == (target.shape if reduction == NONE else ()) and not total.dim() and is_contiguous(x))
        return fresh(x.shape, floats_of(x, grad, total))

    rule(f"{name}_forward")(forward)
    rule(f"{name}_backward")(backward)


_nll_loss("nll_loss", 1, 2)
_nll_loss("nll_loss2d", 4)


@rule("mse_loss", "smooth_l1_loss", "huber_loss")
def loss_of_a_difference(x: Tensor, target: Tensor, reduction: int = 1, *_: Any, **__: Any) -> Out:
    """The mean or sum of what two tensors of one dtype differ by."""
    sure(reduction != NONE)
    broadcast([x.shape, target.shape])
    return fresh((), floats_of(x, target))


@rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
def loss_backward(grad: Tensor, x: Tensor, target: Tensor, *_: Any) -> Out:
    """The gradient, written into row-major zeros of the input's shape (``Loss.cpp``)."""
    sure(broadcast([x.shape, target.shape, grad.shape]) == x.shape)
    return fresh(x.shape, floats_of(x, target, grad))


@rule("binary_cross_entropy", "binary_cross_entropy_with_logits")
def binary_cross_entropy(x: Tensor, target: Tensor, *settings: Any) -> Out:
    """The mean or sum of the losses of probabilities or logits, with weights that broadcast."""
    weights = [value for value in settings if isinstance(value, Tensor)]
    sure(x.shape == target.shape and not any(value == NONE for value in settings if isinstance(value, int)))
    sure(all(broadcast([x.shape, weight.shape]) == x.shape for weight in weights))
    return fresh((), floats_of(x, target, *weights))


@rule("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Out:
    """The gradient of the probabilities, all row-major."""
    sure(grad.shape == (x.shape if reduction == NONE else ()) and x.shape == target.shape and numel(x.shape))
    sure(weight is None or (weight.shape == x.shape and is_contiguous(weight)))
    sure(all(map(is_contiguous, (grad, x, target))))
    return fresh(x.shape, floats_of(x, target, grad, weight))


@rule("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def margin_backward(grad: Tensor, x: Tensor, *_: Any) -> Out:
    """The gradient of the scores, row-major; torch has no meta kernels, and none in half precision on the CPU."""
    sure(x.dim() in (1, 2) and numel(x.shape) and grad.shape in ((), x.shape[:-1]))
    sure(x.device.type == "cuda" or x.dtype not in HALVES)
    return fresh(x.shape, floats_of(x, grad))


@rule("_standard_gamma_grad")
def gamma_backward(x: Tensor, drawn: Tensor) -> Out:
    """The gradient of the shape parameter, row-major; torch has no meta kernel."""
    sure(x.shape == drawn.shape and is_contiguous(x) and is_contiguous(drawn))
    return fresh(x.shape, floats_of(x, drawn))


@rule("_log_softmax_backward_data", "_softmax_backward_data")
def softmax_backward(grad: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Out:
    """The gradient of the scores, row-major."""
    sure(grad.shape == out.shape and floats_of(grad, out) is dtype and -out.dim() <= dim < out.dim())
    return fresh(grad.shape, dtype)
