"""Random arguments for operators: mostly valid ones in many layouts, some invalid."""

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float32, torch.bfloat16)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool)
Draw = random.Random
Drawn = tuple[Sequence[Any], dict[str, Any]]


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


def an_axis(draw: Draw, x: Tensor) -> int:
    return draw.randint(-x.dim() - (draw.random() < 0.05), max(x.dim() - 1, 0))


def some_axes(draw: Draw, x: Tensor) -> list[int]:
    return draw.sample(range(x.dim()), draw.randint(0, x.dim())) if draw.random() < 0.9 else [an_axis(draw, x)] * 2


def operator(name: str) -> Any:
    """The overload with the name, None where this torch has none."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def by_schema(draw: Draw, name: str) -> Drawn:
    """Operands that broadcast, lists that mostly agree, and numbers; what has a default is mostly left out."""
    shape, dtype, odd = a_shape(draw), draw.choice(DTYPES), draw.choice([0.0, 0.4])
    shapes = [a_shape(draw, most=4) for _ in range(draw.randint(1, 3))]
    args: list[Any] = []
    options: dict[str, Any] = {}
    for argument in operator(name)._schema.arguments:
        kind = str(argument.type)
        if kind == "Tensor" or (kind == "Optional[Tensor]" and draw.random() < 0.5):
            own = a_part_of(draw, shape) if args else shape
            is_mask = argument.name in ("mask", "condition")
            kind_of = torch.bool if is_mask else dtype if draw.random() < 0.8 else draw.choice(DTYPES)
            value: Any = laid(draw, own, kind_of, odd)
        elif kind == "List[Tensor]":
            value = [laid(draw, size, dtype if draw.random() < 0.95 else draw.choice(DTYPES), odd) for size in shapes]
        elif argument.name == "memory_format" and draw.random() < 0.5:
            value = draw.choice([torch.preserve_format, torch.contiguous_format, torch.channels_last])
        elif argument.name == "dtype" and argument.kwarg_only and draw.random() < 0.5:
            value = draw.choice(DTYPES)
        elif argument.name == "rounding_mode":
            value = draw.choice([None, "floor", "trunc"])
        elif argument.has_default_value():
            continue
        else:
            numbers = [
                draw.choice([2, 0.5, 3, 1.0, True, None] if "Optional" in kind else [2, 0.5, 3, 1.0, True])
                for _ in shapes
            ]
            value = numbers if kind.startswith("List") else numbers[0]
        if argument.kwarg_only:
            options[argument.name] = value
        else:
            args.append(value)
    return args, options


def of_axes(draw: Draw, name: str) -> Drawn:
    """A tensor, one of its axes or several, and whether they stay."""
    x, args, options = laid(draw, a_shape(draw), draw.choice(DTYPES)), [], {}
    for argument in operator(name)._schema.arguments[1:]:
        kind = str(argument.type)
        value: Any = draw.random() < 0.5
        if argument.name.startswith("dim"):
            value = some_axes(draw, x) if "List" in kind else an_axis(draw, x)
        elif argument.name in ("k", "ord", "correction"):
            value = draw.choice([1, 2])
        elif kind != "bool" and kind != "Optional[bool]":
            continue
        if argument.kwarg_only:
            options[argument.name] = value
        else:
            args.append(value)
    return [x, *args], options


def varied(draw: Draw, value: Any, dtype: torch.dtype | None, wild: float, odd: float) -> Any:
    """An argument in another layout, of a dtype if it is of floats, and, now and then, of another size or number."""
    if isinstance(value, (list, tuple)):
        return [varied(draw, item, dtype, wild, odd) for item in value]
    if isinstance(value, Tensor):
        size = [size + (draw.random() < 0.3 * wild) for size in value.shape]
        is_cast = dtype and value.is_floating_point() and draw.random() < 1 - wild / 2
        return laid(draw, size, dtype if is_cast else value.dtype, odd)
    if isinstance(value, bool):
        return value != (draw.random() < wild)
    return value + draw.choice([-1, 1]) if type(value) is int and draw.random() < wild else value


def filled(x: Any, like: Any) -> Any:
    """A real tensor laid as another, with the numbers of a third one, where it can have them."""
    if not isinstance(x, Tensor):
        return [filled(*pair) for pair in zip(x, like)] if isinstance(x, (list, tuple)) else x
    y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return y.copy_(like) if 0 not in x.stride() else y.fill_(like.flatten()[0].item())
