"""The true CPU memory of steps: every allocation and free, by torch's profiler.

The step is that of ``estimate_memory``: forward, loss, backward, optimizer, ``zero_grad()``, with the output freed once
the loss is known.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _EventType  # the event tree has no public reader
from torch.autograd.profiler import profile  # torch.profiler's imports the compiler stack

OptimizerMaker = Callable[[Any], torch.optim.Optimizer]


@dataclass(frozen=True)
class Change:
    """Bytes that an allocation took at an address, or with a minus a free gave back.

    ``names`` are those of the operators and marks around it, from outside in, and ``calls`` their numbers.
    """

    time_ns: int
    address: int
    nbytes: int
    names: tuple[str, ...]
    calls: tuple[int, ...]


def cpu_changes(run: Callable[[], object]) -> list[Change]:
    """Every CPU allocation and free while ``run`` runs, in their order, with the operators and marks around them.

    Of what was there before, the profiler reports only frees at addresses that an earlier profile saw; they are left
    out.
    """
    gc.collect()
    with profile(profile_memory=True, use_kineto=True) as prof:
        run()
    recorded: list[Change] = []
    roots = prof.kineto_results.experimental_event_tree()
    waiting: list[tuple[Any, tuple[str, ...], tuple[int, ...]]] = [(event, (), ()) for event in reversed(roots)]
    count = 0
    while waiting:
        event, names, calls = waiting.pop()
        fields = event.extra_fields
        if event.tag == _EventType.Allocation and fields.device.type == "cpu":
            recorded.append(Change(event.start_time_ns, fields.ptr, fields.alloc_size, names, calls))
        inside, count = ((*names, event.name), (*calls, count)), count + 1
        waiting.extend((child, *inside) for child in reversed(event.children))
    return list(_of_this_profile(sorted(recorded, key=lambda change: change.time_ns)))


def _of_this_profile(changes: Iterable[Change]) -> Iterator[Change]:
    """The changes without the frees of blocks that were allocated before."""
    there: set[int] = set()
    for change in changes:
        if change.nbytes > 0:
            there.add(change.address)
        elif change.address not in there:
            continue
        else:
            there.remove(change.address)
        yield change


def cpu_deltas(run: Callable[[], object]) -> list[int]:
    """The bytes of every CPU allocation (positive) and free (negative) while ``run`` runs, in their order."""
    return [change.nbytes for change in cpu_changes(run)]


def highest(deltas: Iterable[int]) -> int:
    """The highest level above the one at entry."""
    return max(accumulate(deltas, initial=0))


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of all storages of some tensors, each counted once."""
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in tensors)}
    return sum(storages.values())


def measure(
    model: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    mode: str = "train",
    optimizer: OptimizerMaker | None = None,
    autocast: torch.dtype | None = None,
    steps: int = 2,
) -> int:
    """The bytes that ``steps`` real steps of a model on the CPU hold at most; the model is trained by them."""
    model.train(mode == "train")

    def forward() -> Any:
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            return model(*inputs) if mode == "eval" else model(*inputs).sum()

    def run() -> None:
        if mode == "eval":
            with torch.no_grad():
                for _ in range(steps):
                    forward()
            return
        chosen = optimizer(list(model.parameters())) if optimizer is not None else None
        for _ in range(steps):
            loss = forward()
            loss.backward()
            del loss
            if chosen is not None:
                chosen.step()
            model.zero_grad()
        del chosen

    return highest(cpu_deltas(run)) + storage_bytes([*model.parameters(), *model.buffers(), *inputs])


def measure_run(run: Callable[[], object], tensors: Iterable[torch.Tensor]) -> int:
    """The peak of any run on the CPU: its allocations above the tensors that are there already."""
    return storage_bytes(tensors) + highest(cpu_deltas(run))


@contextmanager
def threads_set_to(count: int) -> Iterator[None]:
    """So many threads for CPU kernels: their scratch memory depends on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
