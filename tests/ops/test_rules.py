"""A rule for an operator says what torch's own meta kernel says wherever it answers, and nothing where that raises."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from torchsummary_plus.live.versions import since
from torchsummary_plus.ops.shapes import ruled
from torchsummary_plus.ops.shapes.registry import RULES, rule
from torchsummary_plus.ops.shapes.views import VIEWS, View, viewed

CASES = 40
FLOATS = (torch.float32, torch.float32, torch.bfloat16)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool)

Draw = random.Random
Call = tuple[tuple[Any, ...], dict[str, Any]]
CALLS: dict[str, Callable[[Draw], Call]] = {}
"""What draws the arguments of an operator, where its schema does not say enough: mostly right ones, some wrong."""


# Drawing


def meta(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def laid(draw: Draw, shape: Sequence[int], dtype: torch.dtype = torch.float32, odd: float = 0.3) -> Tensor:
    """A tensor of the shape in one of many layouts; in row-major order with probability 1 - ``odd``."""
    shape = tuple(shape)
    kind = draw.choice(["permuted", "channels", "sliced", "expanded", "stepped"]) if draw.random() < odd else "plain"
    axis = draw.randrange(len(shape)) if shape else 0
    if kind == "permuted":
        order = draw.sample(range(len(shape)), len(shape))
        return meta([shape[axis] for axis in order], dtype).permute([order.index(axis) for axis in range(len(shape))])
    if kind == "channels" and len(shape) in (4, 5):
        return meta(shape, dtype).to(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
    if kind == "sliced" and shape:
        wider = [size + 3 * (place == axis) for place, size in enumerate(shape)]
        return meta(wider, dtype).narrow(axis, 1, shape[axis])
    if kind == "expanded" and shape:
        return meta([1 if place == axis else size for place, size in enumerate(shape)], dtype).expand(shape)
    if kind == "stepped" and shape:
        return meta((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
    return meta(shape, dtype)


def a_shape(draw: Draw, least: int = 0, most: int = 5) -> list[int]:
    sizes = (0, 1, 2) if draw.random() < 0.1 else (1, 1, 2, 3, 4, 5)
    return [draw.choice(sizes) for _ in range(draw.randint(least, most))]


def a_part_of(draw: Draw, shape: Sequence[int]) -> list[int]:
    """A shape that broadcasts with another, or, now and then, does not."""
    part = [1 if draw.random() < 0.3 else size for size in shape]
    part = part[draw.randint(0, len(part)) if draw.random() < 0.3 else 0 :]
    if part and draw.random() < 0.05:
        part[draw.randrange(len(part))] += 2
    return part


def near(draw: Draw, *sizes: int) -> list[int]:
    """The sizes, or, now and then, wrong ones."""
    return [size + (draw.random() < 0.03) for size in sizes]


def an_axis(draw: Draw, x: Tensor) -> int:
    return draw.randint(-x.dim() - (draw.random() < 0.05), max(x.dim() - 1, 0))


def some_axes(draw: Draw, x: Tensor) -> list[int]:
    return draw.sample(range(x.dim()), draw.randint(0, x.dim())) if draw.random() < 0.9 else [an_axis(draw, x)] * 2


def a_call_by_schema(name: str) -> Callable[[Draw], Call]:
    """Operands that broadcast, and numbers for scalars; what has a default is left out."""

    def draw_call(draw: Draw) -> Call:
        shape, dtype, odd = a_shape(draw), draw.choice(DTYPES), draw.choice([0.0, 0.4])
        args: list[Any] = []
        options: dict[str, Any] = {}
        for argument in operator(name)._schema.arguments:
            kind = str(argument.type)
            if kind == "Tensor" or (kind == "Optional[Tensor]" and draw.random() < 0.5):
                own = a_part_of(draw, shape) if args else shape
                value: Any = laid(draw, own, dtype if draw.random() < 0.8 else draw.choice(DTYPES), odd)
            elif argument.name == "memory_format" and draw.random() < 0.5:
                value = draw.choice([torch.preserve_format, torch.contiguous_format, torch.channels_last])
            elif argument.name == "dtype" and argument.kwarg_only and draw.random() < 0.5:
                value = draw.choice(DTYPES)
            elif argument.has_default_value():
                continue
            else:
                value = draw.choice([2, 0.5, 3, 1.0, True, None] if "Optional" in kind else [2, 0.5, 3, 1.0, True])
            if argument.kwarg_only:
                options[argument.name] = value
            else:
                args.append(value)
        return tuple(args), options

    return draw_call


def calls(*names: str) -> Callable[[Callable[[Draw], Sequence[Any]]], None]:
    """Register what draws the arguments of operators: a sequence of them, at the end a dict of the named ones."""

    def register(make: Callable[[Draw], Sequence[Any]]) -> None:
        def draw_call(draw: Draw) -> Call:
            args = tuple(make(draw))
            return (args[:-1], args[-1]) if args and isinstance(args[-1], dict) else (args, {})

        CALLS.update(dict.fromkeys(names, draw_call))

    return register


@calls("_grouped_mm")
def _grouped_products(draw: Draw) -> Sequence[Any]:
    """In bfloat16, the one dtype for which torch has a meta kernel."""
    groups, rows, inner, columns = draw.randint(1, 3), *(8 * draw.randint(1, 3) for _ in range(3))
    batch = [groups] * (draw.random() < 0.5), [groups] * (draw.random() < 0.5)
    x, y = meta((*batch[0], rows, inner), torch.bfloat16), meta((*batch[1], inner, columns), torch.bfloat16)
    offsets = [] if batch == ([groups], [groups]) else [meta((groups,), torch.int32)]
    return x, y, *offsets, {}


# Comparing

ODD_META_KERNELS = {
    "convolution",
    "_convolution",
    "floor_divide",
    "logical_and",
    "logical_or",
    "logical_xor",
    "nan_to_num",
}
"""Their meta kernels leave out what the kernels do with layouts. The rules follow the kernels: the CPU's are asked."""


