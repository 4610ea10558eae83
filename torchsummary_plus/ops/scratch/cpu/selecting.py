"""Scratch memory of selecting by masks, and of finding elements: positions as integers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ....live.masks import masks_of
from ...dtypes import result_type
from ..masks import fills, mask_axes, masked_rows, most_rows, written_rows
from ..registry import ALL_RESULTS, AtMost, Phase, scratch
from ..sizes import INT64, NATIVE, elements, nbytes
from .pointwise import cast_bytes
from .reductions import GRAIN
from .transposing import copied_in_turn, starts_as_copy

EXPANDED = "aten/src/ATen/native/IndexingUtils.h, expandTensors: a mask becomes its nonzero()"


@scratch("cpu", "aten::index.Tensor", source=EXPANDED, band=0.0)
def _index(out: Any, x: Any, indices: Sequence[Any]) -> int:
    masks = masks_of(indices)
    return INT64 * masked_rows(out, x, indices) * mask_axes(masks) if masks else 0


@scratch("cpu", "aten::index_put", "aten::index_put_", source=EXPANDED, band=0.0)
def _index_put(out: Any, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> int | AtMost:
    """As many positions as the masks select, if known, or as there are values; else an upper bound."""
    masks = masks_of(indices)
    if not masks or (not accumulate and fills(indices, values)):
        return 0
    rows, each = written_rows(x, indices, values), INT64 * mask_axes(masks)
    return each * rows if rows is not None else AtMost(each * most_rows(indices))


@scratch(
    *("cpu", "aten::masked_scatter", "aten::masked_scatter_"),
    source="aten/src/ATen/native/TensorAdvancedIndexing.cpp",
    band=0.0,
)
@starts_as_copy
def _masked_scatter(out: Any, x: Any, mask: Any, source: Any) -> int:
    return copied_in_turn(source)[1]


@scratch("cpu", "aten::masked_scatter_backward", source="aten/src/ATen/native/TensorAdvancedIndexing.cpp", band=1.0)
def _masked_scatter_backward(out: Any, grad: Any, mask: Any, sizes: Sequence[int]) -> tuple[Phase, ...]:
    """The selected gradients, assumed to be as many as the source's elements; fewer are padded with zeros.

    A mask that selects nothing needs none of the second phase, hence the band.
    """
    count: int = prod(torch.broadcast_shapes(grad.shape, mask.shape))
    alone = _runs_alone(grad, mask, count)
    return Phase(0, INT64 * (1 + count)), Phase(ALL_RESULTS, 0 if alone else 2 * INT64 * count)


def _runs_alone(x: Any, mask: Any, count: int) -> bool:
    """Whether a selection runs on one thread in one pass."""
    in_line = x.shape == mask.shape and x.is_contiguous() and mask.is_contiguous()
    return in_line and (torch.get_num_threads() == 1 or count < GRAIN)


@scratch("cpu", "aten::masked_select", source="aten/src/ATen/native/TensorAdvancedIndexing.cpp", band=0.0)
def _masked_select(out: Any, x: Any, mask: Any) -> int:
    """One integer per element to count them, freed once the result exists; two each to split the work."""
    count: int = prod(torch.broadcast_shapes(x.shape, mask.shape))
    if _runs_alone(x, mask, count):
        return max(0, int(INT64 * (1 + count) - nbytes(out)))
    return 2 * INT64 * count


ISIN = f"{NATIVE}TensorCompare.cpp, isin"


@scratch("cpu", "aten::isin.Tensor_Scalar", source=ISIN, band=0.0)
def _is_number(out: Any, x: Any, number: Any, **_: Any) -> int:
    """Compared with the number."""
    common = result_type(x, number)
    return cast_bytes(x, common) + cast_bytes(number, common)


@scratch("cpu", "aten::isin.Scalar_Tensor", "aten::isin.Tensor_Tensor", source=ISIN, band=0.0)
def _is_among(out: Any, x: Any, among: Any, **_: Any) -> int | AtMost:
    """Few elements are compared one by one; among many, both are made unique, joined and sorted."""
    common = result_type(x, among)
    cast = cast_bytes(x, common) + cast_bytes(among, common)
    count, others, size = elements(x) if isinstance(x, torch.Tensor) else 1, elements(among), int(common.itemsize)
    if others < int(10 * count**0.145):
        return cast
    return AtMost(cast + (count + others) * (4 * size + 4 * INT64))


@scratch("cpu", "aten::nonzero_static", source=f"{NATIVE}TensorAdvancedIndexing.cpp, nonzero_static_out_cpu", band=0.0)
def _positions(out: Any, x: Any, **_: Any) -> AtMost:
    """The positions of all nonzero elements."""
    return AtMost(INT64 * elements(x) * max(1, x.dim()))
