"""Random arguments for operators: mostly valid ones in many layouts, some invalid."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

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


def operator(name: str) -> Any:
    """The overload with the name, None where this torch has none."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


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


def of_any(make: Callable[[Draw, Tensor], Sequence[Any]]) -> Callable[[Draw], Sequence[Any]]:
    """Arguments that depend on a tensor of any shape, dtype and layout."""
    return lambda d: make(d, laid(d, a_shape(d), d.choice(DTYPES)))


@calls("_grouped_mm")
def _grouped_products(draw: Draw) -> Sequence[Any]:
    """In bfloat16, the one dtype for which torch has a meta kernel."""
    groups, rows, inner, columns = draw.randint(1, 3), *(8 * draw.randint(1, 3) for _ in range(3))
    batch = [groups] * (draw.random() < 0.5), [groups] * (draw.random() < 0.5)
    x, y = meta((*batch[0], rows, inner), torch.bfloat16), meta((*batch[1], inner, columns), torch.bfloat16)
    offsets = [] if batch == ([groups], [groups]) else [meta((groups,), torch.int32)]
    return x, y, *offsets, {}
