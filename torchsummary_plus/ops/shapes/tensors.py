"""Rules for element-wise operators (broadcasting, strides as in TensorIterator), reductions, losses and movement.

The CPU's kernel itself tells the dtypes (``registry.results_of_two``). Source: ``aten/src/ATen/TensorIterator.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ...live import compat
from ..backends import HALVES
from .registry import (
    FLOATS,
    INDICES,
    Answer,
    Out,
    Outs,
    Shape,
    Sizes,
    Unsure,
    axis_of,
    channels_last,
    contiguous,
    dense_strides,
    floats_of,
    fresh,
    in_format_of,
    is_channels_last,
    is_dense,
    preserved_strides,
    results_of_two,
    rule,
    strides_in_format,
    sure,
)

MORE = """
    _prelu_kernel _standard_gamma_grad celu elu floor_divide gelu hardsigmoid hardswish hardtanh leaky_relu mish
    square threshold true_divide __and__ __or__ __xor__ elu_backward hardsigmoid_backward hardswish_backward
    hardtanh_backward leaky_relu_backward mish_backward softplus_backward
"""
"""Element-wise operators of common models that some release does not tag as pointwise, or composes of others."""
INPUT_FIRST = {"aten::threshold_backward", "aten::leaky_relu_backward"}
"""Gradients whose kernels iterate over the input before the gradient."""
OF_NUMBERS = {"aten::pow", "aten::lerp"}
"""Their kernels take a number as it is; others make it a tensor, which the iterator sees."""


@cache
def is_elementwise(func: OpOverload) -> bool:
    """Whether an operator returns one new tensor, or its first argument, computed element by element."""
    schema, tags = func._schema, func.tags
    space, _, name = schema.name.partition("::")
    is_more = not {name, name.removesuffix("_")}.isdisjoint(MORE.split())
    is_composite = compat.has_kernel(func.name(), "CompositeImplicitAutograd")
    return (
        space == "aten"
        and (is_more or (torch.Tag.pointwise in tags and not is_composite))
        and torch.Tag.nondeterministic_seeded not in tags
        and [str(value.type) for value in schema.returns] == ["Tensor"]
        and all(value.alias_info is None or value.alias_info.is_write for value in schema.returns)
        and not any(argument.kwarg_only and argument.alias_info is not None for argument in schema.arguments)
    )


def elementwise(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
    """Return the result of an element-wise operator; no rule if casting a tensor would change its layout.

    CUDA kernels cast each element as they read it.
    """
    schema = func._schema
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    cast = tensors[1:] if schema.name == "aten::where" else tensors
    is_alike = len({tensor.dtype for tensor in cast}) == 1 or all(map(is_dense, cast))
    sure(is_alike or any(tensor.device.type == "cuda" for tensor in tensors))
    shape = broadcast([tensor.shape for tensor in tensors])
    dtype = results_of_two(func, args, kwargs)[0].dtype
    if schema.is_mutable:
        sure(shape == args[0].shape and all(size < 2 or step for size, step in zip(shape, args[0].stride())))
        return 0
    sees_number = "Scalar" in func._overloadname and schema.name not in OF_NUMBERS
    return shape, layout(shape, tensors[:: -1 if schema.name in INPUT_FIRST else 1], not (sees_number and shape)), dtype


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
        if all(tensor.is_contiguous() for tensor in tensors):
            return contiguous(shape)
        if len(shape) == 4 and all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors):
            return channels_last(shape)
        if all(map(is_dense, tensors)) and len({tensor.stride() for tensor in tensors}) == 1:
            return tensors[0].stride()
    sure(prod(shape))
    operands = []
    for tensor in tensors:
        missing = len(shape) - tensor.dim()
        steps = [0 if a == 1 != b else step for a, b, step in zip(tensor.shape, shape[missing:], tensor.stride())]
        operands.append([0] * missing + steps)  # A stride is 0 where the tensor is expanded.
    return dense_strides(shape, operands)


# Row-major whatever the operands' layouts, unlike other element-wise results.
rule("pow.Scalar")(lambda base, exponent: fresh(exponent.shape, None))
rule("masked_fill.Scalar", "masked_fill.Tensor")(lambda x, mask, value: fresh(broadcast([x.shape, mask.shape]), None))


@rule("glu_backward")
def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Out:
    """The input's gradient, row-major."""
    sure(grad.dtype is x.dtype and x.dtype in FLOATS and grad.dim() == x.dim() and x.numel())
    return fresh(x.shape, x.dtype)


