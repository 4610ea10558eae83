"""Operator call -> the kernels that it runs on a GPU: their kinds, their work, and the bytes they move.

An operator reads each distinct tensor among its arguments and writes its results and what it changes in place. A view
moves nothing; an expanded axis is read once. A formula names an operator's kind, its widths, and where its traffic
differs; without one, an operator with multiply-adds is a matrix product, and any other is named by the lists of
``macs/free.py``. :func:`register_kernels` adds third-party operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any, TypeVar, Union

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from ..data.arguments import Registered, names_cures
from ..data.memory_records import TF32, Kernel, KernelKind
from .backends import HALVES, allows_tf32
from .macs import free
from .macs.registry import base_name, names, registered


@dataclass(frozen=True, slots=True)
class Work:
    """What a formula says of one kernel: its kind, widths, and how its traffic differs from the operator's.

    ``m``, ``n`` and ``k`` are those of :class:`Kernel`; ``share`` is its part of the operator's multiply-adds.
    ``reads`` and ``writes`` are the tensors that it reads and writes, None for all of the operator's; it reads them
    ``passes`` times. ``dtype`` is what a product computes in.
    """

    kind: KernelKind
    m: int = 0
    n: int = 0
    k: int = 0
    share: float = 1.0
    passes: int = 1
    reads: Sequence[Tensor] | None = None
    writes: Sequence[Tensor] | None = None
    dtype: torch.dtype | None = None


Formula = Callable[..., Union[KernelKind, Work, Iterable[Work]]]
"""``formula(result, *args, **kwargs)`` -> a kind, or one or several kernels."""

F = TypeVar("F", bound=Formula)

KERNELS: dict[str, Formula] = {}
"""By operator name, such as ``aten::mm``; overloads and in-place forms share one formula."""


@names_cures({})
def register_kernels(*ops: OpOverloadPacket | str) -> Callable[[F], Registered[F]]:
    """Register the decorated formula, ``(result, *args, **kwargs) -> kind``, for operators.

    It returns one of ``KERNEL_KINDS``, or ``Work`` for each kernel that the operator runs; multiply-adds come from
    :func:`register_mult_adds`, whose ``ops``, checks and way to unregister it shares.

    >>> @register_kernels("mylib::rotate")
    ... def rotate(result, points, angles):
    ...     return "elementwise"
    >>> rotate.remove()
    """
    return lambda formula: registered(KERNELS, ops, formula)


def _kernels_of(words: str) -> Callable[[F], F]:
    def register(formula: F) -> F:
        KERNELS.update(dict.fromkeys(names(words), formula))
        return formula

    return register


def nbytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of tensors; an expanded axis counts once.

    >>> nbytes([torch.ones(3, 1).expand(3, 4), torch.ones(2)])
    20
    """
    total = 0
    for tensor in tensors:
        elements = tensor.numel()
        if tensor.layout is torch.strided and 0 in (stride := tensor.stride()):
            elements = prod([size for size, by in zip(tensor.shape, stride) if by])
        total += elements * tensor.element_size()
    return total


