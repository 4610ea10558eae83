"""Reports set side by side: the data of a comparison. No torch, no text."""

from __future__ import annotations

from dataclasses import dataclass

from .memory_records import StepInfo
from .report import Report


@dataclass(frozen=True, slots=True)
class StepPeaks:
    """What steps of a model take: their peaks in bytes, and the largest batch whose training step fits in ``gpu``.

    ``info`` is the step that was asked for: its batch, mode, numbers, device, card, optimizer and loss. None where
    nothing was asked or could be told; ``gpu`` is a card's name, an amount of memory, or "".
    """

    info: StepInfo
    training_peak_bytes: int | None = None
    inference_peak_bytes: int | None = None
    gpu: str = ""
    max_batch_size: int | None = None

    @property
    def batch_size(self) -> int:
        """The batch of the steps."""
        return self.info.batch_size


@dataclass(frozen=True, slots=True)
class Entry:
    """One of what is compared: its name, the numbers of its summary, and what its steps take."""

    name: str
    report: Report
    peaks: StepPeaks | None = None


@dataclass(frozen=True)
class Compared:
    """Entries in their order, the first of which the others are compared with.

    ``ratios`` asks for each figure's ratio to the first entry's, ``changes_only`` leaves out the layers that all have
    alike.
    """

    entries: tuple[Entry, ...]
    ratios: bool = False
    changes_only: bool = False
