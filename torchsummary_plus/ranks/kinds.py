"""Kinds for the tensors of a distributed step, by the part of torch that allocates them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor

from ..data.memory_records import ALL_GATHER, BUCKETS, REDUCE_SCATTER, UNSHARDED
from ..step.ledger import Ledger

GRADIENTS = "gradients"
Labelling = Callable[[str], AbstractContextManager[None]]
"""Returns a context in which new tensors are recorded under a kind."""
Classify = Callable[[list[Tensor], str], None]
"""Records existing tensors under a kind."""


class RankLedger(Ledger):
    """A ledger that records tensors under the kind of the part of torch that allocates them."""

    new_kind: str | None = None

    @contextmanager
    def labelling(self, kind: str) -> Iterator[None]:
        """Inside the block, record new storages under a kind."""
        outer, self.new_kind = self.new_kind, kind
        try:
            yield
        finally:
            self.new_kind = outer

    def bytes_besides(self, tensors: Iterable[Tensor]) -> int:
        """Return the live bytes in storages without a kind, other than those of ``tensors``."""
        of_tensors = {self.number_of(tensor) for tensor in tensors}
        others = {number for number, _ in self._live.values() if self.entries[number].kind is None} - of_tensors
        return sum(self.entries[number].nbytes for number in others)

    def begun(self) -> None:
        """Treat everything live now as existing from the start, and forget earlier events."""
        live = sorted(number for number, _ in self._live.values())
        self.events = [(0, number, nbytes) for number in live if (nbytes := self.entries[number].nbytes)]
        self.moments = self.moments[:1]
        self.doubts.clear()
        self.workspaces.forget()

    def _number(self, nbytes: int, owner: int, kind: str | None, band: float = 0.0) -> int:
        return super()._number(nbytes, owner, kind or self.new_kind, band)


__all__ = ["ALL_GATHER", "BUCKETS", "GRADIENTS", "REDUCE_SCATTER", "UNSHARDED", "Classify", "Labelling", "RankLedger"]
