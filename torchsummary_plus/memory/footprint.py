"""The contribution of each module, and of each of its calls, to a step's memory, independent of the peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from ..data.memory_records import MemoryLog, RowMemory
from .allocator import Allocator
from .attribution import changes, lifetimes, storage_kinds


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes in the last step; each storage counts once, for the module that allocated it or holds its parameter.

    ``output_bytes`` is what its calls return and no module inside it returned before; ``saved_bytes`` is what its own
    operators keep for the backward.
    """

    output_bytes: int = 0
    saved_bytes: int = 0
    param_bytes: int = 0
    grad_bytes: int = 0
    optimizer_bytes: int = 0

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(
            self.output_bytes + other.output_bytes,
            self.saved_bytes + other.saved_bytes,
            self.param_bytes + other.param_bytes,
            self.grad_bytes + other.grad_bytes,
            self.optimizer_bytes + other.optimizer_bytes,
        )


def footprints(log: MemoryLog) -> tuple[Footprint, ...]:
    """Return each module's own footprint; what no module owns belongs to the root."""
    by_kind: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for number, kind in _in_last_step(log):
        by_kind[kind][max(0, log.storages[number].owner)] += log.storages[number].nbytes
    outputs: dict[int, int] = defaultdict(int)
    for module, number in _first_returns(log):
        outputs[module] += log.storages[number].nbytes
    return tuple(
        Footprint(
            outputs[module],
            by_kind["saved_activations"][module],
            by_kind["parameters"][module],
            by_kind["gradients"][module],
            by_kind["optimizer_state"][module],
        )
        for module in range(len(log.module_paths))
    )


def _in_last_step(log: MemoryLog) -> Iterator[tuple[int, str]]:
    """Yield the storages live in the last step, with their kinds; saved activations only if that step made them."""
    last = log.moments[-1].step
    born, died = lifetimes(log)
    for number, kind in enumerate(storage_kinds(log)):
        if born[number] < 0 or (died[number] >= 0 and log.moments[log.events[died[number]][0]].step < last):
            continue
        if kind != "saved_activations" or log.moments[log.events[born[number]][0]].step == last:
            yield number, kind


def _first_returns(log: MemoryLog) -> Iterator[tuple[int, int]]:
    """Yield each storage that a call of the last step returns, with the module that returned it first."""
    last = log.moments[-1].step
    seen: set[int] = set()
    inner_first = reversed([call for call in log.calls if call.step == last])
    for call in sorted(inner_first, key=lambda call: call.stop):
        for number in call.outputs:
            if number not in seen and log.storages[number].kind is None:
                seen.add(number)
                yield call.module, number


Figures = TypeVar("Figures", int, float, Footprint)


def inclusive(paths: Sequence[str], own: Sequence[Figures]) -> tuple[Figures, ...]:
    """Return each module's figures including those of the modules inside it."""
    total = list(own)
    for index, parent in reversed(list(enumerate(parents(paths)))):
        if index:
            total[parent] += total[index]
    return tuple(total)


def parents(paths: Sequence[str]) -> list[int]:
    """Return for each module the number of its parent; the root is its own.

    >>> parents(["", "body", "body.0", "head"])
    [0, 0, 1, 0]
    """
    number = {path: index for index, path in enumerate(paths)}
    return [number.get(path.rpartition(".")[0], 0) for path in paths]


def call_memory(log: MemoryLog, allocator: Allocator) -> list[tuple[str, RowMemory]]:
    """Return the last step's calls in the order they began: the module's path, and what its own operators keep."""
    levels = list(accumulate(nbytes for _, _, nbytes in changes(log, allocator)))
    saved = _saved_by_call(log)
    return [
        (log.module_paths[call.module], RowMemory(saved[number], peak_bytes=levels[call.stop - 1] if call.stop else 0))
        for number, call in enumerate(log.calls)
        if call.step == log.moments[-1].step
    ]


def module_memory(log: MemoryLog) -> dict[str, RowMemory]:
    """Return what each module holds besides its calls, by path: gradients, optimizer state, its rank's parameters."""
    shards = dict(log.shards)
    return {
        path: RowMemory(0, own.grad_bytes, own.optimizer_bytes, shards=shards.get(path, ()))
        for path, own in zip(log.module_paths, footprints(log))
    }


def _saved_by_call(log: MemoryLog) -> dict[int, int]:
    """Return the saved bytes of each call, by position, without those of calls inside it."""
    born, _ = lifetimes(log)
    births = sorted((born[n], n) for n, kind in _in_last_step(log) if kind == "saved_activations")
    saved: dict[int, int] = defaultdict(int)
    upcoming = iter(enumerate(log.calls))
    ahead = next(upcoming, None)
    stack: list[int] = []
    for event, number in births:
        while ahead is not None and ahead[1].start <= event:
            stack.append(ahead[0])
            ahead = next(upcoming, None)
        stack = [place for place in stack if log.calls[place].stop > event]
        if stack:
            saved[stack[-1]] += log.storages[number].nbytes
    return saved
