"""The ledger of a step on CUDA: each storage's stream, and which storages other streams use too."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..data.memory_records import HELD_TO_THE_END, MemoryLog
from ..live import compat
from ..live.streams import Streams
from .autograd.gpu_node_numbers import number_of
from .ledger import Ledger
from .workspace import Place

ACCUMULATING = 1 << 62
"""Sequence numbers from here on are those of nodes that accumulate a gradient (torch/csrc/autograd/function.h)."""


class StreamedLedger(Ledger):
    """A ledger that records each storage's stream, and the other streams that ``record_stream`` names.

    A backward begins each node on the stream of its forward (``Node::stream`` in torch/csrc/autograd/function.h); hooks
    may switch to others.
    """

    held = HELD_TO_THE_END
    """The assumption about memory that other streams use too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.streams: list[int] = []
        self._elsewhere: set[int] = set()
        self._switches: list[tuple[int, int]] = [(0, 0)]
        """The sequence number of the next autograd node and the current stream, at the start and at each switch."""
        self._depth = 1
        """The number of active stream contexts when the phase began."""
        if Streams.active is not None:
            Streams.active.follower = self

    def enter(self, phase: str, step: int) -> None:
        """Begin a phase of a step."""
        super().enter(phase, step)
        self._depth = 1 if Streams.active is None else len(Streams.active.stack)

    def switched(self, stream: int) -> None:
        """Note that a stream is the current one from now on."""
        self._switches.append((compat.sequence_number(), stream))

    def join(self, tensors: Sequence[Tensor], owner: int) -> None:
        """Record existing tensors as one block, as long as each has a storage of its own that is not recorded yet."""
        with compat.no_function():
            storages = {self._storage(tensor)._cdata: self._storage(tensor) for tensor in filter(self.is_here, tensors)}
        if len(storages) < len(tensors) or not storages.keys().isdisjoint(self._live):
            return
        rest = sum(storage.nbytes() for storage in storages.values())
        for storage in storages.values():
            self._record(storage, owner, rest)
            rest = 0

    def handed_over(self, tensor: Tensor, stream: int) -> None:
        """Note that ``record_stream`` gives a tensor to a stream."""
        number = self.number_of(tensor) if self.is_here(tensor) else -1
        if number >= 0 and self.streams[number] != stream:
            self._elsewhere.add(number)

    def number_of(self, tensor: Tensor) -> int:
        """Return the number of a tensor's storage; -1 if it is not recorded."""
        return self._live.get(self._storage(tensor)._cdata, (-1, None))[0]

    def place(self) -> Place:
        """Return the thread and the stream whose library handles apply."""
        return super().place()[0], self._stream()

    def _stream(self) -> int:
        """Return the current stream: in the backward that of the node's forward."""
        streams = Streams.active
        if streams is None or len(self._switches) == 1:
            return 0
        is_switched = self.phase != "backward" or len(streams.stack) > self._depth
        node = None if is_switched else compat.current_node()
        number = ACCUMULATING if node is None else number_of(node)
        if number >= ACCUMULATING:
            return streams.current
        return self._switches[bisect_right(self._switches, (number, ACCUMULATING)) - 1][1]

    def _number(self, nbytes: int, owner: int, kind: str | None, band: float = 0.0) -> int:
        self.streams.append(self._stream())
        return super()._number(nbytes, owner, kind, band)

    def log(self, module_paths: tuple[str, ...], assumptions: tuple[str, ...] = ()) -> MemoryLog:
        """Return the ledger as plain data, with each storage's stream."""
        if self._elsewhere:
            assumptions += (self.held,)
        log = super().log(module_paths, assumptions)
        storages = tuple(
            replace(storage, elsewhere=True) if number in self._elsewhere else storage
            for number, storage in enumerate(log.storages)
        )
        return replace(log, storages=storages, streams=tuple(self.streams) if any(self.streams) else ())
