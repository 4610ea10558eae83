"""Random arguments for layers' operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .draws import (
    DTYPES,
    FLOATS,
    Draw,
    a_part_of,
    a_shape,
    an_axis,
    calls,
    laid,
    meta,
    near,
    of_any,
)

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


calls("convolution")(lambda d: a_convolution(d, d.choice([1, 2, 2, 2, 3]), 0.4))
calls("_convolution")(lambda d: (*a_convolution(d, d.choice([1, 2, 2, 2, 3]), 0.4), True, False, True, True))


@calls("convolution_backward")
def _(d: Draw) -> Sequence[Any]:
    x, weight, _, *settings = a_convolution(d, d.choice([1, 2, 2, 2, 3]), 0.2)
    channels = weight.shape[1] * settings[-1] if settings[3] else weight.shape[0]
    grad = laid(d, (x.shape[0], channels, *(1 for _ in x.shape[2:])), x.dtype)
    wanted = [d.random() < 0.7 for _ in range(3)]
    return grad, x, weight, d.choice([None, [channels]]), *settings, wanted


# Normalisation


def an_image(d: Draw, least: int = 0, most: int = 3, odd: float = 0.3) -> Tensor:
    sizes = [d.randint(1, 9) for _ in range(d.randint(least, most))]
    return laid(d, (d.randint(1, 3), d.choice([2, 4, 6]), *sizes), d.choice(FLOATS), odd)


def parameters(d: Draw, x: Tensor, size: Sequence[int], count: int) -> list[Tensor | None]:
    dtype = d.choice([x.dtype, torch.float32])
    return [None if d.random() < 0.1 else laid(d, near(d, *size), dtype) for _ in range(count)]


@calls("native_batch_norm_backward")
def _(d: Draw) -> Sequence[Any]:
    x, grad = (an_image(Draw(d.choice("ab")), odd=d.choice([0.0, 0.3])) for _ in range(2))
    weight, *saved = (laid(d, (x.shape[1],), dtype) for dtype in (d.choice([x.dtype, torch.float32]), *FLOATS[:2] * 2))
    wanted = [d.random() < 0.95 for _ in range(3)]
    return grad, x, weight, *saved, d.random() < 0.8, 1e-5, wanted


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


calls("_softmax", "_log_softmax")(of_any(lambda d, x: (x, an_axis(d, x), d.random() < 0.1)))


@calls("glu")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, [d.choice([2, 4, 6, 3]) for _ in range(d.randint(0, 5))], d.choice(FLOATS))
    return x, an_axis(d, x)


calls("_safe_softmax", "cumsum", "cumprod", "max.dim", "min.dim", "sort")(of_any(lambda d, x: (x, an_axis(d, x))))


# Pooling, resampling and padding


def windows(d: Draw, axes: int) -> list[list[int]]:
    def setting(*values: int) -> list[int]:
        return [d.choice(values) for _ in range(d.choice([1, axes]))]

    return [setting(1, 2, 3), d.choice([[], setting(1, 2, 3)]), setting(0, 0, 1)]


def an_image_of(d: Draw, axes: int) -> Tensor:
    sizes = [d.randint(1, 9) for _ in range(axes)]
    return laid(d, (*(d.randint(1, 3) for _ in range(d.choice([1, 2, 2]))), *sizes), d.choice((*FLOATS, torch.int64)))


calls("max_pool2d_with_indices")(lambda d: (an_image_of(d, 2), *windows(d, 2), [d.choice([1, 1, 2])], d.random() < 0.5))


@calls("max_pool2d_with_indices_backward")
def _(d: Draw) -> Sequence[Any]:
    settings = *windows(d, 2), [d.choice([1, 1, 2])], d.random() < 0.5
    x = laid(d, (2, 3, d.randint(5, 9), d.randint(5, 9)), d.choice(FLOATS), 0.4)
    try:
        pooled, indices = torch.ops.aten.max_pool2d_with_indices(x.to("meta"), *settings)
    except RuntimeError:
        pooled = indices = x
    return laid(d, pooled.shape, x.dtype), x, *settings, laid(d, indices.shape, torch.int64)


calls("max_pool3d_with_indices")(lambda d: (an_image_of(d, 3), *windows(d, 3), [d.choice([1, 1, 2])], d.random() < 0.5))
calls("avg_pool2d")(lambda d: (an_image_of(d, 2), *windows(d, 2), d.random() < 0.5, True, d.choice([None, 2, 0])))
calls("avg_pool3d")(lambda d: (an_image_of(d, 3), *windows(d, 3), d.random() < 0.5, True, d.choice([None, 2, 0])))
calls("_adaptive_avg_pool2d", "adaptive_max_pool2d", "upsample_nearest2d", "_upsample_nearest_exact2d")(
    lambda d: (an_image_of(d, 2), [d.choice([1, 2, 7]) for _ in range(2)])
)
calls("_adaptive_avg_pool3d", "upsample_nearest3d", "_upsample_nearest_exact3d")(
    lambda d: (an_image_of(d, 3), [d.choice([1, 2, 7]) for _ in range(3)])
)
calls("upsample_nearest1d", "_upsample_nearest_exact1d")(lambda d: (an_image_of(d, 1), [d.choice([1, 2, 7])]))
calls("upsample_linear1d")(lambda d: (an_image_of(d, 1), [d.choice([1, 2, 7])], d.random() < 0.5))
calls("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")(
    lambda d: (an_image_of(d, 2), [d.choice([1, 2, 7]) for _ in range(2)], d.random() < 0.5)
)
calls("upsample_trilinear3d")(lambda d: (an_image_of(d, 3), [d.choice([1, 2, 7]) for _ in range(3)], d.random() < 0.5))
calls("pixel_shuffle")(
    lambda d: (laid(d, (*a_shape(d, 0, 2), d.choice([1, 4, 8]), 3, 5), d.choice(DTYPES)), d.choice([1, 2]))
)
calls("pixel_unshuffle")(
    lambda d: (laid(d, (*a_shape(d, 1, 3), d.choice([2, 3, 4]), 4), d.choice(DTYPES)), d.choice([1, 2]))
)
calls("constant_pad_nd")(
    of_any(lambda d, x: (x, [d.choice([0, 1, 2, -1]) for _ in range(2 * d.randint(0, x.dim()))], d.choice([0, 1.5])))
)
calls("reflection_pad1d", "replication_pad1d")(
    lambda d: (an_image_of(d, 1), [d.choice([0, 1, 2, -1]) for _ in range(2)])
)
calls("reflection_pad2d", "replication_pad2d")(
    lambda d: (an_image_of(d, 2), [d.choice([0, 1, 2, -1]) for _ in range(4)])
)
calls("reflection_pad3d", "replication_pad3d")(
    lambda d: (an_image_of(d, 3), [d.choice([0, 1, 2, -1]) for _ in range(6)])
)


# Dropout, attention, recurrence


calls("native_dropout")(
    lambda d: (laid(d, a_shape(d), d.choice(DTYPES)), d.choice([0.1, 0.5, 0.0]), d.choice([True, True, False, None]))
)


@calls("_scaled_dot_product_flash_attention_for_cpu")
def _(d: Draw) -> Sequence[Any]:
    dtype = d.choice(FLOATS)
    query, key = (2, 4, 5, 8), (2, d.choice([1, 2, 4]), d.choice([5, 7]), 8)
    return laid(d, query, dtype), laid(d, key, dtype), laid(d, key, dtype), 0.0, d.random() < 0.5, {"scale": 0.5}


@calls("_native_multi_head_attention")
def _(d: Draw) -> Sequence[Any]:
    x, w, b = laid(d, (2, 3, 8), d.choice(FLOATS)), meta((24, 8), torch.float32), meta((24,), torch.float32)
    averaged = d.random() < 0.5
    return x, x, x, 8, 2, w, b, meta((8, 8), torch.float32), meta((8,), torch.float32), None, True, averaged


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
    workspace = meta((0,), torch.uint8)
    return x, w_ih, w_hh, b, b, h, h, y, h, h, y, h, h, False, 2, 5, 1, True, True, False, [], False, workspace


@calls("_thnn_fused_gru_cell")
def _(d: Draw) -> Sequence[Any]:
    gates, hidden = laid(d, (2, 15)), laid(d, (2, 5))
    return gates, gates, hidden, None, None


calls("_thnn_fused_gru_cell_backward")(lambda d: (laid(d, (2, 5)), laid(d, (2, 25)), d.random() < 0.5))