def operator(name: str) -> Any:
    """The overload with the name, None where this torch has none."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def in_words(out: Any, tensors: Sequence[Tensor]) -> Any:
    """The result of an operator as a rule would put it."""
    if isinstance(out, tuple):
        return [in_words(item, tensors) for item in out]
    if out is None:
        return None
    for place, tensor in enumerate(tensors):
        if tensor is out:
            return place
    return tuple(out.shape), out.stride(), out.dtype


def on_the_cpu(x: Any) -> Any:
    """A real tensor in the place of a meta tensor."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).fill_(1) if isinstance(x, Tensor) else x


def answers(func: OpOverload, args: Any, options: Any) -> bool:
    """Whether a rule answers. It must then say, to the last stride, what the kernel says."""
    tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
    described = f"{func} of {[(tuple(t.shape), t.stride(), t.dtype) for t in tensors]}, {args}, {options}"
    answer = ruled(func, args, options)
    if answer is None:
        return False
    try:
        truth = in_words(func(*args, **options), tensors)
    except NotImplementedError:
        pytest.skip("this torch has no meta kernel for it")
    except Exception as error:
        raise AssertionError(f"torch refuses {described}: {error}") from error
    exact = all(t.stride() == meta(t.shape, t.dtype).stride() for t in tensors)
    assert told(answer, exact) == told(truth, exact), described
    return True


def told(answer: Any, exact: bool) -> Any:
    """An answer, without strides that mean nothing: those of axes of size 1, and of a tensor of no elements.

    torch's kernels, its C++ meta kernels and its Python meta kernels disagree on them. Only where all arguments have
    the strides of fresh row-major tensors (``exact``) must those of axes of size 1 be right as well.
    """
    if isinstance(answer, list):
        return [told(item, exact) for item in answer]
    if answer is None or isinstance(answer, int):
        return answer
    shape, stride, dtype = answer
    if 0 in shape:
        return tuple(shape), dtype
    return tuple(shape), tuple(None if size == 1 and not exact else step for size, step in zip(shape, stride)), dtype


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_says_what_the_meta_kernel_says(name: str) -> None:
    func = operator(name)
    if func is None:
        pytest.skip("this torch has no such operator")
    if name == "aten::_scaled_dot_product_flash_attention_for_cpu" and not since("2.6"):
        pytest.skip("before torch 2.6 this is left to the meta kernel")
    if name == "aten::_fused_rms_norm" and not since("2.9"):
        pytest.skip("before torch 2.9 it has other arguments, and none of its kernels is used here")
    short = name.removeprefix("aten::")
    draw, make = Draw(zlib.crc32(name.encode())), CALLS.get(short) or a_call_by_schema(name)
    drawn = [make(draw) for _ in range(CASES)]
    if short in ODD_META_KERNELS:
        drawn = tree_map(on_the_cpu, drawn)
    assert sum(answers(func, *call) for call in drawn) >= CASES // 20


