"""What a step tells an account about its tensors and phases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from torch import Tensor

from ..trace.questions import OUTSIDE


class Account(Protocol):
    """Is notified of tensors' kinds and of the beginning of each phase of a step.

    Phases are "setup", "forward" (with the loss), "backward", "optimizer", and "end": whatever follows one of the last
    two until a module is called again, such as gradient clipping or the loss of a micro-batch.
    """

    phase: str
    step: int

    def classify(self, tensors: Iterable[Tensor], kind: str, owner: int = OUTSIDE) -> None:
        """Note what tensors are, and for which module."""

    def join(self, tensors: Sequence[Tensor], owner: int) -> None:
        """Note that existing tensors, each with a storage of its own, lie in one block."""

    def enter(self, phase: str, step: int) -> None:
        """Begin a phase of a step."""
