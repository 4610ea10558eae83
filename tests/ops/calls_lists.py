"""Random arguments for operators on lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchsummary_plus.ops.shapes.pointwise import KEEPING

from .draws import DTYPES, FLOATS, Draw, a_shape, calls, laid, operator


def drawn(d: Draw, name: str) -> Sequence[Any]:
    """Lists of tensors that mostly agree with each other, and numbers."""
    dtype, odd = d.choice(FLOATS if d.random() < 0.8 else DTYPES), d.choice([0.0, 0.0, 0.4])
    shapes = [a_shape(d, most=4) for _ in range(d.randint(1, 3))]
    args: list[Any] = []
    options: dict[str, Any] = {}
    for argument in operator(f"aten::{name}")._schema.arguments:
        kind = str(argument.type)
        if kind == "List[Tensor]":
            args.append([laid(d, shape, dtype if d.random() < 0.95 else d.choice(DTYPES), odd) for shape in shapes])
        elif not argument.has_default_value():
            numbers = [d.choice([2, 0.5, 3, 1.0, True]) for _ in shapes]
            args.append(numbers if kind.startswith("List") else numbers[0])
        elif argument.kwarg_only and d.random() < 0.2:
            options[argument.name] = 2
    return *args, options


for short in KEEPING.split():
    calls(f"_foreach_{short}")(lambda d, name=f"_foreach_{short}": drawn(d, name))  # type: ignore[misc]
