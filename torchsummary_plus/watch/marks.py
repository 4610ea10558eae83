"""What a profiler cannot know of a real step, written between its events: phases, calls of modules, what tensors are.

A mark is an empty ``record_function``, whose name says it all.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch

from ..data.memory_records import KV_CACHE
from ..live import compat
from ..live.stored import all_stored
from ..live.structures import all_tensors, cached_tensors
from ..trace.passes import Frame, Listener
from ..trace.questions import OUTSIDE

SIGN = "torchsummary_plus "

STOP = "stop"
"""The name of the mark after which nothing belongs to the steps any more."""


class Marks(Listener):
    """Writes marks for what a ledger would be told."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.phase = "setup"
        self.step = 0
        self.followed: list[weakref.ref[torch.UntypedStorage]] = []

    def enter(self, phase: str, step: int) -> None:
        """A new phase of the step begins."""
        self.phase, self.step = phase, step
        write("enter", phase, step)

    def hold(self, tensors: Iterable[torch.Tensor], kind: str, owner: int = OUTSIDE) -> None:
        """Tensors that are there are of a kind."""
        write("hold", kind, owner, addresses(tensors, self.device))

    def follow(self, tensors: Iterable[torch.Tensor]) -> None:
        """Tell when the storages of tensors that are there are freed: a profiler does not, of what it saw not made."""
        for storage in {storage.data_ptr(): storage for storage in _storages(tensors, self.device)}.values():
            self.followed.append(weakref.ref(storage, partial(_freed, storage.data_ptr())))

    def stop(self) -> None:
        """The steps are over."""
        write(STOP)

    def begin(self, frame: Frame) -> None:
        if self.phase == "end":
            self.enter("forward", self.step)
        if frame.module is not None:
            write("begin", frame.module, compat.sequence_number())

    def end(self, frame: Frame, output: Any) -> None:
        if frame.outer is None and not torch.is_grad_enabled():
            self.hold(cached_tensors(output), KV_CACHE)
        if frame.module is not None:
            found = addresses(all_tensors(output), self.device)
            write("end", frame.module, compat.sequence_number(), found)


def write(*mark: Any) -> None:
    """Put a mark among the profiler's events."""
    with torch.profiler.record_function(SIGN + json.dumps(mark)):
        pass


def _freed(address: int, _: object) -> None:
    write("free", address)


def read(name: str) -> list[Any] | None:
    """The mark that an event's name is; None where it is another event.

    >>> read(SIGN + '["enter", "forward", 0]')
    ['enter', 'forward', 0]
    """
    return json.loads(name[len(SIGN) :]) if name.startswith(SIGN) else None


def addresses(tensors: Iterable[torch.Tensor], device: torch.device) -> list[int]:
    """Where the storages of some tensors on a kind of device begin, each once."""
    return list(dict.fromkeys(storage.data_ptr() for storage in _storages(tensors, device)))


def _storages(tensors: Iterable[torch.Tensor], device: torch.device) -> Iterator[torch.UntypedStorage]:
    here = (tensor for tensor in all_stored(tensors) if tensor.device.type == device.type)
    return (tensor.untyped_storage() for tensor in here)
