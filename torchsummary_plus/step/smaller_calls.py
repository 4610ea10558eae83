"""Allocations of an operator's kernel in a large call, from those of smaller ones.

A smaller call has fewer rows along one of the first two axes, such as the batch's, in every tensor that has as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..ops.scratch.registry import Alloc, Free, Result, Step, Timeline
from ..trace.kernels import tensors_of

SHORT = 4
"""A first axis of fewer elements is a batch too small to be made smaller."""


class Call(NamedTuple):
    """An operator's arguments and its result; those of a smaller call are on meta."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any


@dataclass(frozen=True)
class Shortened:
    """A call with another ``size`` of an axis: in all tensors that have it there, or anywhere if ``axis`` is None."""

    call: Call
    size: int
    axis: int | None

    def at(self, size: int) -> Call:
        """Return the call with another size."""
        return Call(*(self._changed(value, size) for value in self.call))

    def elements(self, size: int) -> int:
        """Return the elements of all tensors with another size."""
        return sum(prod(self._shape(tuple(tensor.shape), size)) for tensor in tensors_of(self.call))

    def sizes(self, share: float, threads: int, least: int) -> tuple[int, int, int] | None:
        """Return three sizes, up to about a ``share`` of the call's own; None if they are not much smaller.

        They leave the same remainder when they are divided among threads.
        """
        step = max(2, threads)
        rest = self.size % step
        most = max(2, -(-least // step) + 1, (int(self.size * share) - rest) // step)
        low = max((most + 1) // 2, -(-least // step))
        between = (low + most) // 2
        numbers = low, most, between if low < between < most else most + 1
        return cast("Any", tuple(rest + step * number for number in numbers)) if most * step * 2 <= self.size else None

    def _shape(self, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
        return tuple(
            size if length == self.size and self.axis in (None, axis) else length for axis, length in enumerate(shape)
        )

    def _changed(self, value: Any, size: int) -> Any:
        """Return arguments with tensors on meta and lists of sizes in another size."""
        if isinstance(value, (list, tuple)):
            if value and all(type(item) is int for item in value):
                return type(value)(self._shape(tuple(value), size))
            return type(value)([self._changed(item, size) for item in value])
        if isinstance(value, dict):
            return {name: self._changed(item, size) for name, item in value.items()}
        if not isinstance(value, Tensor):
            return value
        shape = self._shape(tuple(value.shape), size)
        strides = list(value.stride())
        for before, after, step in zip(value.shape, shape, value.stride()):
            if before != after:  # Steps over all of this axis become shorter.
                strides = [
                    stride // before * after if stride >= step * before and stride % before == 0 else stride
                    for stride in strides
                ]
        smaller = torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
        smaller = torch.ops.aten._neg_view.default(smaller) if value.is_neg() else smaller
        smaller = torch.ops.aten._conj.default(smaller) if value.is_conj() else smaller
        return smaller.requires_grad_(value.requires_grad and value.is_leaf)


def shortened(call: Call, is_pointwise: bool) -> Iterator[Shortened]:
    """Yield ways to shorten a call: by the first axis, or the second if that one is short, and wherever its size is.

    A size must be that of no other axis, as if a batch is as large as the channels, and not a number's: kernels such as
    batch norm's and group norm's do not check that their arguments agree, and would read beyond them.
    """
    given, found = ([tensor for tensor in tensors_of(part) if tensor.dim()] for part in (call[:2], call.out))
    sizes: dict[tuple[int, int | None], None] = {}
    for tensor in (*given[:1], *found[:1]):
        axis = 1 if tensor.dim() > 1 and tensor.shape[0] < SHORT else 0
        sizes[tensor.shape[axis], axis] = None
    sizes.update(dict.fromkeys((size, None) for size, _ in list(sizes)))
    if is_pointwise:
        sizes.update(dict.fromkeys((size, None) for size in sorted(set((found or given)[0].shape), reverse=True)))
    numbers = {value for value in (*call.args, *call.kwargs.values()) if type(value) is int}
    others = {(length, place) for tensor in tensors_of(call) for place, length in enumerate(tensor.shape)}
    is_of_one = len(tensors_of(call[:2])) < 2
    for size, only in sizes:
        is_one_axis = is_of_one or only is None or not {place for length, place in others if length == size} - {only}
        if is_pointwise or (size not in numbers and is_one_axis):
            yield Shortened(call, size, only)


def extrapolated(way: Shortened, sizes: tuple[int, ...], run: Callable[[Call], Timeline | None]) -> Timeline | None:
    """Return a call's timeline from those of smaller ones; None if these are unlike or on no line."""
    known: list[tuple[int, Timeline]] = []
    for size in sizes:
        timeline = run(way.at(size))
        if timeline is None or (known and list(map(_kind, timeline)) != list(map(_kind, known[0][1]))):
            return None
        known.append((size, timeline))
        if len(known) > 1:
            points = zip(*(timeline for _, timeline in known))
            steps = [_on_line(way.size, [size for size, _ in known], list(steps)) for steps in points]
            if None not in steps:
                return cast("Timeline", tuple(steps))
    return None


def _kind(step: Step) -> Step:
    return step._replace(nbytes=0) if isinstance(step, (Alloc, Result)) else step


def _on_line(size: int, sizes: list[int], steps: list[Any]) -> Step | None:
    """Return a step in another size: constant or proportional by two points, on any line by three; None if on none."""
    (a, b, *_), (x, y, *_) = sizes, [0 if isinstance(step, Free) else step.nbytes for step in steps]
    if x == y and all(step == steps[0] for step in steps):
        return cast("Step", steps[0])
    if len(steps) < 3 and x * b != y * a:
        return None
    if any((step.nbytes - x) * (b - a) != (y - x) * (c - a) for c, step in zip(sizes, steps)):
        return None
    nbytes, remainder = divmod((y - x) * (size - a), b - a)
    return None if remainder else cast("Step", steps[0]._replace(nbytes=x + nbytes))