def test_every_ruled_operator_is_one_of_torchs() -> None:
    missing = [name for name in RULES if operator(name) is None or operator(name).name() != name]
    newer = {"aten::_batch_norm_with_update", "aten::_fused_rms_norm", "aten::_grouped_mm", "aten::_safe_softmax"}
    assert set(missing) <= newer


def test_an_operator_has_one_rule() -> None:
    with pytest.raises(ValueError, match=r"aten::add\.Tensor already has a rule"):
        rule("add.Tensor")(lambda: 0)


# Products


@calls("mm")
def _(d: Draw) -> Sequence[Any]:
    (n,) = near(d, 3)
    return laid(d, (2, 3), d.choice(FLOATS)), laid(d, (n, 5), d.choice(FLOATS))


@calls("addmm")
def _(d: Draw) -> Sequence[Any]:
    dtype = d.choice(FLOATS)
    return laid(d, a_part_of(d, (2, 5)), dtype), laid(d, (2, 3), dtype), laid(d, near(d, 3, 5), dtype)


@calls("bmm")
def _(d: Draw) -> Sequence[Any]:
    dtype = d.choice(FLOATS)
    return laid(d, (2, 4, 3), dtype), laid(d, near(d, 2, 3, 5), dtype)


@calls("baddbmm")
def _(d: Draw) -> Sequence[Any]:
    dtype = d.choice(FLOATS)
    return laid(d, a_part_of(d, (2, 4, 5)), dtype), laid(d, (2, 4, 3), dtype), laid(d, near(d, 2, 3, 5), dtype)


@calls("linear")
def _(d: Draw) -> Sequence[Any]:
    dtype = d.choice(FLOATS)
    x = laid(d, (*a_shape(d, 0, 3), *near(d, 4)), dtype)
    return x, laid(d, (6, 4), dtype), d.choice([None, laid(d, near(d, 6), dtype)])


@calls("embedding")
def _(d: Draw) -> Sequence[Any]:
    dtype = d.choice((torch.int64, torch.int32, torch.float32))
    return laid(d, (9, 4), d.choice(FLOATS)), laid(d, a_shape(d), dtype)


# Convolutions


def a_convolution(d: Draw, axes: int, odd: float) -> Sequence[Any]:
    dtype, groups, transposed = d.choice(FLOATS), d.choice([1, 2, 4]), d.random() < 0.3
    entering, leaving = groups * d.randint(1, 3), groups * d.randint(1, 3)
    sizes = (entering, leaving // groups) if transposed else (leaving, entering // groups)
    x = laid(d, (d.randint(1, 3), *near(d, entering), *(d.randint(1, 9) for _ in range(axes))), dtype, odd)
    weight = laid(d, (*sizes, *(d.randint(1, 3) for _ in range(axes))), dtype, odd if axes > 1 else 0.0)
    bias = d.choice([None, laid(d, near(d, leaving), dtype)])

    def setting(*values: int) -> list[int]:
        return [d.choice(values) for _ in range(d.choice([1, axes]))]

    extra = setting(0, 0, 1) if transposed else [0] * axes
    return x, weight, bias, setting(1, 2, 3), setting(0, 1), setting(1, 1, 2), transposed, extra, groups


@calls("convolution")
def _(d: Draw) -> Sequence[Any]:
    return a_convolution(d, d.choice([1, 2, 2, 2, 3]), 0.4)


@calls("_convolution")
def _(d: Draw) -> Sequence[Any]:
    return *a_convolution(d, d.choice([1, 2, 2, 2, 3]), 0.4), True, False, True, True


@calls("convolution_backward")
def _(d: Draw) -> Sequence[Any]:
    x, weight, _, *settings = a_convolution(d, d.choice([1, 2, 2, 2, 3]), 0.2)
    channels = weight.shape[1] * settings[-1] if settings[3] else weight.shape[0]
    grad = laid(d, (x.shape[0], channels, *(1 for _ in x.shape[2:])), x.dtype)
    wanted = [d.random() < 0.7 for _ in range(3)]
    return grad, x, weight, d.choice([None, [channels]]), *settings, wanted


def test_a_convolution_says_what_the_meta_kernel_says() -> None:
    """... of row-major tensors: for others the meta kernel of torch 2.13 leaves the layout out."""
    draw, func, answered = Draw(0), torch.ops.aten.convolution.default, 0
    for _ in range(CASES):
        answered += answers(func, tuple(a_convolution(draw, draw.choice([1, 2, 3]), 0.0)), {})
    assert answered > CASES // 10


# Normalisation


def an_image(d: Draw, least: int = 0, most: int = 3, odd: float = 0.3) -> Tensor:
    sizes = [d.randint(1, 9) for _ in range(d.randint(least, most))]
    return laid(d, (d.randint(1, 3), d.choice([2, 4, 6]), *sizes), d.choice(FLOATS), odd)


def parameters(d: Draw, x: Tensor, size: Sequence[int], count: int) -> list[Tensor | None]:
    dtype = d.choice([x.dtype, torch.float32])
    return [None if d.random() < 0.1 else laid(d, near(d, *size), dtype) for _ in range(count)]


@calls("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
def _(d: Draw) -> Sequence[Any]:
    x = an_image(d)
    weight = laid(d, (x.shape[1],), d.choice([x.dtype, torch.float32]))
    running = [laid(d, (x.shape[1],)) for _ in range(2)]
    return x, weight, *parameters(d, x, x.shape[1:2], 1), *running, d.random() < 0.5, 0.1, 1e-5


@calls("_native_batch_norm_legit.no_stats")
def _(d: Draw) -> Sequence[Any]:
    x = an_image(d)
    return x, *parameters(d, x, x.shape[1:2], 2), d.random() < 0.8, 0.1, 1e-5


@calls("_native_batch_norm_legit_no_training", "_batch_norm_with_update")
def _(d: Draw) -> Sequence[Any]:
    x = an_image(d)
    return x, *parameters(d, x, x.shape[1:2], 2), *(laid(d, x.shape[1:2]) for _ in range(2)), 0.1, 1e-5


@calls("native_group_norm")
def _(d: Draw) -> Sequence[Any]:
    x = an_image(d)
    rest = x[0, 0].numel()
    return x, *parameters(d, x, x.shape[1:2], 2), x.shape[0], x.shape[1], *near(d, rest), d.choice([1, 2, 3]), 1e-5


@calls("native_layer_norm")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d, 1, 5), d.choice(FLOATS))
    size = x.shape[d.randint(0, x.dim() - 1) :]
    return x, near(d, *size), *parameters(d, x, size, 2), 1e-5


