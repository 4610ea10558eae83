"""Courses of a CUDA kernel's allocations, written with named buffers instead of their numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..registry import Alloc, Course, Free, Lasting, Result, Step
from ..sizes import copied


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
    """A course as it is written.

    >>> steps = Allocations()
    >>> scores, order = steps.buffer(400), steps.buffer(800)
    >>> steps.free(scores)
    >>> steps.course()
    (Alloc(nbytes=400, lasts=False, band=0.0), Alloc(nbytes=800, lasts=False, band=0.0), Free(buffer=0))
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

    def temporary(self, nbytes: int) -> None:
        """Allocate a buffer and free it."""
        self.free(self.buffer(nbytes))

    def multiply(self, workspace: int) -> None:
        """Multiply matrices: request lasting workspaces, which the first call allocates, and one that is freed."""
        self.steps.append(Lasting())
        if workspace:
            self.temporary(workspace)

    def append(self, course: Iterable[Step]) -> range:
        """Append another course, whose buffers count from 0, and return the numbers that its buffers get."""
        first = self.count
        for step in course:
            self.steps.append(Free(step.buffer + first) if isinstance(step, Free) else step)
            self.count += isinstance(step, Alloc)
        return range(first, self.count)

    def course(self) -> Course:
        """Return the course."""
        return tuple(self.steps)


def joined(*courses: Iterable[Step]) -> Course:
    """Return courses one after another, each of which counts its buffers from 0.

    >>> joined((Alloc(8),), (Alloc(4), Free(0)))
    (Alloc(nbytes=8, lasts=False, band=0.0), Alloc(nbytes=4, lasts=False, band=0.0), Free(buffer=1))
    """
    steps = Allocations()
    for course in courses:
        steps.append(course)
    return steps.course()
