"""The time of real steps by phase and module, on the device's own clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from ..data.memory_records import MeasuredTime
from ..live.structures import all_tensors
from ..table.forward import Frame, Listener, module_of
from ..trace.values import OUTSIDE

SEEN = "torchsummary_plus_module"
"""The entry in an autograd node's metadata that marks it as known."""


class Stopwatch(Listener):
    """Notes the time whenever a phase, a module's call or a module's part of the backward begins or ends.

    The backward reaches a module's part at the node that made its output, and leaves it at the node that made its
    input, which is another module's or the caller's.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.phase = "setup"
        self.step = 0
        self._laps: list[tuple[Any, str, int, int]] = []
        """When each lap begins, its phase, its step and its module."""

    def enter(self, phase: str, step: int) -> None:
        """Begin a phase of a step."""
        self.phase, self.step = phase, step
        self._begin_lap(OUTSIDE)

    def classify(self, tensors: Iterable[torch.Tensor], kind: str, owner: int = OUTSIDE) -> None:
        """Kinds of tensors take no time."""

    def join(self, tensors: Sequence[torch.Tensor], owner: int) -> None:
        """Real tensors lie where they are."""

    def stop(self) -> None:
        """End the last lap."""
        self._begin_lap(OUTSIDE)

    def begin(self, frame: Frame) -> None:
        """Begin a module's lap."""
        if self.phase == "end":
            self.enter("forward", self.step)
        if frame.module is not None:
            self._follow((frame.args, frame.kwargs), _outside(frame))
            self._begin_lap(frame.module)

    def end(self, frame: Frame, output: Any) -> None:
        """Return to the lap of the module around."""
        if frame.module is not None:
            self._follow(output, frame.module)
            self._begin_lap(_outside(frame))

    def _follow(self, values: Any, module: int) -> None:
        """Begin a module's lap where the backward reaches the nodes of tensors, unless they are known as another's."""
        for tensor in all_tensors(values):
            node: Any = tensor.grad_fn
            if node is not None and SEEN not in node.metadata:
                node.metadata[SEEN] = module
                node.register_prehook(lambda _: self._begin_lap(module))

    def _begin_lap(self, module: int) -> None:
        now: Any = perf_counter()
        if self.device.type == "cuda":
            now = torch.cuda.Event(enable_timing=True)
            now.record(torch.cuda.current_stream(self.device))
        self._laps.append((now, self.phase, self.step, module))

    def measured(self, warm_up: int) -> MeasuredTime:
        """Return the times of the steps after the first ones; what follows a step's last phase counts with it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        steps: dict[int, Counter[tuple[str, int]]] = {}
        before = "forward"
        for (begun, phase, step, module), (ended, *_) in pairwise(self._laps):
            before = before if phase == "end" else phase
            seconds = begun.elapsed_time(ended) / 1e3 if self.device.type == "cuda" else ended - begun
            if phase != "setup" and step >= warm_up:
                steps.setdefault(step, Counter())[before, module] += seconds
        runs = sorted(steps.values(), key=lambda parts: parts.total())
        parts = tuple((*place, seconds) for place, seconds in runs[len(runs) // 2].items())
        return MeasuredTime(tuple(parts.total() for parts in runs), parts)


def _outside(frame: Frame) -> int:
    """Return the module that made a call."""
    module = module_of(frame.outer)
    return OUTSIDE if module is None else module
