"""Sizes of tensors and of the copies that a kernel makes, in bytes, and timelines of allocations with named buffers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from ..shapes.registry import is_channels_last
from .registry import Alloc, Free, Result, Step, Timeline

INT64 = 8
"""Bytes of an index, and of the float64 or int64 that a Python number becomes."""


def suggested(tensor: Any) -> Any:
    """Return the memory format that torch's kernels derive from the strides."""
    if not is_channels_last(tensor):
        return torch.contiguous_format
    return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d


def copied(tensor: Any, layout: Any = torch.contiguous_format) -> int:
    """Return the bytes of the copy that ``tensor.contiguous(memory_format=layout)`` makes; 0 if none is needed."""
    return 0 if tensor is None or tensor.is_contiguous(memory_format=layout) else int(tensor.nbytes)


def flattened(tensor: Any) -> int:
    """Return the bytes of the copy that ``tensor.reshape(-1)`` makes; 0 if a view does.

    >>> flattened(torch.zeros(2, 3)[:, ::3]), flattened(torch.zeros(1, 3).expand(2, 3))
    (0, 24)
    """
    axes = [(size, step) for size, step in zip(tensor.shape, tensor.stride()) if size != 1]
    is_even = all(step == size * inner for (_, step), (size, inner) in pairwise(axes))
    return 0 if is_even or not tensor.numel() else int(tensor.nbytes)


def results(out: Any) -> tuple[Result, ...]:
    """Return an operator's result tensors in order, without numbers and those that an output mask leaves out."""
    values = out if isinstance(out, (tuple, list)) else (out,)
    return tuple(Result(place) for place in range(sum(isinstance(value, torch.Tensor) for value in values)))


def buffers(*sizes: int) -> tuple[Alloc, ...]:
    """Return a buffer for each size in bytes, except 0."""
    return tuple(Alloc(size) for size in sizes if size)


def copies(*tensors: Any) -> tuple[Alloc, ...]:
    """Return the contiguous copies of those of the tensors that are not contiguous."""
    return buffers(*map(copied, tensors))


@dataclass(slots=True)
class Allocations:
    """A timeline as it is written.

    >>> steps = Allocations()
    >>> scores, order = steps.buffer(400), steps.buffer(800)
    >>> steps.free(scores)
    >>> [step[0] for step in steps.timeline()]
    [400, 800, 0]
    """

    steps: list[Step] = field(default_factory=list)
    count: int = 0
    """Number of buffers."""

    def result(self, *places: int) -> None:
        """Allocate results."""
        self.steps += map(Result, places)

    def buffer(self, nbytes: int) -> int:
        """Allocate a buffer and return its number."""
        self.steps.append(Alloc(nbytes))
        self.count += 1
        return self.count - 1

    def free(self, *numbers: int) -> None:
        """Free buffers."""
        self.steps += map(Free, numbers)

    def temporary(self, *buffers: Step) -> None:
        """Allocate each buffer and free it before the next."""
        for buffer in buffers:
            self.free(*self.append((buffer,)))

    def append(self, timeline: Iterable[Step]) -> range:
        """Append another timeline, whose buffers count from 0, and return the numbers that its buffers get."""
        first = self.count
        for step in timeline:
            self.steps.append(Free(step.buffer + first) if isinstance(step, Free) else step)
            self.count += isinstance(step, Alloc)
        return range(first, self.count)

    def timeline(self) -> Timeline:
        """Return the timeline."""
        return tuple(self.steps)


def joined(*timelines: Iterable[Step]) -> Timeline:
    """Return timelines one after another, each of which counts its buffers from 0."""
    steps = Allocations()
    for timeline in timelines:
        steps.append(timeline)
    return steps.timeline()
