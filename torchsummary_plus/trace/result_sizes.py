"""Fakes of results whose sizes depend on values: of known sizes, of the largest or least possible, or as on zeros."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..live.fakes import CPU, META, Fake, in_kernel, wrap
from ..live.own_random import drawn
from ..ops.dtypes import HALVES
from ..ops.scratch.masks import count_true, is_mask, masks_of, note_true
from .kernels import change_tensors, tensors_of

aten = torch.ops.aten
INDEX = aten.index.Tensor

LARGEST = 1 << 27
"""Most elements of all arguments together for which zeros are allocated: half a GiB in float32."""


def on_zeros(func: OpOverload, args: Any, kwargs: Any, device: torch.device) -> Any:
    """Return fakes of the sizes that an operator returns on zeros; those of a GPU's halves as of float32 if need be.

    Return None if the operator writes to its arguments, they are too large, it fails on zeros, or it returns sparse
    tensors.
    """
    tensors = tensors_of((*args, *kwargs.values()))
    if func._schema.is_mutable or sum(tensor.numel() for tensor in tensors) > LARGEST:
        return None
    out = _computed(func, args, kwargs, _zeros)
    halves = {tensor.dtype for tensor in tensors} & set(HALVES)
    if out is None and device.type == "cuda" and len(halves) == 1 and torch.float32 not in {t.dtype for t in tensors}:
        half = halves.pop()  # The CPU's kernels of some operators have no half precision.
        out = _computed(
            func, args, kwargs, lambda tensor: _zeros(tensor, torch.float32 if tensor.dtype is half else None)
        )
        out = change_tensors(out, lambda tensor: tensor.to(half) if tensor.dtype is torch.float32 else tensor)
    results = tensors_of(out)
    if not results or any(tensor.layout is not torch.strided for tensor in results):
        return None
    with in_kernel():
        return change_tensors(out, lambda tensor: wrap(_empty(tensor), device))


def _computed(func: OpOverload, args: Any, kwargs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return an operator's result on changed tensors; None if it fails."""
    try:
        with torch.no_grad():
            return drawn(func, change_tensors(args, change), change_tensors(kwargs, change))
    except Exception:
        return None


def _zeros(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    dtype = dtype or tensor.dtype
    if tensor.layout is not torch.strided:
        return torch.zeros(tensor.shape, dtype=dtype, device=CPU)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=CPU).zero_()


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def size_from_masks(func: OpOverload, args: Any, read: Callable[[Tensor], Tensor | None]) -> Any:
    """Return the size of a selection as known from its masks' values; None if unknown."""
    if func is INDEX:
        return mask_counts(masks_of(args[1]), read)
    if func is aten.masked_select.default:
        value = read(args[1])
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return None if value is None else ((int(value.expand(shape).sum()),), args[0].dtype)
    if func is aten.nonzero.default:
        count = count_true(args[0])
        return None if count is None else ((count, args[0].dim()), torch.int64)
    return None


def mask_counts(masks: Sequence[Tensor], read: Callable[[Tensor], Tensor | None]) -> list[int] | None:
    """Return how many elements of each mask are true; None if one has no values."""
    values = [read(mask) for mask in masks]
    counts = [int(value.sum()) for value in values if value is not None]
    return counts if len(counts) == len(values) else None


def fakes_of(func: OpOverload, args: Any, kwargs: Any, answer: Any, device: torch.device, least: bool = False) -> Any:
    """Return fakes of the given sizes, else of the largest or ``least`` possible; None if those are unknown."""
    if func is INDEX:
        masks = masks_of(args[1])
        for mask, count in zip(masks, answer or ()):
            note_true(mask, count)
        return _indexed(args[0], args[1], [0] * len(masks) if least else answer)
    most = _MOST.get(func.name())
    if answer is None and most is not None:
        answer = most(*args, **kwargs)
        answer = _least(answer) if least else answer
    with in_kernel():
        if answer is not None and func is aten.nonzero.default:
            shape, dtype = answer
            return _by_columns(shape, dtype, device)
        return None if answer is None else _fakes(answer, device)


def _by_columns(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Any:
    """Return positions as ``nonzero`` stores them: all of the first axis, then all of the second, and so on."""
    return wrap(torch.empty_strided(shape, (1, max(1, shape[0])), dtype=dtype, device=META), device)


def _least(specs: Any) -> Any:
    """Return the sizes of an empty selection; of several results, only the first is the selection."""
    if isinstance(specs, list):
        return [_least(specs[0]), *specs[1:]]
    shape, dtype = specs
    return (0, *shape[1:]), dtype


def _fakes(specs: Any, device: torch.device) -> Any:
    if isinstance(specs, list):
        return tuple(_fakes(item, device) for item in specs)
    shape, dtype = specs
    return wrap(torch.empty(shape, dtype=dtype, device=META), device)


def _indexed(x: Tensor, indices: Sequence[Tensor | None], counts: list[int] | None) -> Tensor:
    """Index ``x`` with each mask's count of rows, by default all of them."""
    left = iter(counts if counts is not None else [mask.numel() for mask in masks_of(indices)])
    plain: list[Tensor | None] = []
    with in_kernel():
        for index in indices:
            rank = index.dim() if index is not None and is_mask(index) else 0
            if rank:
                rows = next(left)
                plain += [torch.empty(rows, dtype=torch.long, device=META) for _ in range(rank)]
            else:
                plain.append(index)
        device = x.fake_device if isinstance(x, Fake) else x.device
        meta = x if isinstance(x, Fake) else torch.empty_like(x, device=META)
        return wrap(INDEX(meta, plain), device)


Most = Callable[..., Any]
_MOST: dict[str, Most] = {}


def largest_result(*operators: str) -> Callable[[Most], Most]:
    """Register the largest possible result of some operators: (shape, dtype), or a list of these."""

    def register(function: Most) -> Most:
        for operator in operators:
            if operator in _MOST:
                raise ValueError(f"{operator} already has a largest result")
            _MOST[operator] = function
        return function

    return register


@largest_result("aten::nonzero")
def _nonzero(x: Tensor) -> Any:
    return (x.numel(), x.dim()), torch.long


@largest_result("aten::masked_select")
def _masked_select(x: Tensor, mask: Tensor) -> Any:
    return (prod(torch.broadcast_shapes(x.shape, mask.shape)),), x.dtype


@largest_result("aten::_unique2", "aten::unique_consecutive")
def _unique(x: Tensor, *flags: Any, **_: Any) -> Any:
    return [((x.numel(),), x.dtype), (tuple(x.shape), torch.long), ((x.numel(),), torch.long)]


@largest_result("aten::unique_dim", "aten::unique_dim_consecutive")
def _unique_dim(x: Tensor, dim: int, *flags: Any, **_: Any) -> Any:
    rows = x.shape[dim]
    return [(tuple(x.shape), x.dtype), ((rows,), torch.long), ((rows,), torch.long)]


@largest_result("torchvision::nms")
def _nms(boxes: Tensor, scores: Tensor, threshold: float) -> Any:
    return (len(boxes),), torch.long