@calls("_fused_rms_norm")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d, 1, 5), d.choice(FLOATS))
    size = x.shape[d.randint(0, x.dim() - 1) :]
    return x, near(d, *size), *parameters(d, x, size, 1), d.choice([None, 1e-5])


@calls("_softmax", "_log_softmax")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, an_axis(d, x), d.random() < 0.1


@calls("glu")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, [d.choice([2, 4, 6, 3]) for _ in range(d.randint(0, 5))], d.choice(FLOATS))
    return x, an_axis(d, x)


@calls("_safe_softmax", "cumsum", "cumprod", "max.dim", "min.dim", "sort")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, an_axis(d, x)


# Pooling, resampling and padding


def windows(d: Draw, axes: int) -> list[list[int]]:
    def setting(*values: int) -> list[int]:
        return [d.choice(values) for _ in range(d.choice([1, axes]))]

    return [setting(1, 2, 3), d.choice([[], setting(1, 2, 3)]), setting(0, 0, 1)]


def a_picture(d: Draw, axes: int) -> Tensor:
    sizes = [d.randint(1, 9) for _ in range(axes)]
    return laid(d, (*(d.randint(1, 3) for _ in range(d.choice([1, 2, 2]))), *sizes), d.choice((*FLOATS, torch.int64)))


@calls("max_pool2d_with_indices")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 2), *windows(d, 2), [d.choice([1, 1, 2])], d.random() < 0.5


@calls("max_pool2d_with_indices_backward")
def _(d: Draw) -> Sequence[Any]:
    settings = *windows(d, 2), [d.choice([1, 1, 2])], d.random() < 0.5
    x = laid(d, (2, 3, d.randint(5, 9), d.randint(5, 9)), d.choice(FLOATS), 0.4)
    try:
        pooled, indices = torch.ops.aten.max_pool2d_with_indices(x.to("meta"), *settings)
    except RuntimeError:
        pooled = indices = x
    return laid(d, pooled.shape, x.dtype), x, *settings, laid(d, indices.shape, torch.int64)


@calls("max_pool3d_with_indices")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 3), *windows(d, 3), [d.choice([1, 1, 2])], d.random() < 0.5


@calls("avg_pool2d")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 2), *windows(d, 2), d.random() < 0.5, True, d.choice([None, 2, 0])


