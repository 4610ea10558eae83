"""What steps report to, and the tensors that exist before them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from ..trace.questions import OUTSIDE


class PriorTensor(NamedTuple):
    """A tensor that exists before the steps, its kind, and its module's number.

    It counts only ``if_used`` where an installed package keeps it, as most packages keep more than a step needs.
    """

    tensor: Tensor
    kind: str
    owner: int
    if_used: bool = False


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