def kernels_of(
    moment: int, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, mult_adds: int, device: str
) -> Iterator[Kernel]:
    """Yield the kernels of an operator's call on a device: none for a view, an empty tensor or a copy from the host."""
    traits = _traits(func)
    if traits.is_free:
        return
    values = [value for place, value in enumerate(args) if place not in traits.overwritten]
    values += [value for name, value in kwargs.items() if name not in traits.overwritten]
    changed = [args[place] if place < len(args) else kwargs.get(name) for place, name in traits.written]
    read, written = _distinct(values), _distinct([out, *changed])
    here = [tensor for tensor in read if tensor.device.type == device]
    if not any(tensor.device.type == device for tensor in written) or (traits.kind == "copy" and len(here) < len(read)):
        return
    formula = KERNELS.get(traits.name)
    works = traits.kind if formula is None else formula(out, *args, **kwargs)
    if isinstance(works, str):
        kind = "matmul" if mult_adds and works == "elementwise" else works
        works = Work(kind, passes=2 if kind == "norm_backward" or (kind == "copy" and _turns(here, written)) else 1)
    for work in (works,) if isinstance(works, Work) else works:
        dtype = work.dtype or (here or written)[0].dtype
        library = "cuda" if work.kind in ("matmul", "attention") else "cudnn"
        is_tf32 = dtype is torch.float32 and allows_tf32(library)
        yield Kernel(
            moment,
            work.kind,
            TF32 if is_tf32 else str(dtype).removeprefix("torch."),
            round(2 * mult_adds * work.share),
            nbytes(here if work.reads is None else work.reads) * work.passes,
            nbytes(written if work.writes is None else work.writes),
            work.m,
            work.n,
            work.k,
        )


def _turns(read: Sequence[Tensor], written: Sequence[Tensor]) -> bool:
    """Whether a copy changes the order of axes, which takes about as long as reading its source twice."""
    if len(read) != 1 or len(written) != 1 or read[0].layout is not torch.strided or read[0].shape != written[0].shape:
        return False
    source, target = read[0].stride(), written[0].stride()
    if source == target or 0 in source:
        return False
    axes = [axis for axis, size in enumerate(read[0].shape) if size > 1]
    return sorted(axes, key=source.__getitem__) != sorted(axes, key=target.__getitem__)


@dataclass(frozen=True, slots=True)
class _Traits:
    """What an operator's schema and name tell: its kind, what it writes and what it overwrites without reading."""

    name: str
    is_free: bool
    kind: KernelKind = "elementwise"
    written: tuple[tuple[int, str], ...] = ()
    """Places and names of the arguments that it changes in place."""
    overwritten: frozenset[int | str] = frozenset()
    """Places and names of the arguments that it does not read."""


_WITHOUT_KERNELS = """
    empty empty_like empty_strided new_empty new_empty_strided empty_quantized _local_scalar_dense item _unsafe_view
    _reshape_alias detach_ set_ resize_ resize_as_ _resize_output_ squeeze_ unsqueeze_ transpose_ t_ as_strided_
    swapaxes_ swapdims_ unsafe_split unsafe_split_with_sizes unsafe_chunk record_stream _assert_async
    _assert_scalar is_same_size _cudnn_rnn_flatten_weight lift_fresh lift_fresh_copy
"""
"""Operators that run no kernel, though their schemas return new tensors, or change what tensors say of themselves."""
_OUTSIDE = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "prim", "prims", "profiler"})
"""Namespaces of communication, which is not counted, and of operators that compute shapes alone."""
_OVERWRITES = "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ _foreach_zero_"
_CREATES = f"{free.FACTORIES} rand_like randint_like randn_like"
_READS_NO_FIRST = frozenset([*_OVERWRITES.split(), *_CREATES.split()])
"""Operators that do not read their first argument: they overwrite it, or take its shape alone."""

_GROUPS: dict[KernelKind, tuple[str, ...]] = {
    "norm": (free.NORMALISATION, free.SOFTMAX),
    "pooling": (free.POOLING, free.RESAMPLING),
    "copy": (free.MOVEMENT, free.INDEXING),
}
_KIND_OF = {name: kind for kind, groups in _GROUPS.items() for group in groups for name in group.split()}
_KIND_OF |= {"clone": "copy", "contiguous": "copy"}