@calls("avg_pool3d")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 3), *windows(d, 3), d.random() < 0.5, True, d.choice([None, 2, 0])


@calls("_adaptive_avg_pool2d", "adaptive_max_pool2d", "upsample_nearest2d", "_upsample_nearest_exact2d")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 2), [d.choice([1, 2, 7]) for _ in range(2)]


@calls("_adaptive_avg_pool3d", "adaptive_max_pool3d", "upsample_nearest3d", "_upsample_nearest_exact3d")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 3), [d.choice([1, 2, 7]) for _ in range(3)]


@calls("upsample_nearest1d", "_upsample_nearest_exact1d")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 1), [d.choice([1, 2, 7])]


@calls("upsample_linear1d")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 1), [d.choice([1, 2, 7])], d.random() < 0.5


@calls("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 2), [d.choice([1, 2, 7]) for _ in range(2)], d.random() < 0.5


@calls("upsample_trilinear3d")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 3), [d.choice([1, 2, 7]) for _ in range(3)], d.random() < 0.5


@calls("pixel_shuffle")
def _(d: Draw) -> Sequence[Any]:
    return laid(d, (*a_shape(d, 0, 2), d.choice([1, 4, 8]), 3, 5), d.choice(DTYPES)), d.choice([1, 2])


@calls("pixel_unshuffle")
def _(d: Draw) -> Sequence[Any]:
    return laid(d, (*a_shape(d, 1, 3), d.choice([2, 3, 4]), 4), d.choice(DTYPES)), d.choice([1, 2])


@calls("constant_pad_nd")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, [d.choice([0, 1, 2, -1]) for _ in range(2 * d.randint(0, x.dim()))], d.choice([0, 1.5])


@calls("reflection_pad1d", "replication_pad1d")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 1), [d.choice([0, 1, 2, -1]) for _ in range(2)]


@calls("reflection_pad2d", "replication_pad2d")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 2), [d.choice([0, 1, 2, -1]) for _ in range(4)]


@calls("reflection_pad3d", "replication_pad3d")
def _(d: Draw) -> Sequence[Any]:
    return a_picture(d, 3), [d.choice([0, 1, 2, -1]) for _ in range(6)]


# Dropout, attention, recurrence


@calls("native_dropout")
def _(d: Draw) -> Sequence[Any]:
    return laid(d, a_shape(d), d.choice(DTYPES)), d.choice([0.1, 0.5, 0.0]), d.choice([True, True, False, None])


@calls("_scaled_dot_product_flash_attention_for_cpu")
def _(d: Draw) -> Sequence[Any]:
    dtype = d.choice(FLOATS)
    query, key = (2, 4, 5, 8), (2, d.choice([1, 2, 4]), d.choice([5, 7]), 8)
    return laid(d, query, dtype), laid(d, key, dtype), laid(d, key, dtype), 0.0, d.random() < 0.5, {"scale": 0.5}


@calls("_transformer_encoder_layer_fwd")
def _(d: Draw) -> Sequence[Any]:
    w, b = meta((8, 8), torch.float32), meta((8,), torch.float32)
    return laid(d, (2, 3, 8)), 8, 2, w, b, w, b, True, False, 1e-5, b, b, b, b, w, b, w, b


@calls("mkldnn_rnn_layer")
def _(d: Draw) -> Sequence[Any]:
    x, w, h = laid(d, (3, 2, 4), d.choice(FLOATS)), meta((20, 4), torch.float32), laid(d, (2, 5))
    first, train = d.random() < 0.5, d.random() < 0.5
    return x, w, w, w, w, h, h, False, [], 2, 5, 1, True, False, first, train


@calls("mkldnn_rnn_layer_backward")
def _(d: Draw) -> Sequence[Any]:
    x, w_ih, w_hh = laid(d, (3, 2, 4), d.choice(FLOATS)), meta((20, 4), torch.float32), meta((20, 5), torch.float32)
    b, h, y = meta((20,), torch.float32), laid(d, (1, 2, 5)), laid(d, (3, 2, 5))
    kept = meta((0,), torch.uint8)
    return x, w_ih, w_hh, b, b, h, h, y, h, h, y, h, h, False, 2, 5, 1, True, True, False, [], False, kept


@calls("_thnn_fused_gru_cell")
def _(d: Draw) -> Sequence[Any]:
    gates, hidden = laid(d, (2, 15)), laid(d, (2, 5))
    return gates, gates, hidden, None, None


