"""What happens in steps, in order: their phases, each storage's allocation and release, and the modules' calls."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate, compress, groupby, pairwise
from math import inf
from typing import Any

import torch

from ..data.memory_records import KV_CACHE, Doubt, MemoryLog, ModuleCall, Moment, StorageSpec
from ..live.structures import cached_tensors
from ..table.forward import Frame, Listener
from ..trace.values import OUTSIDE


class Account(Listener):
    """What steps report to: which phase begins ("setup" at first), and of which kind tensors are."""

    def __init__(self) -> None:
        self.phase = "setup"
        self.step = 0

    def enter(self, phase: str, step: int) -> None:
        """Begin a phase of a step."""
        self.phase, self.step = phase, step

    def classify(self, tensors: Iterable[torch.Tensor], kind: str, owner: int = OUTSIDE) -> None:
        """Note the kind of existing tensors, and the module that owns them."""

    def record_if_used(self, holding: Any) -> None:
        """Note the kind of a tensor that counts only if the steps use it."""
        self.classify([holding.tensor], holding.kind, holding.owner)

    def stop(self) -> None:
        """End the steps."""

    def begin(self, frame: Frame) -> None:
        """Begin a forward if the last step has ended."""
        if self.phase == "end":
            self.enter("forward", self.step)

    def end(self, frame: Frame, output: Any) -> None:
        """Note the cache that a forward without gradients returns."""
        if frame.outer is None and not torch.is_grad_enabled():
            self.classify(cached_tensors(output), KV_CACHE)


class Recording(Account):
    """Keeps the memory events of steps; a storage is known by a key, such as its address, as long as it is live."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[Moment] = [Moment("", OUTSIDE, "setup", 0)]
        self.events: list[tuple[int, int, int]] = []
        self.storages: list[StorageSpec] = []
        self.calls: list[ModuleCall] = []
        self.doubts: list[Doubt] = []
        self.node_modules = NodeModules()
        self.live: dict[int, int] = {}
        """The number of each live storage, by its key."""
        self.early: set[int] = set()
        """Storages that count from the start, wherever they were first seen, such as targets that a loss created."""

    def enter(self, phase: str, step: int) -> None:
        """Begin a phase of a step, whose first moment has no operator."""
        super().enter(phase, step)
        self.begin_moment("", OUTSIDE)

    def begin_moment(self, operator: str, module: int) -> None:
        """Begin the moment of an operator, to which the following events belong."""
        self.moments.append(Moment(operator, module, self.phase, self.step))

    def event(self, storage: int, nbytes: int) -> None:
        """Add an event of a storage at the current moment; no bytes release it."""
        self.events.append((len(self.moments) - 1, storage, nbytes))

    def free(self, key: int) -> int | None:
        """Release a live storage by its key, and return its number; None if there is none."""
        number = self.live.pop(key, None)
        if number is not None and self.storages[number].nbytes:
            self.event(number, 0)
        return number

    def change(self, number: int, **fields: Any) -> None:
        """Record a storage otherwise than before."""
        self.storages[number] = replace(self.storages[number], **fields)

    def hold(self, number: int, kind: str, owner: int) -> None:
        """Set a storage's kind, and its owner if that is a module."""
        if kind == "inputs" and self.phase != "setup":
            self.early.add(number)
        self.change(number, kind=kind, owner=self.storages[number].owner if owner == OUTSIDE else owner)

    def open_call(self, module: int, outer: int) -> int:
        """Begin a module's call inside another one (-1: none), and return its number."""
        self.calls.append(ModuleCall(module, self.step, outer, len(self.events), -1, ()))
        return len(self.calls) - 1

    def close_call(self, number: int, outputs: Iterable[int]) -> None:
        """End a call, which returned the storages with these keys."""
        numbers = dict.fromkeys(self.live[key] for key in outputs if key in self.live)
        self.calls[number] = replace(self.calls[number], stop=len(self.events), outputs=tuple(numbers))

    def log(self, module_paths: tuple[str, ...], assumptions: tuple[str, ...] = (), **fields: Any) -> MemoryLog:
        """Return the recording as plain data, without calls that an exception left."""
        is_early = [bool(nbytes) and storage in self.early for _, storage, nbytes in self.events]
        early = [(0, storage, nbytes) for _, storage, nbytes in compress(self.events, is_early)]
        place = list(accumulate((not each for each in is_early), initial=len(early)))
        later = compress(self.events, (not each for each in is_early))
        number = {-1: -1}
        calls: list[ModuleCall] = []
        for old, call in enumerate(self.calls):
            number[old] = -1 if call.stop < 0 else len(calls)
            if call.stop >= 0:
                calls.append(replace(call, outer=number[call.outer], start=place[call.start], stop=place[call.stop]))
        doubts = [replace(doubt, event=place[doubt.event]) for doubt in self.doubts]
        edges = {edge for call in calls for edge in (call.start, call.stop)} | {doubt.event for doubt in doubts}
        return MemoryLog(
            moments=tuple(self.moments),
            events=_in_order([*early, *later], edges),
            storages=tuple(self.storages),
            module_paths=module_paths,
            calls=tuple(calls),
            assumptions=assumptions,
            doubts=tuple(doubts),
            **fields,
        )


def _in_order(events: list[tuple[int, int, int]], edges: set[int]) -> tuple[tuple[int, int, int], ...]:
    """Sort simultaneous releases by storage number, but not across the edges of calls and doubts.

    Autocast's cache frees its tensors in the order of a hash of their addresses, which differs between runs.
    """
    ordered: list[tuple[int, int, int]] = []
    for start, stop in pairwise(sorted({0, *edges, len(events)})):
        for (_, is_made), run in groupby(events[start:stop], key=lambda event: (event[0], bool(event[2]))):
            together = list(run)
            ordered += together if is_made else sorted(together)
    return tuple(ordered)


class NodeModules:
    """The active modules, by the sequence number that autograd's next node had when each became active.

    >>> modules = NodeModules()
    >>> modules.turn(3, 7)
    >>> modules.of(2), modules.of(5)
    (-1, 7)
    """

    def __init__(self) -> None:
        self._turns: list[tuple[int, int]] = [(0, OUTSIDE)]

    def turn(self, node: int, module: int) -> None:
        """Attribute nodes from this sequence number on to a module."""
        if self._turns[-1][0] == node:
            self._turns.pop()
        self._turns.append((node, module))

    def of(self, node: int) -> int:
        """Return the number of the module that created a node."""
        return self._turns[bisect_right(self._turns, (node, inf)) - 1][1]