@cache
def _traits(func: Any) -> _Traits:
    if not isinstance(func, OpOverload):
        return _Traits(f"higher_order::{func.name()}", is_free=False)
    schema = func._schema
    namespace, _, name = schema.name.partition("::")
    if func.is_view or name in _WITHOUT_KERNELS.split() or namespace in _OUTSIDE:
        return _Traits(schema.name, is_free=True)
    overwritten: set[int | str] = {argument.name for argument in schema.arguments if argument.is_out}
    if name in _READS_NO_FIRST:
        overwritten.add(0)
    plain = base_name(name).removeprefix("_foreach_")
    forward, backward, _ = plain.partition("_backward")
    kind = _KIND_OF.get(plain) or _KIND_OF.get(forward, "elementwise")
    kind = "norm_backward" if kind == "norm" and backward else kind
    changed = () if schema.returns else [(place, a.name) for place, a in enumerate(schema.arguments) if a.alias_info]
    return _Traits(base_name(schema.name), False, kind, tuple(changed), frozenset(overwritten))


def _tensors(value: Any) -> Sequence[Tensor]:
    if isinstance(value, Tensor):
        return (value,)
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else ()


def _distinct(values: Sequence[Any]) -> list[Tensor]:
    """Return the distinct tensors among values and lists of them."""
    return list({id(tensor): tensor for value in values for tensor in _tensors(value)}.values())


@_kernels_of("aten:: mm bmm mv dot vdot matmul _int_mm _scaled_mm")
def _product(result: Any, left: Tensor, right: Tensor, *_: Any, **__: Any) -> Work:
    """A matrix product, whose rows and columns are the left side's and the right side's."""
    rows = left.shape[-2] if left.dim() > 1 else 1
    columns = right.shape[-1] if right.dim() > 1 else 1
    return Work("matmul", rows, columns, left.shape[-1], dtype=left.dtype)


_kernels_of("aten:: addmm _addmm_activation baddbmm addmv")(
    lambda result, added, left, right, *_, **__: _product(result, left, right)
)
_kernels_of("aten:: linear")(
    lambda result, x, weight, *_, **__: Work("matmul", prod(x.shape[:-1]), weight.shape[0], x.shape[-1], dtype=x.dtype)
)


def _groups(weight: Tensor, groups: int, is_transposed: bool) -> tuple[KernelKind, int, int, int]:
    """Return a convolution's kind, and of a group the channels out and in, and the taps."""
    wide, deep = weight.shape[0] // groups, weight.shape[1]
    if is_transposed:
        wide, deep = deep, wide
    kind: KernelKind = "convolution" if groups == 1 else "depthwise_convolution" if deep == 1 else "grouped_convolution"
    return kind, wide, deep, prod(weight.shape[2:])


def _is_last(x: Tensor, weight: Tensor) -> bool:
    """Whether a convolution runs in NHWC: one of its tensors is laid out so."""
    return any(t.dim() > 3 and t.shape[1] > 1 and t.stride(1) == 1 and not t.is_contiguous() for t in (x, weight))


def _width(kind: KernelKind, channels: int, x: Tensor, weight: Tensor) -> int:
    """Return the columns of a convolution's product: channels; of a depthwise one, those in an instruction.

    In NHWC, neighbours in memory are channels, which 16-bit arithmetic computes in pairs.
    """
    return channels if kind != "depthwise_convolution" else 2 if x.dtype in HALVES and _is_last(x, weight) else 1


def _turned(kind: KernelKind, x: Tensor, weight: Tensor, tensors: Sequence[Tensor]) -> list[Work]:
    """Return the conversion between layouts around a convolution in NCHW that computes in tensor cores."""
    in_cores = x.dtype in HALVES or (x.dtype is torch.float32 and allows_tf32("cudnn"))
    if kind == "depthwise_convolution" or _is_last(x, weight) or not in_cores:
        return []
    return [Work("layout", share=0, reads=tensors, writes=())]


@_kernels_of("aten:: convolution _convolution convolution_overrideable")
def _convolution(result: Tensor, x: Tensor, weight: Tensor, *rest: Any, **__: Any) -> list[Work]:
    _bias, _stride, _padding, _dilation, is_transposed, _output_padding, groups, *_ = rest
    kind, wide, deep, taps = _groups(weight, groups, is_transposed)
    positions = prod((result.shape[0], *result.shape[2:]))
    main = Work(kind, positions, _width(kind, wide, x, weight), deep * taps, dtype=x.dtype)
    return [main, *_turned(kind, x, weight, (x, weight, result))]