@calls("_thnn_fused_gru_cell_backward")
def _(d: Draw) -> Sequence[Any]:
    return laid(d, (2, 5)), laid(d, (2, 25)), d.random() < 0.5


# Reductions


@calls("sum", "prod", "mean", "max", "min", "argmax", "argmin", "any", "all")
def _(d: Draw) -> Sequence[Any]:
    return (laid(d, a_shape(d), d.choice(DTYPES)),)


@calls("sum.dim_IntList", "mean.dim", "amax", "amin", "logsumexp", "any.dims", "all.dims")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, some_axes(d, x), d.random() < 0.5


@calls("prod.dim_int", "any.dim", "all.dim")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, an_axis(d, x), d.random() < 0.5


@calls("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, d.choice([None, some_axes(d, x)]), {"correction": d.choice([0, 1]), "keepdim": d.random() < 0.5}


@calls("linalg_vector_norm", "norm.ScalarOpt_dim")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, d.choice([2, 1.0]), some_axes(d, x), d.random() < 0.5


@calls("topk")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, d.choice([0, 1, 2]), an_axis(d, x)


@calls("sort.stable")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, {"stable": True, "dim": an_axis(d, x)}


# Joining and picking


@calls("cat")
def _(d: Draw) -> Sequence[Any]:
    shape = a_shape(d, 0, 4)
    axis = d.randrange(len(shape)) if shape else 0
    dtype, odd = d.choice(DTYPES), d.choice([0.0, 0.5])
    parts = []
    for _ in range(d.randint(1, 3)):
        sizes = [d.randint(1, 4) if place == axis else near(d, size)[0] for place, size in enumerate(shape)]
        parts.append(laid(d, sizes, dtype if d.random() < 0.8 else d.choice(DTYPES), odd))
    return parts, axis


@calls("stack")
def _(d: Draw) -> Sequence[Any]:
    shape, dtype = a_shape(d, 0, 4), d.choice(DTYPES)
    parts = [laid(d, near(d, *shape), dtype if d.random() < 0.8 else d.choice(DTYPES)) for _ in range(d.randint(1, 3))]
    return parts, d.randint(-len(shape) - 1, len(shape))


@calls("index_select")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, an_axis(d, x), laid(d, (3,), d.choice([torch.int64, torch.int32]))


@calls("gather")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, an_axis(d, x), laid(d, near(d, *x.shape), torch.int64)


@calls("index.Tensor")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d, 1, 4), d.choice(DTYPES), 0.2)
    shape = a_shape(d, 0, 3)
    dtype = d.choice([torch.int64, torch.int64, torch.int32])
    picks = [d.choice([None, laid(d, a_part_of(d, shape), dtype, 0.2)]) for _ in range(d.randint(1, x.dim()))]
    return x, picks


# Moving and making


@calls("roll")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    axes = some_axes(d, x)
    return x, [d.randint(-2, 2) for _ in axes or [0]], axes


@calls("flip")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), d.choice(DTYPES))
    return x, some_axes(d, x)


@calls("repeat")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d, 0, 3), d.choice(DTYPES))
    return x, [d.choice([0, 1, 2, 3]) for _ in range(d.randint(max(x.dim() - 1, 0), x.dim() + 2))]


@calls("new_empty", "new_zeros", "new_ones", "new_full")
def _(d: Draw) -> Sequence[Any]:
    return laid(d, a_shape(d), d.choice(DTYPES)), a_shape(d), {"dtype": d.choice([None, torch.int64])}


@calls("new_full")
def _(d: Draw) -> Sequence[Any]:
    return laid(d, a_shape(d), d.choice(DTYPES)), a_shape(d), 1.5


@calls("zeros", "ones", "empty.memory_format", "rand", "randn")
def _(d: Draw) -> Sequence[Any]:
    return a_shape(d), {"dtype": d.choice([None, *FLOATS]), "device": "meta"}


@calls("full")
def _(d: Draw) -> Sequence[Any]:
    return a_shape(d), d.choice([2, 0.5, True]), {"dtype": d.choice([None, *DTYPES]), "device": "meta"}


@calls("scalar_tensor")
def _(d: Draw) -> Sequence[Any]:
    return d.choice([2, 0.5, True]), {"dtype": d.choice([None, *DTYPES]), "device": "meta"}


@calls("arange")
def _(d: Draw) -> Sequence[Any]:
    return d.choice([0, 1, 7, 2.5, -1]), {"dtype": d.choice([None, *FLOATS, torch.int64]), "device": "meta"}


