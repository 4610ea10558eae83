"""Scratch memory of embedding bags on the CPU: each index's bag, and sorted indices."""

from __future__ import annotations

from typing import Any

import torch

from ....live.versions import since
from ...bags import MAX, MEAN, SUM, takes_fbgemm
from ...dtypes import HALVES
from ..registry import ALL_RESULTS, Phase, reserve, scratch
from ..sizes import INT64, NATIVE, copied, elements, itemsize, nbytes

BAG = f"{NATIVE}EmbeddingBag.cpp"

MEAN_IN_ONE_SINCE = "2.15"
"""The first release that divides by the bags' sizes with one copy of them, not two; measured on 2.13 and 2.15."""


def _places(indices: Any) -> int:
    """Return the bytes of each index's bag, plus one."""
    return (elements(indices) + 1) * itemsize(indices)


def _bags(offsets: Any, has_last: bool) -> int:
    return elements(offsets) - int(has_last)


@reserve("cpu", "aten::_embedding_bag", source=BAG, band=0.0)
def _results(
    out: Any, weight: Any, indices: Any, offsets: Any, by_frequency: bool = False, mode: int = SUM,
    sparse: bool = False, weights: Any = None, has_last: bool = False, padding: int = -1, trains: bool = True,
) -> tuple[int | None, ...]:  # fmt: skip
    """Return the bytes of the rows, each index's bag, the bag sizes, and the indices of the maxima."""
    bags = _bags(offsets, has_last and (trains or mode != SUM))
    places = 0 if mode == SUM and takes_fbgemm(weight, weights, padding) else _places(indices)
    width = int(weight.shape[1]) if mode == MAX else 1
    return None, places, nbytes(offsets), bags * width * itemsize(indices)


@scratch("cpu", "aten::_embedding_bag", source=BAG, band=0.0)
def _bag(
    out: Any, weight: Any, indices: Any, offsets: Any, by_frequency: bool = False, mode: int = SUM,
    sparse: bool = False, weights: Any = None, has_last: bool = False, padding: int = -1, trains: bool = True,
) -> tuple[Phase, ...]:  # fmt: skip
    """Ones per index and their running sum; differences of the offsets; the sizes as divisors.

    In half precision also the rows, and without weights the one being read, in float32 where FBGEMM does not sum them,
    and the weights in float32 where it does.
    """
    bags, size = _bags(offsets, has_last), itemsize(offsets)
    phases = []
    is_fast = takes_fbgemm(weight, weights, padding)
    if mode != SUM or not is_fast:
        phases.append(Phase(2, max(_places(indices), bags * size)))
    if trains or mode != SUM:
        phases.append(Phase(3, max(0, bags - 1) * size))
    if mode != MAX and not is_fast and weight.dtype in HALVES:
        rows = bags + (weights is None)
        phases.append(Phase(ALL_RESULTS, rows * int(weight.shape[1]) * torch.float32.itemsize))
    if is_fast and weights is not None and weight.dtype in HALVES:
        phases.append(Phase(ALL_RESULTS, elements(weights) * torch.float32.itemsize))
    if mode == MEAN:
        sizes = 1 if since(MEAN_IN_ONE_SINCE) else 2
        phases.append(Phase(ALL_RESULTS, bags * (sizes * size + itemsize(weight))))
    if mode == MAX:
        phases.append(Phase(ALL_RESULTS, bags * size))
    return tuple(phases)


@reserve("cpu", "aten::_embedding_bag_forward_only", source=BAG, band=0.0)
def _results_alone(out: Any, *args: Any) -> Any:
    return _results(out, *args, trains=False)


@scratch("cpu", "aten::_embedding_bag_forward_only", source=BAG, band=0.0)
def _bag_alone(out: Any, *args: Any) -> Any:
    return _bag(out, *args, trains=False)


@scratch("cpu", "aten::_embedding_bag_backward", source=BAG, band=0.0)
def _bag_backward(
    out: Any, grad: Any, indices: Any, offsets: Any, places: Any, sizes: Any, greatest: Any, rows: int,
    by_frequency: bool, mode: int, sparse: bool, weights: Any, padding: int = -1,
) -> tuple[Phase, ...] | None:  # fmt: skip
    """Each index's bag if the forward did not keep it; then the sorted indices with their bags.

    In max mode, the indices of the non-empty bags' maxima; all bags are assumed non-empty.
    """
    rebuilt = 0 if elements(places) else _places(indices)
    before = Phase(0, 2 * rebuilt)
    grad_bytes = copied(grad)
    if sparse:
        return None
    if mode == MAX:
        return before, Phase(
            ALL_RESULTS, grad_bytes + rebuilt + nbytes(greatest) + nbytes(grad) + INT64 * elements(sizes)
        )
    count = elements(indices)
    ordered = count * (itemsize(indices) + INT64)
    then = count * (max(INT64, itemsize(indices)) + (0 if weights is None else itemsize(weights)))
    return before, Phase(ALL_RESULTS, grad_bytes + rebuilt + ordered + then)
