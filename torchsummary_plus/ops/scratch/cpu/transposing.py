"""The buffer through which the CPU copies a turned matrix, and the operators that copy one.

Source: aten/src/ATen/native/Copy.cpp, ``copy_same_type_transpose_``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...shapes.views import VIEWS, View, ViewResult
from ..registry import Phase, scratch
from ..sizes import NATIVE, copied, itemsize

BLOCK, LARGE_BLOCK = 60, 120
"""Block sizes, in rows and columns, of a transposing copy; the larger one is for 1-byte elements."""
COPY = f"{NATIVE}Copy.cpp, copy_same_type_transpose_"


def is_turned(x: Any) -> bool:
    """Whether the tensor is one matrix with contiguous columns."""
    return bool(x.dim() == 2 and x.stride() == (1, x.shape[0]) and not x._is_zerotensor())


def turned_block(x: Any) -> int:
    """Return the buffer that a transposing copy of one matrix uses, in bytes."""
    side = LARGE_BLOCK if x.dtype is torch.uint8 else BLOCK
    return side * side * itemsize(x) if x.dim() == 2 and x.numel() >= BLOCK * BLOCK else 0


def columns_block(x: Any) -> int:
    """Return the buffer of a column-major copy of one matrix, in bytes; 0 if its rows are not contiguous."""
    return turned_block(x) if x.dim() == 2 and x.stride() == (x.shape[1], 1) else 0


def copied_in_turn(*tensors: Any) -> tuple[int, int]:
    """Return the bytes of contiguous copies made one after another, and the most at once, with transposing buffers."""
    total = most = 0
    for tensor in tensors:
        if copied(tensor):
            total += copied(tensor)
            most = max(most, total + (turned_block(tensor) if is_turned(tensor) else 0))
    return total, most


def block_into(result: Any, x: Any) -> int:
    """Return the buffer of a copy of ``x`` into a tensor, in bytes; 0 if it does not transpose one matrix."""
    alike = result.dtype is x.dtype and result.shape == x.shape
    return turned_block(x) if alike and is_turned(x) and result.is_contiguous() else 0


def starts_as_copy(formula: Callable[..., int]) -> Callable[..., int]:
    """Return the formula of an operator whose result starts as a copy of its first operand."""

    def started(out: Any, x: Any, *args: Any, **kwargs: Any) -> int:
        return max(block_into(out, x), formula(out, x, *args, **kwargs))

    return started


@scratch("cpu", "aten::clone", "aten::_to_copy", source=COPY, band=0.0)
def _clone(out: Any, x: Any, **_: Any) -> int:
    return block_into(out, x)


@scratch("cpu", "aten::copy_", source=COPY, band=0.0)
def _copy(out: Any, into: Any, x: Any, *_: Any) -> int:
    return block_into(into, x)


@scratch(
    *("cpu", "aten::index_copy", "aten::masked_fill.Scalar", "aten::masked_fill.Tensor"),
    source=f"{NATIVE}TensorAdvancedIndexing.cpp, {COPY}",
    band=0.0,
)
@starts_as_copy
def _only_started(out: Any, *_: Any, **__: Any) -> int:
    return 0


def _of_view(view: Callable[..., ViewResult]) -> Callable[..., tuple[Phase, ...]]:
    """Return the formula of an operator that copies what a view looks at."""

    def formula(out: Any, x: Any, *args: Any, **kwargs: Any) -> tuple[Phase, ...]:
        views = view(x, *args, **kwargs)
        results = [out] if isinstance(views, View) else out
        blocks = [
            block_into(result, torch.empty_strided(shape, stride, dtype=x.dtype, device="meta"))
            for result, (shape, stride, _) in zip(results, [views] if isinstance(views, View) else views)
        ]
        return tuple(Phase(number, block) for number, block in enumerate(blocks, 1))

    return formula


def _name_of_copy(name: str) -> str:
    """Return the name of the operator that copies a view.

    >>> _name_of_copy("aten::transpose.int"), _name_of_copy("aten::t")
    ('aten::transpose_copy.int', 'aten::t_copy')
    """
    base, dot, overload = name.partition(".")
    return f"{base}_copy{dot}{overload}"


for _name, _view in VIEWS.items():
    scratch("cpu", _name_of_copy(_name), source=f"CompositeViewCopyKernels.cpp; {COPY}", band=0.0)(_of_view(_view))


@scratch(
    "cpu",
    *(f"aten::_fused_{name}_{way}" for name in ("adam", "adamw", "sgd", "adagrad") for way in ("", ".tensor_lr")),
    source=f"{NATIVE}cpu/FusedAdamKernel.cpp, FusedSGDKernel.cpp, FusedAdagradKernel.cpp",
    band=0.0,
)
def _gradients_one_by_one(
    out: Any, parameters: Any, gradients: Sequence[Any], *rest: Any, **options: Any
) -> tuple[Phase, ...]:
    """A contiguous copy of each gradient that needs one, one after the other."""
    copies = (copied_in_turn(gradient)[1] for gradient in gradients)
    return tuple(Phase(0, nbytes) for nbytes in copies if nbytes)
