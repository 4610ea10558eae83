"""Sequences of allocations with their operators, recorded and predicted, and where they differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._profiler import _EventType  # the event tree has no public reader
from torch.profiler import ProfilerActivity, profile

from benchmarks.cuda.meters import CudaMeter
from torchsummary_plus.data.memory_records import MemoryLog


class Change(NamedTuple):
    """Bytes that an operator allocates, or frees if negative."""

    nbytes: int
    operator: str


class SequenceMeter(CudaMeter):
    """Records the changes of a step, with the allocator's sizes and the profiler's operators."""

    changes: Sequence[Change] = ()

    def hold(self) -> None:
        super().hold()
        torch.cuda.memory._record_memory_history(context=None, max_entries=10_000_000, clear_history=True)
        self.profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self.profiler.__enter__()

    def end(self) -> dict[str, Any]:
        self.profiler.__exit__(None, None, None)
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        names = [name for _, name in sorted(_named(self.profiler), key=lambda mark: mark[0])]
        allocated = [entry for entry in trace if entry["action"] == "alloc"]
        assert len(allocated) == len(names), (len(allocated), len(names))
        operators = {id(entry): name for entry, name in zip(allocated, names)}
        signs = {"alloc": 1, "free_completed": -1}
        self.changes = [
            Change(signs[entry["action"]] * entry["size"], operators.get(id(entry), ""))
            for entry in trace
            if entry["action"] in signs
        ]
        return super().end()


def _named(profiler: Any) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield the time of every allocation of CUDA memory, and its operators from the outermost to the innermost."""
    waiting = [(event, ()) for event in reversed(profiler.profiler.kineto_results.experimental_event_tree())]
    number = 0
    while waiting:
        event, around = waiting.pop()
        if (
            event.tag == _EventType.Allocation
            and event.extra_fields.device.type == "cuda"
            and event.extra_fields.alloc_size > 0
        ):
            number += 1
            yield (event.start_time_ns, number), " > ".join(around)
        inside = (*around, event.name) if event.tag == _EventType.TorchOp and _tells(event.name) else around
        waiting.extend((child, inside) for child in reversed(event.children))


def _tells(name: str) -> bool:
    return not re.match(r"aten::(empty|resize_|_local_scalar|set_)|autograd::engine", name)


def predicted_changes(log: MemoryLog) -> Iterator[Change]:
    """Yield the predicted changes after the model and its input exist."""
    sizes: dict[int, int] = {}
    for moment, storage, nbytes in log.events:
        size = nbytes or -sizes.pop(storage)
        if nbytes:
            sizes[storage] = nbytes
        at = log.moments[moment]
        if at.phase != "setup":
            yield Change(size, f"{at.phase}: {at.operator}")


ROUNDED = 512
"""The allocator's blocks are multiples of so many bytes."""


def differing(real: Iterable[Sequence[Any]], predicted: Iterable[Sequence[Any]], count: int) -> str:
    """Return the operators that allocate sizes which the other sequence lacks, those with the most bytes first.

    >>> print(differing([(512, "mm"), (1024, "add")], [(512, "mm"), (-512, "")], 3))
      missing:     1 times, 1,024 bytes: add
    """
    both = [[(-(-size // ROUNDED) * ROUNDED, name) for size, name in side if size > 0] for side in (real, predicted)]
    sizes = [Counter(size for size, _ in side) for side in both]
    lines: list[tuple[int, str]] = []
    for side, others, word in ((both[0], sizes[0] - sizes[1], "missing"), (both[1], sizes[1] - sizes[0], "too much")):
        calls, nbytes = Counter[str](), Counter[str]()
        for size, name in reversed(side):
            if others[size] > 0:
                others[size] -= 1
                calls[name] += 1
                nbytes[name] += size
        lines += [(nbytes[name], f"  {word}: {calls[name]:5} times, {nbytes[name]:,} bytes: {name}") for name in calls]
    return "\n".join(line for _, line in sorted(lines, reverse=True)[:count])
