"""What the tensors of a distributed step are for, told by the part of torch that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from ..data.memory_records import ALL_GATHER, BUCKETS, REDUCE_SCATTER, UNSHARDED, MemoryLog
from ..step.ledger import Ledger
from ..step.workspace import AMPERE, Capability

GRADIENTS = "gradients"
Making = Callable[[str], AbstractContextManager[None]]
"""Gives what holds while a part of torch makes tensors of a kind."""


class RankLedger(Ledger):
    """A ledger in which what is made while a part of torch runs has the kind of that part."""

    making: str | None = None
    current_stream: Callable[[], int] = staticmethod(lambda: 0)
    """Gives the stream in which memory is allocated now."""

    def __init__(self, backend: str, capability: Capability = AMPERE) -> None:
        super().__init__(backend, capability)
        self.streams: list[int] = []

    @contextmanager
    def made_as(self, kind: str) -> Iterator[None]:
        """While it holds, storages that are made are of a kind."""
        outer, self.making = self.making, kind
        try:
            yield
        finally:
            self.making = outer

    def begun(self) -> None:
        """Let what is there now be there from the start, and forget what came and went before."""
        live = sorted(number for number, _ in self._live.values())
        self.events = [(0, number, self.nbytes[number]) for number in live if self.nbytes[number]]
        self.moments = self.moments[:1]
        self.workspaces.forget()

    def _number(self, nbytes: int, owner: int, kind: str | None, band: float = 0.0) -> int:
        self.streams.append(self.current_stream())
        return super()._number(nbytes, owner, kind or self.making, band)

    def log(self, module_paths: tuple[str, ...], assumptions: tuple[str, ...] = ()) -> MemoryLog:
        found = super().log(module_paths, assumptions)
        return replace(found, streams=tuple(self.streams)) if any(self.streams) else found


__all__ = ["ALL_GATHER", "BUCKETS", "GRADIENTS", "REDUCE_SCATTER", "UNSHARDED", "Making", "RankLedger"]
