"""Marks among the profiler's events for phases, module calls and kinds of tensors, which it does not record.

A mark is an empty ``record_function`` whose name is its content.
"""

from __future__ import annotations

import gc
import json
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch

from ..data.memory_records import KV_CACHE
from ..live import compat
from ..live.storages import all_stored
from ..live.structures import all_tensors, cached_tensors
from ..table.forward import Frame, Listener
from ..trace.values import OUTSIDE

SIGN = "torchsummary_plus "

STOP = "stop"
"""Name of the mark that ends the steps."""

COLLECT = "collect"
"""Name of the mark before a collection of the garbage that the steps left."""


class Marks(Listener):
    """Writes marks for the events that a ledger would receive."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.phase = "setup"
        self.step = 0
        self.followed: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        """Earlier storages by address."""
        self.in_threads: set[int] = set()
        """Modules called in threads that the model starts; the profiler records none of their operators."""

    def enter(self, phase: str, step: int) -> None:
        """Mark the beginning of a phase."""
        self._note_resized()
        self.phase, self.step = phase, step
        write("enter", phase, step)

    def classify(self, tensors: Iterable[torch.Tensor], kind: str, owner: int = OUTSIDE) -> None:
        """Mark the kind of existing tensors."""
        write("hold", kind, owner, addresses(tensors, self.device))

    def follow(self, tensors: Iterable[torch.Tensor]) -> None:
        """Mark the release of existing storages; a profiler reports it only for those it saw allocated."""
        for address, storage in {storage.data_ptr(): storage for storage in _storages(tensors, self.device)}.items():
            self.followed[address] = weakref.ref(storage, partial(_freed, address))

    def _note_resized(self) -> None:
        """Mark the old and new addresses of earlier storages that an operator resized."""
        resized = [
            (address, storage.data_ptr())
            for address, reference in self.followed.items()
            if (storage := reference()) is not None and storage.data_ptr() != address
        ]
        for address, present in resized:
            del self.followed[address]
            write("resized", address, present)

    def stop(self) -> None:
        """Mark the end of the steps."""
        write(STOP)

    def collect(self) -> None:
        """Mark that only frees of reference cycles follow, and free them."""
        write(COLLECT)
        gc.collect()

    def begin(self, frame: Frame) -> None:
        """Mark the beginning of a module's call."""
        if self.phase == "end":
            self.enter("forward", self.step)
        if frame.module is not None:
            if not compat.profiler_enabled():
                self.in_threads.add(frame.module)
            write("begin", frame.module, compat.sequence_number())

    def end(self, frame: Frame, output: Any) -> None:
        """Mark the end of a module's call, with its outputs."""
        if frame.outer is None and not torch.is_grad_enabled():
            self.classify(cached_tensors(output), KV_CACHE)
        self._note_resized()
        if frame.module is not None:
            written = addresses(all_tensors(output), self.device)
            write("end", frame.module, compat.sequence_number(), written)


def write(*mark: Any) -> None:
    """Write a mark among the profiler's events."""
    with torch.profiler.record_function(SIGN + json.dumps(mark)):
        pass


def _freed(address: int, _: object) -> None:
    write("free", address)


def read(name: str) -> list[Any] | None:
    """Return the mark in an event's name; None for other events.

    >>> read(SIGN + '["enter", "forward", 0]')
    ['enter', 'forward', 0]
    """
    return json.loads(name[len(SIGN) :]) if name.startswith(SIGN) else None


def addresses(tensors: Iterable[torch.Tensor], device: torch.device) -> list[int]:
    """Return the start addresses of tensors' storages on a kind of device, without repetition."""
    return list(dict.fromkeys(storage.data_ptr() for storage in _storages(tensors, device)))


def _storages(tensors: Iterable[torch.Tensor], device: torch.device) -> Iterator[torch.UntypedStorage]:
    return (tensor.untyped_storage() for tensor in all_stored(tensors) if tensor.device.type == device.type)


class NodeModules:
    """The active modules, by the sequence number that autograd's next node had when each became active.

    >>> modules = NodeModules()
    >>> modules.turn(3, 7)
    >>> modules.of(2), modules.of(5)
    (-1, 7)
    """

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._modules: list[int] = [OUTSIDE]

    def turn(self, node: int, module: int) -> None:
        """Attribute nodes from this sequence number on to a module."""
        if self._starts[-1] == node:
            self._modules[-1] = module
        else:
            self._starts.append(node)
            self._modules.append(module)

    def of(self, node: int) -> int:
        """Return the number of the module that created a node."""
        return self._modules[bisect_right(self._starts, node) - 1]
