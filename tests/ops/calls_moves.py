"""Random arguments for reductions, views, and operators that move, join or create elements."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from .draws import (
    DTYPES,
    FLOATS,
    Draw,
    a_part_of,
    a_shape,
    an_axis,
    calls,
    laid,
    near,
    of_any,
    some_axes,
)

# Reductions


calls("mean")(of_any(lambda d, x: (x,)))
calls("sum.dim_IntList", "mean.dim", "amax", "amin", "any.dims", "all.dims")(
    of_any(lambda d, x: (x, some_axes(d, x), d.random() < 0.5))
)
calls("prod.dim_int", "any.dim", "all.dim")(of_any(lambda d, x: (x, an_axis(d, x), d.random() < 0.5)))
calls("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")(
    of_any(
        lambda d, x: (
            x,
            d.choice([None, some_axes(d, x)]),
            {"correction": d.choice([0, 1]), "keepdim": d.random() < 0.5},
        )
    )
)
calls("linalg_vector_norm")(of_any(lambda d, x: (x, d.choice([2, 1.0]), some_axes(d, x), d.random() < 0.5)))
calls("topk")(of_any(lambda d, x: (x, d.choice([0, 1, 2]), an_axis(d, x))))
calls("sort.stable")(of_any(lambda d, x: (x, {"stable": True, "dim": an_axis(d, x)})))


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


calls("index_select")(of_any(lambda d, x: (x, an_axis(d, x), laid(d, (3,), d.choice([torch.int64, torch.int32])))))
calls("gather")(of_any(lambda d, x: (x, an_axis(d, x), laid(d, near(d, *x.shape), torch.int64))))


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


calls("flip")(of_any(lambda d, x: (x, some_axes(d, x))))


@calls("repeat")
def _(d: Draw) -> Sequence[Any]:
    x = laid(d, a_shape(d, 0, 3), d.choice(DTYPES))
    return x, [d.choice([0, 1, 2, 3]) for _ in range(d.randint(max(x.dim() - 1, 0), x.dim() + 2))]


calls("new_empty", "new_zeros", "new_ones", "new_full")(
    lambda d: (laid(d, a_shape(d), d.choice(DTYPES)), a_shape(d), {"dtype": d.choice([None, torch.int64])})
)
calls("new_full")(lambda d: (laid(d, a_shape(d), d.choice(DTYPES)), a_shape(d), 1.5))
calls("zeros", "ones", "empty.memory_format", "rand", "randn")(
    lambda d: (a_shape(d), {"dtype": d.choice([None, *FLOATS]), "device": "meta"})
)
calls("full")(lambda d: (a_shape(d), d.choice([2, 0.5, True]), {"dtype": d.choice([None, *DTYPES]), "device": "meta"}))
calls("scalar_tensor")(lambda d: (d.choice([2, 0.5, True]), {"dtype": d.choice([None, *DTYPES]), "device": "meta"}))
calls("arange")(
    lambda d: (d.choice([0, 1, 7, 2.5, -1]), {"dtype": d.choice([None, *FLOATS, torch.int64]), "device": "meta"})
)
calls("arange.start")(lambda d: (d.randint(-5, 5), d.randint(-5, 5), {"device": "meta"}))
calls("arange.start_step")(lambda d: (d.randint(-5, 5), d.randint(-5, 5), d.randint(-3, 3), {"device": "meta"}))
calls("bernoulli_.float", "uniform_", "normal_", "exponential_")(lambda d: (laid(d, a_shape(d), d.choice(DTYPES)), 0.5))
calls("clamp", "clamp_")(
    lambda d: (laid(d, a_shape(d), d.choice(DTYPES)), d.choice([None, 0, -1.0]), d.choice([None, 6, 1.5]))
)


@calls("clamp.Tensor", "clamp_.Tensor")
def _(d: Draw) -> Sequence[Any]:
    shape, dtype = a_shape(d), d.choice(DTYPES)
    limits = [laid(d, a_part_of(d, shape), dtype if d.random() < 0.8 else d.choice(DTYPES)) for _ in range(2)]
    return laid(d, shape, dtype), *(d.choice([None, limit, limit]) for limit in limits)


@calls("div.Tensor_mode", "div.Scalar_mode")
def _(d: Draw) -> Sequence[Any]:
    shape, dtype = a_shape(d), d.choice(DTYPES)
    return laid(d, shape, dtype), d.choice([2, 0.5]), {"rounding_mode": d.choice([None, "floor", "trunc"])}


@calls("masked_fill.Scalar", "masked_fill_.Scalar")
def _(d: Draw) -> Sequence[Any]:
    shape = a_shape(d)
    return laid(d, shape, d.choice(DTYPES)), laid(d, a_part_of(d, shape), torch.bool), d.choice([0, 1.5])


@calls("masked_fill.Tensor", "masked_fill_.Tensor")
def _(d: Draw) -> Sequence[Any]:
    shape = a_shape(d)
    value = laid(d, a_shape(d, 0, 1), d.choice(DTYPES))
    return laid(d, shape, d.choice(DTYPES)), laid(d, a_part_of(d, shape), torch.bool), value


calls("fill_.Tensor")(lambda d: (laid(d, a_shape(d), d.choice(DTYPES)), laid(d, a_shape(d, 0, 1), d.choice(DTYPES))))


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


calls("t")(lambda d: (laid(d, a_shape(d, 0, 3)),))
calls("alias", "detach", "squeeze")(lambda d: (laid(d, a_shape(d)),))


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
