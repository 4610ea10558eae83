"""The sequence numbers of autograd nodes on a GPU, which determine the order in which a backward runs them.

Nodes are numbered by the thread that creates them. On a GPU the engine has a thread of its own, with its own counter: a
graph that a backward creates there has low numbers, and the next backward mixes its nodes with those of the forward.
Here one thread creates all nodes. While another backward runs, the n-th node of an earlier backward gets the number of
the n-th node that the program's thread created.

Source: aten/src/ATen/SequenceNumber.h, local to a thread; torch/csrc/autograd/engine.h, ``CompareNodeTaskTime``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch.autograd.function import BackwardCFunction

from ...live import compat
from .cuda_engine import nodes_of, reached

_ORIGINAL: dict[Any, int] = {}
"""The original numbers of nodes that are renumbered while a backward runs."""


def number_of(node: Any) -> int:
    """Return the number that a node was created with, which tells when, and so by which module."""
    return _ORIGINAL[node] if _ORIGINAL and node in _ORIGINAL else int(node._sequence_nr())


PROGRAM, ENGINE, NOBODY = "program", "engine", "nobody"


class Turn(NamedTuple):
    """A run of nodes created by one thread: numbered from ``number`` on, beginning with the thread's ``place``-th."""

    number: int
    thread: str
    place: int


class DeviceNumbers:
    """Numbers the nodes of backwards as a GPU's engine thread would, in a process that begins with the steps."""

    def __init__(self) -> None:
        self.turns = [Turn(compat.sequence_number(), PROGRAM, 0)]
        self.counts = Counter[str]()
        self.has_graphs = False
        """Whether a backward has created a graph of its own."""
        self.is_open = False
        """Whether some nodes could not be numbered, so that their order is unknown."""

    @contextmanager
    def running(self, roots: Sequence[Any], creates_graph: bool) -> Iterator[None]:
        """Run a backward from some roots; one within another changes nothing."""
        if self.turns[-1].thread == ENGINE:
            yield
            return
        with self._renumbered(roots), self._turn(ENGINE):
            yield
        self.has_graphs |= creates_graph

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside the block, create nodes that do not exist on a GPU."""
        with self._turn(NOBODY):
            yield

    @contextmanager
    def _turn(self, thread: str) -> Iterator[None]:
        outer = self.turns[-1].thread
        self._begin(thread)
        try:
            yield
        finally:
            self._begin(outer)

    def _begin(self, thread: str) -> None:
        number, before = compat.sequence_number(), self.turns[-1]
        self.counts[before.thread] += number - before.number
        self.turns.append(Turn(number, thread, self.counts[thread]))

    @contextmanager
    def _renumbered(self, roots: Sequence[Any]) -> Iterator[None]:
        """Number the nodes that earlier backwards created."""
        if not self.has_graphs:
            yield
            return
        starts = [turn.number for turn in self.turns]
        after = compat.sequence_number()
        try:
            for node in reached(nodes_of(roots)):
                number = node._sequence_nr()
                turn = self.turns[bisect_right(starts, number) - 1]
                if turn.thread == ENGINE and number < after:
                    self._renumber(node, number, turn)
            yield
        finally:
            for node, number in _ORIGINAL.items():
                node._set_sequence_nr(number)
            _ORIGINAL.clear()

    def _renumber(self, node: Any, number: int, turn: Turn) -> None:
        if isinstance(node, BackwardCFunction):
            self.is_open = True
            return
        _ORIGINAL[node] = number
        node._set_sequence_nr(self._of_the_program(turn.place + number - turn.number))

    def _of_the_program(self, place: int) -> int:
        """Return the number of the ``place``-th node that the program's thread created, or will create."""
        turns = [turn for turn in self.turns if turn.thread == PROGRAM]
        turn = turns[bisect_right([turn.place for turn in turns], place) - 1]
        return turn.number + place - turn.place