KEEPING = (
    "abs add.List add.Scalar add.ScalarList addcdiv.Scalar addcdiv.ScalarList addcmul.Scalar addcmul.ScalarList "
    "div.List div.Scalar div.ScalarList lerp.List lerp.Scalar maximum.List mul.List mul.Scalar mul.ScalarList neg "
    "pow.Scalar reciprocal sign sqrt sub.List sub.Scalar"
)
"""Element-wise operators of optimizers, whose results have the dtype of floating-point operands."""


@rule(*(f"_foreach_{name}" for name in KEEPING.split()))
def of_lists(*args: Any, **options: Any) -> Outs:
    """New tensors like those of the lists, if these agree in shape, strides and dtype and all numbers are real."""
    for value in (*args, *options.values()):
        numbers = value if isinstance(value, (list, tuple)) else (value,)
        sure(_is_tensors(value) or all(isinstance(number, (int, float)) for number in numbers))
    lists = [value for value in args if _is_tensors(value)]
    sure(lists and len({len(value) for value in lists}) == 1)
    return [_like(tensors) for tensors in zip(*lists)]


def writes_alike(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether an operator only writes to lists of floating-point tensors that agree in shape, strides and dtype.

    No kernel refuses these; any other arguments are for torch's own kernel to run or to refuse.
    """
    if not _writes_lists(func):
        return False
    try:
        return bool(of_lists(*args))
    except Unsure:
        return False


@cache
def _writes_lists(func: OpOverload) -> bool:
    schema = func._schema
    return schema.name.startswith("aten::_foreach_") and schema.is_mutable and not schema.returns


def _is_tensors(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value)


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


def _reduced(x: Tensor, dims: int | Sizes | None = None, keepdim: bool = False, **_: Any) -> Out:
    """The reduced tensor, row-major; no axes means all axes, and an empty tensor has no rule."""
    sure(x.numel())
    dims = [dims] if isinstance(dims, int) else dims
    axes = [dim % max(x.dim(), 1) for dim in dims] if dims else list(range(x.dim()))
    if keepdim:
        return fresh([1 if axis in axes else size for axis, size in enumerate(x.shape)], None)
    return fresh([size for axis, size in enumerate(x.shape) if axis not in axes], None)


REDUCTIONS = (
    "sum sum.dim_IntList prod prod.dim_int mean mean.dim var.correction std.correction amax amin max min argmax argmin "
    "any any.dim all all.dim"
)
rule(*REDUCTIONS.split())(_reduced)
rule("max.dim", "min.dim", "var_mean.correction", "std_mean.correction")(
    lambda *args, **kw: [_reduced(*args, **kw)] * 2
)
rule("linalg_vector_norm")(lambda x, ord=2, dims=None, keepdim=False, **kw: _reduced(x, dims, keepdim))


@rule("_softmax", "_log_softmax", "_safe_softmax", "_log_softmax_backward_data", "_softmax_backward_data")
@rule("cumsum", "cumprod", "tril", "triu")
def like_the_first(x: Tensor, *others: Any, **_: Any) -> Out:
    """A row-major tensor of the first one's shape, which any other has too."""
    sure(all(other.shape == x.shape for other in others if isinstance(other, Tensor)))
    return fresh(x.shape, None)


@rule("topk")
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Outs:
    """The k extremes along one axis and their indices."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and not x.dtype.is_complex and 0 <= k <= x.shape[axis])
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [fresh(shape, x.dtype), fresh(shape, torch.int64)]


rule("sort", "sort.stable")(lambda x, *_, **__: [(x.shape, preserved_strides(x), None)] * 2)


NONE = 0
"""A loss per element; other reductions give one number."""


def _fits_classes(x: Tensor, target: Tensor, weight: Tensor | None) -> bool:
    """Whether targets and weights fit scores whose second axis, or only one, is the classes'."""
    axis = min(x.dim() - 1, 1)
    fits = x.dim() in (1, 2, 4) and x.numel() and target.shape == (*x.shape[:axis], *x.shape[axis + 1 :])
    return bool(fits) and (weight is None or weight.shape == (x.shape[axis],))


@rule("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, _: int) -> Outs:
    """The loss and the total weight."""
    sure(_fits_classes(x, target, weight))
    return [fresh(target.shape if reduction == NONE else (), None), fresh((), None)]


@rule("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, _: int, total: Tensor
) -> Out:
    """The gradient of the scores, all row-major."""
    sure(_fits_classes(x, target, weight) and x.is_contiguous() and not total.dim())
    sure(grad.shape == (target.shape if reduction == NONE else ()))
    return fresh(x.shape, None)


@rule("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
def loss(x: Tensor, target: Tensor, *settings: Any, **_: Any) -> Out:
    """The mean or sum of the losses, with weights that broadcast."""
    shapes = [value.shape for value in settings if isinstance(value, Tensor)]
    sure(x.shape == target.shape and not any(type(value) is int and value == NONE for value in settings))
    sure(broadcast([x.shape, *shapes]) == x.shape)
    return fresh((), None)


@rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
def loss_backward(grad: Tensor, x: Tensor, *others: Any) -> Out:
    """The gradient, written into row-major zeros of the input's shape (``Loss.cpp``)."""
    tensors = [grad, *(other for other in others if isinstance(other, Tensor))]
    sure(broadcast([x.shape, *(tensor.shape for tensor in tensors)]) == x.shape)
    return fresh(x.shape, floats_of(x, *tensors))


@rule("binary_cross_entropy_backward")
def binary_cross_entropy_backward(grad: Tensor, x: Tensor, *others: Any) -> Out:
    """The gradient of the probabilities, all row-major."""
    sure(all(tensor.is_contiguous() for tensor in (grad, x, *others) if isinstance(tensor, Tensor)))
    return loss_backward(grad, x, *others)


@rule("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def margin_backward(grad: Tensor, x: Tensor, *_: Any) -> Out:
    """The gradient of the scores, row-major; torch has no meta kernels, and none in half precision on the CPU."""
    sure(x.dim() in (1, 2) and x.numel() and grad.shape in ((), x.shape[:-1]))
    sure(x.device.type == "cuda" or x.dtype not in HALVES)
    return fresh(x.shape, floats_of(x, grad))


# Joining and picking


@rule("cat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Out:
    """No rule for torch's legacy case, which skips empty vectors among tensors of higher rank."""
    sure(tensors)
    first = tensors[0]
    axis = axis_of(dim, first.dim())
    rest = (*first.shape[:axis], *first.shape[axis + 1 :])
    sure(first.dim() and all(t.dim() == first.dim() for t in tensors))
    sure(all((*t.shape[:axis], *t.shape[axis + 1 :]) == rest for t in tensors) and all(t.numel() for t in tensors))
    shape = (*first.shape[:axis], sum(t.shape[axis] for t in tensors), *first.shape[axis + 1 :])
    innermost = [is_channels_last(tensor) for tensor in tensors]
    return (shape, channels_last(shape), None) if all(innermost) else fresh(shape, None)


@rule("stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Out:
    """Tensors of one shape along a new axis."""
    sure(tensors and all(t.shape == tensors[0].shape for t in tensors))
    shape = tensors[0].shape
    axis = axis_of(dim, len(shape) + 1)
    sure(len(shape) not in (3, 4) or all(tensor.is_contiguous() for tensor in tensors))
    return fresh((*shape[:axis], len(tensors), *shape[axis:]), None)


@rule("index_select")
def index_select(x: Tensor, dim: int, index: Tensor) -> Out:
    """The selected indices along one axis."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and index.dim() == 1 and index.dtype in INDICES)
    return fresh((*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]), x.dtype)


@rule("gather")
def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Out:
    """One element per index."""
    axis = axis_of(dim, x.dim())
    sure(x.dim() and index.dim() == x.dim() and index.dtype is torch.int64)
    sure(all(a <= b or place == axis for place, (a, b) in enumerate(zip(index.shape, x.shape))))
    return fresh(index.shape, x.dtype)


@rule("index.Tensor")
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Out:
    """Integer indices: the selected axes replace the indexed ones, or come first if those are not adjacent."""
    tensors = [index for index in indices if index is not None]
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    others = [axis for axis in range(x.dim()) if axis not in axes]
    sure(tensors and len(indices) <= x.dim() and x.numel())
    sure(all(index.dtype in INDICES and index.stride() == contiguous(index.shape) for index in tensors))
    picked = broadcast([index.shape for index in tensors])
    sure(picked)
    first = axes[0] if axes[-1] - axes[0] < len(axes) else 0
    shape, strides = [x.shape[axis] for axis in others], [x.stride()[axis] for axis in others]
    shape[first:first], strides[first:first] = picked, [0] * len(picked)
    sure(prod(shape))
    return tuple(shape), dense_strides(shape, [strides]), x.dtype


# Moving


@rule("roll")
def roll(x: Tensor, shifts: Sizes, dims: Sizes = ()) -> Out:
    """Row-major; on the CPU two parts concatenated, axis by axis, in a channels-last format that both have."""
    sure(x.dim() and x.numel() and len(shifts) == (len(dims) or 1))
    cut = [bool(shift % x.shape[axis_of(dim, x.dim())]) for shift, dim in zip(shifts, dims)]
    if not cut or x.device.type == "cuda" or not is_channels_last(x):
        return fresh(x.shape, x.dtype)
    sure(all(cut) or not any(cut))
    return in_format_of(x, x.shape, x.dtype) if all(cut) else fresh(x.shape, x.dtype)


@rule("repeat")
def repeat(x: Tensor, repeats: Sizes) -> Out:
    """The input repeated along each axis, row-major; ``repeats`` may add axes in front."""
    missing = len(repeats) - x.dim()
    sure(missing >= 0 and all(times >= 0 for times in repeats))
    return fresh(tuple(times * size for times, size in zip(repeats, (*(1,) * missing, *x.shape))), x.dtype)


# Copies and factories


@rule("clone", "_to_copy", "empty_like", "zeros_like", "ones_like", "full_like")
def like(
    x: Tensor, *_: float, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
    memory_format: torch.memory_format | None = None, **__: object,
) -> Out:  # fmt: skip
    """A tensor like the input, in the dtype and memory format."""
    sure(layout in (None, torch.strided))
    return x.shape, strides_in_format(x, memory_format), dtype or x.dtype


@rule("rand_like", "randn_like")
def random_like(x: Tensor, **options: Any) -> Out:
    """A floating-point tensor like the input."""
    out = like(x, **options)
    sure(out[2] in FLOATS)
    return out


@rule("new_empty", "new_zeros", "new_ones", "new_full")
def new(x: Tensor, size: Sizes, *_: float, dtype: torch.dtype | None = None, **options: object) -> Out:
    """A row-major tensor of a size, by default with the input's dtype."""
    sure(options.get("layout") in (None, torch.strided) and all(length >= 0 for length in size))
    return fresh(size, dtype or x.dtype)


@rule("arange", "arange.start", "arange.start_step")
def arange(*numbers: int, dtype: torch.dtype | None = None, layout: torch.layout | None = None, **_: Any) -> Out:
    """A vector of the integers in a range; no rule for floats."""
    sure(all(type(number) is int for number in numbers) and layout in (None, torch.strided))
    start, end, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    sure(step and (end - start) * step >= 0)
    return fresh([-((start - end) // step)], dtype or torch.int64)