@calls("arange.start")
def _(d: Draw) -> Sequence[Any]:
    return d.randint(-5, 5), d.randint(-5, 5), {"device": "meta"}


@calls("arange.start_step")
def _(d: Draw) -> Sequence[Any]:
    return d.randint(-5, 5), d.randint(-5, 5), d.randint(-3, 3), {"device": "meta"}


@calls("bernoulli_.float", "uniform_", "normal_", "exponential_")
def _(d: Draw) -> Sequence[Any]:
    return laid(d, a_shape(d), d.choice(DTYPES)), 0.5


@calls("clamp", "clamp_")
def _(d: Draw) -> Sequence[Any]:
    return laid(d, a_shape(d), d.choice(DTYPES)), d.choice([None, 0, -1.0]), d.choice([None, 6, 1.5])


@calls("clamp.Tensor", "clamp_.Tensor")
def _(d: Draw) -> Sequence[Any]:
    shape, dtype = a_shape(d), d.choice(DTYPES)
    limits = [laid(d, a_part_of(d, shape), dtype if d.random() < 0.8 else d.choice(DTYPES)) for _ in range(2)]
    return laid(d, shape, dtype), *(d.choice([None, limit, limit]) for limit in limits)


@calls("div.Tensor_mode", "div.Scalar_mode")
def _(d: Draw) -> Sequence[Any]:
    shape, dtype = a_shape(d), d.choice(DTYPES)
    return laid(d, shape, dtype), d.choice([2, 0.5]), {"rounding_mode": d.choice([None, "floor", "trunc"])}


@calls("hardtanh", "hardtanh_")
def _(d: Draw) -> Sequence[Any]:
    return laid(d, a_shape(d), d.choice(DTYPES)), 0, 6


@calls("leaky_relu", "leaky_relu_", "celu", "celu_", "elu", "elu_")
def _(d: Draw) -> Sequence[Any]:
    return laid(d, a_shape(d), d.choice(DTYPES)), 0.1


@calls("add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor")
def _(d: Draw) -> Sequence[Any]:
    shape, dtype = a_shape(d), d.choice(DTYPES)
    other = laid(d, a_part_of(d, shape), dtype if d.random() < 0.8 else d.choice(DTYPES))
    operand = other if d.random() < 0.7 else d.choice([2, 0.5, True])
    return laid(d, shape, dtype), operand, {"alpha": d.choice([1, 2, 0.5])}


@calls("masked_fill.Scalar", "masked_fill_.Scalar")
def _(d: Draw) -> Sequence[Any]:
    shape = a_shape(d)
    return laid(d, shape, d.choice(DTYPES)), laid(d, a_part_of(d, shape), torch.bool), d.choice([0, 1.5])


@calls("masked_fill.Tensor", "masked_fill_.Tensor")
def _(d: Draw) -> Sequence[Any]:
    shape = a_shape(d)
    value = laid(d, a_shape(d, 0, 1), d.choice(DTYPES))
    return laid(d, shape, d.choice(DTYPES)), laid(d, a_part_of(d, shape), torch.bool), value


@calls("fill_.Tensor")
def _(d: Draw) -> Sequence[Any]:
    return laid(d, a_shape(d), d.choice(DTYPES)), laid(d, a_shape(d, 0, 1), d.choice(DTYPES))


@calls("where.self")
def _(d: Draw) -> Sequence[Any]:
    shape, dtypes = a_shape(d), [d.choice(DTYPES)] * 3 + list(DTYPES)
    odd = d.choice([0.0, 0.4])
    condition = laid(d, a_part_of(d, shape), torch.bool, odd)
    return condition, *(laid(d, a_part_of(d, shape), d.choice(dtypes), odd) for _ in range(2))


# Views


@calls("view", "_unsafe_view")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d), torch.float32)
    factors = [size for size in x.shape for size in ((2, 2) if size == 4 else (size,)) if size > 1 or d.random() < 0.5]
    shape: list[int] = []
    for factor in factors:
        if shape and d.random() < 0.4:
            shape[-1] *= factor
        else:
            shape.append(factor)
        if d.random() < 0.2:
            shape.append(1)
    if shape and d.random() < 0.3:
        shape[d.randrange(len(shape))] = -1
    return x, shape


@calls("permute")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d))
    return x, d.sample(range(-x.dim(), 0), x.dim()) if d.random() < 0.5 else some_axes(d, x)