@_kernels_of("aten:: convolution_backward")
def _convolution_backward(
    result: Any, grad: Tensor, x: Tensor, weight: Tensor, biases: Any, *rest: Any, **__: Any
) -> Iterator[Work]:
    """The gradients of the input and of the weight are kernels of their own, as is the bias's, a sum."""
    *_, is_transposed, _, groups, (of_input, of_weight, of_bias) = rest
    kind, wide, deep, taps = _groups(weight, groups, is_transposed)
    kind = "grouped_convolution_backward" if kind == "grouped_convolution" else kind
    share = 1 / max(1, of_input + of_weight)
    positions = prod((grad.shape[0], *grad.shape[2:]))
    if of_input:
        width = _width(kind, deep, x, weight)
        yield Work(kind, positions, width, wide * taps, share, reads=(grad, weight), writes=(x,), dtype=x.dtype)
        yield from _turned(kind, x, weight, (grad, weight, x))
    if of_weight:
        width, rows = _width(kind, deep * taps, x, weight), positions if kind == "depthwise_convolution" else wide
        yield Work(kind, rows, width, positions, share, reads=(grad, x), writes=(weight,), dtype=x.dtype)
        yield from _turned(kind, x, weight, (grad, x, weight))
    if of_bias:
        yield Work("elementwise", share=0, reads=(grad,), writes=())


def _attention(place: int, result: Any, query: Tensor, *args: Any, is_causal: bool = False, **__: Any) -> Work:
    """A causal mask halves the work; a sum of products is as long as a head is wide."""
    is_causal = is_causal or args[place - 1 : place] == (True,)
    return Work("attention", k=query.shape[-1], share=0.5 if is_causal else 1.0, dtype=query.dtype)


for _name in names("""
    aten:: scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_backward _efficient_attention_forward
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward
    _efficient_attention_backward _flash_attention_forward _flash_attention_backward
    _scaled_dot_product_fused_attention_overrideable
"""):
    _schema = getattr(torch.ops.aten, _name.removeprefix("aten::")).default._schema
    _places = [place for place, argument in enumerate(_schema.arguments) if argument.name == "is_causal"]
    KERNELS[_name] = partial(_attention, (*_places, 0)[0])
_kernels_of("higher_order:: flex_attention flex_attention_backward")(partial(_attention, 0))


_kernels_of("aten:: _cudnn_rnn _cudnn_rnn_backward lstm gru rnn_tanh rnn_relu")(lambda *_, **__: "recurrent")


@_kernels_of("aten:: native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit")
def _batch_norm(result: Any, *args: Any, **__: Any) -> Work:
    """In training, the statistics are a pass of their own."""
    return Work("norm", passes=2 if args[5] is True else 1)


_kernels_of("aten:: _batch_norm_with_update native_group_norm")(lambda *_, **__: Work("norm", passes=2))


# Only what is looked up is read; of an embedding, the number of rows is that of tokens.
_kernels_of("aten:: embedding")(
    lambda result, weight, indices, *_, **__: Work("copy", m=indices.numel(), n=weight.shape[-1], reads=(result,))
)
_kernels_of("aten:: index_select index gather take")(lambda result, *_, **__: Work("copy", reads=(result,)))


@_kernels_of("aten:: index_put index_copy index_add scatter scatter_add slice_scatter select_scatter")
def _update(result: Any, target: Tensor, *args: Any, **__: Any) -> Work:
    """Only the elements that are updated are read and written."""
    values = [tensor for tensor in _tensors(args) if tensor.is_floating_point()] or _tensors(args)
    return Work("copy", reads=values, writes=values)
