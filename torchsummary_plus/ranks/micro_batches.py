"""Micro-batches of pipeline stages: the first ones run; the others are only noted and filled in later."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch

from ..data.memory_records import Moment
from ..live.fakes import Fake
from ..trace.questions import OUTSIDE
from .compat import pipelining, pytree
from .fsdp import Forwards, OrderChange
from .kinds import RankLedger
from .stand_ins import replaced

MARK = "micro-batch"
"""The moments at which a part begins and ends."""
FIRST = 2
"""Micro-batches that run at the beginning of the first step; the second one stands for those that follow. In later
steps the first and the last run. The very last shows whether the second was like the others.
"""


class UnlikeError(Exception):
    """Micro-batches differ, or cannot be shown to be equal."""


@dataclass(frozen=True)
class Part:
    """A forward, a loss or a backward of a stage's micro-batch, in the lists of a ledger.

    ``begin`` and ``end`` are its marks among the moments, ``calls`` and ``doubts`` its slices of those lists, ``outs``
    the storages it returns, ``unknown`` what it added to the operators without a rule. Where it was not run, its only
    allocations are those of ``outs``.
    """

    what: tuple[str, int]
    batch: int
    step: int
    is_run: bool
    begin: int
    end: int
    calls: slice
    doubts: slice
    outs: tuple[int, ...]
    unknown: tuple[tuple[str, int], ...]

    @property
    def stage(self) -> int:
        """The number of the stage."""
        return self.what[1]


@dataclass(frozen=True)
class _Seen:
    """A part's arguments, its result, the phase in which it ended, and its change to the order of forwards."""

    arguments: Any
    returned: Any
    phase: str
    change: OrderChange


class MicroBatches:
    """Runs the parts of the first micro-batches, and supplies stand-ins for the results of the others."""

    def __init__(self, ledger: RankLedger, number: int, steps: int) -> None:
        self.ledger = ledger
        self.last, self.last_step = number - 1, steps - 1
        self.parts: list[Part] = []
        self._begun: set[Any] = set()
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._batch = self._stage = 0
        self.are_unlike = False

    def part(self, name: str, arguments: Any, run: Callable[[], Any], forwards: Forwards) -> Any:
        """Run or skip a part of the current micro-batch and return its result. Raises :class:`UnlikeError`."""
        ledger, what = self.ledger, (name, self._stage)
        key = what, self._batch, ledger.step
        if key in self._begun:  # The user's own step runs its schedule more than once.
            raise self.unlike()
        self._begun.add(key)
        is_run = self._runs()
        arguments = self._described(arguments)
        if not is_run and self._seen[what].arguments != arguments:
            raise self.unlike()
        begin, calls, doubts = self._mark(), len(ledger.calls), len(ledger.doubts)
        before = Counter(ledger.workspaces.unknown)
        if is_run:
            with forwards.watched() as change:
                out = run()
            if self._batch > 0:
                self._seen[what] = _Seen(arguments, self._described(out), ledger.phase, change)
        else:
            forwards.repeat(self._seen[what].change)
            out = pytree.tree_map_only(_Tensor, _Tensor.make, self._seen[what].returned)
            ledger.phase = self._seen[what].phase
        outs = tuple(
            dict.fromkeys(ledger.number_of(tensor) for tensor in pytree.tree_leaves(out) if _is_tensor(tensor))
        )
        unknown = tuple((Counter(ledger.workspaces.unknown) - before).items())
        slices = slice(calls, len(ledger.calls)), slice(doubts, len(ledger.doubts))
        self.parts.append(Part(what, self._batch, ledger.step, is_run, begin, self._mark(), *slices, outs, unknown))
        return out

    def _runs(self) -> bool:
        """Whether the current micro-batch has to run."""
        is_last = self._batch == self.last and (self.ledger.step > 0 or self.last_step == 0)
        return is_last or self._batch < (FIRST if self.ledger.step == 0 else FIRST - 1)

    def unlike(self) -> UnlikeError:
        """Return the error to raise, and note it, because a schedule's code may replace it by its own."""
        self.are_unlike = True
        return UnlikeError()

    def _mark(self) -> int:
        ledger = self.ledger
        ledger.moments.append(Moment(MARK, OUTSIDE, ledger.phase, ledger.step))
        return len(ledger.moments) - 1

    def _described(self, value: Any) -> Any:
        """Return a tree with its tensors described. Raises :class:`UnlikeError` for tensors of other classes."""
        return pytree.tree_map_only(torch.Tensor, self._tensor, value)

    def _tensor(self, tensor: torch.Tensor) -> _Tensor:
        if not isinstance(tensor, Fake):
            raise self.unlike()
        return _Tensor(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device, tensor.requires_grad)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, have stages run their micro-batches part by part.

        Source: torch/distributed/pipelining/stage.py, ``_PipelineStageBase``; schedules.py, ``_compute_loss``.
        """
        names = pipelining()
        with ExitStack() as stack:
            for place in names.chunks:
                stack.enter_context(replaced(place, self._counted))
            for place, part in ((names.forward, "forward"), (names.backward, "backward"), (names.loss, "loss")):
                stack.enter_context(replaced(place, partial(self._split, part)))
            yield

    def _counted(self, function: Any) -> Any:
        @wraps(function)
        def called(stage: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
            self._stage, self._batch = stage.stage_index, chunk
            return function(stage, chunk, *args, **kwargs)

        return called

    def _split(self, name: str, function: Any) -> Any:
        @wraps(function)
        def called(place: Any, *args: Any, **kwargs: Any) -> Any:
            if (name == "backward" and args[0] != "full") or _reduces_by_itself(place):
                raise self.unlike()
            arguments = () if name == "backward" else (args, kwargs)
            return self.part(
                name, arguments, partial(function, place, *args, **kwargs), Forwards(getattr(place, "submod", None))
            )

        return called


def _reduces_by_itself(place: Any) -> bool:
    """Whether a stage's module reduces gradients in its own last backward, as ``DistributedDataParallel`` does."""
    distributed: Any = sys.modules.get("torch.nn.parallel.distributed")
    return isinstance(getattr(place, "submod", None), distributed.DistributedDataParallel)


@dataclass(frozen=True)
class _Tensor:
    """A tensor's properties, without the tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    def make(self) -> torch.Tensor:
        """Return a new leaf tensor with these properties."""
        result = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        return result.requires_grad_(self.requires_grad)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