@calls("transpose.int")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d))
    return x, an_axis(d, x), an_axis(d, x)


@calls("t")
def _(d: Draw) -> Sequence[Any]:
    return (laid(d, a_shape(d, 0, 3)),)


@calls("alias", "detach", "squeeze")
def _(d: Draw) -> Sequence[Any]:
    return (laid(d, a_shape(d)),)


@calls("expand")
def _(d: Draw) -> Sequence[Any]:
    shape = a_shape(d)
    part = a_part_of(d, shape)
    return laid(d, part), [-1 if d.random() < 0.2 else size for size in shape]


@calls("slice.Tensor")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d))
    return x, an_axis(d, x), d.choice([None, 0, 1, -2, 9]), d.choice([None, 0, 2, -1, 9, sys.maxsize]), d.choice([1, 2])


@calls("select.int")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d))
    return x, an_axis(d, x), d.randint(-3, 3)


@calls("unsqueeze", "squeeze.dim", "unbind.int")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d))
    return x, an_axis(d, x)


@calls("squeeze.dims")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d))
    return x, d.sample(range(x.dim()), d.randint(0, x.dim()))


@calls("split.Tensor", "unsafe_split.Tensor")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d))
    return x, d.choice([1, 2, 3]), an_axis(d, x)


@calls("split_with_sizes", "unsafe_split_with_sizes")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d, 1))
    axis = d.randrange(x.dim())
    cut = d.randint(0, x.shape[axis])
    return x, near(d, cut, x.shape[axis] - cut), axis


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_a_view_is_where_the_meta_kernel_looks(name: str) -> None:
    draw, func, answered = Draw(zlib.crc32(name.encode())), operator(name), 0
    for _ in range(5 * CASES):
        args, options = CALLS[name.removeprefix("aten::")](draw)
        views = viewed(func, args, options)
        if views is not None:
            answered += 1
            out, x = func(*args, **options), args[0]
            truth = [View(o.shape, o.stride(), o.storage_offset() - x.storage_offset()) for o in tree_leaves(out)]
            views = views if isinstance(views, list) else [views]
            assert views == truth, f"{func} of {tuple(x.shape)}, {x.stride()}, {args[1:]}"
    assert answered > CASES


# Silence

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (torch.ops.aten.mm.default, ((2, 3), (4, 5))),
        (torch.ops.aten.bmm.default, ((2, 3, 4), (3, 4, 5))),
        (torch.ops.aten.add.Tensor, ((2, 3), (4, 3))),
        (torch.ops.aten.add_.Tensor, ((1, 3), (4, 3))),
        (torch.ops.aten.addmm.default, ((7,), (2, 3), (3, 5))),
        (torch.ops.aten.linear.default, ((2, 3), (5, 4))),
        (ATTENTION, ((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 5))),
    ],
)
def test_mismatching_sizes_get_no_answer(func: OpOverload, args: Sequence[Sequence[int]]) -> None:
    assert ruled(func, tuple(meta(shape, torch.float32) for shape in args), {}) is None


def test_a_convolution_of_wrong_channels_gets_no_answer() -> None:
    image, weight = meta((1, 3, 8, 8), torch.float32), meta((4, 4, 3, 3), torch.float32)
    args = (image, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert ruled(torch.ops.aten.convolution.default, args, {}) is None


def test_mixed_and_complex_dtypes_get_no_answer() -> None:
    single, half = meta((2, 2), torch.float32), meta((2, 2), torch.float16)
    assert ruled(torch.ops.aten.mm.default, (single, half), {}) is None
    assert ruled(torch.ops.aten.abs.default, (meta((2, 2), torch.complex64),), {}) is None


def test_an_operator_without_a_rule_gets_no_answer() -> None:
    assert ruled(torch.ops.aten._fft_r2c.default, (meta((4,), torch.float32), [0], 0, True), {}) is None


COLD = """
import sys, torch
from torch import nn
from torchsummary_plus import measure_memory, summary
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10), nn.Softmax(1))
ran = [summary(model, (3, 32, 32), verbose=0, mode=mode, run="fake").run.kind for mode in ("train", "eval")]
measure_memory(model, (3, 32, 32), mode="eval")
print(ran, sorted({"sympy", "torch._dynamo", "numpy.random"} & set(sys.modules)))
"""


def test_a_common_model_imports_nothing_of_the_compiler_nor_of_random_numbers() -> None:
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=True)
    assert done.stdout == "['fake', 'fake'] []\n"
