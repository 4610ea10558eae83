"""The data of a comparison: reports side by side. No torch, no text."""

from __future__ import annotations

from dataclasses import dataclass

from ..data.memory_records import StepInfo
from ..table.rows import Report


@dataclass(frozen=True, slots=True)
class StepPeaks:
    """Peaks of a model's steps in bytes, and the largest batch whose training step fits in ``gpu``.

    ``info`` has the settings: batch size, mode, dtypes, device, GPU, optimizer and loss. A figure is None if it was not
    asked for or is unknown; ``gpu`` is a GPU's name, an amount of memory, or "". ``unknown`` lists operators without a
    scratch-memory rule, ``assumptions`` what the peaks and the largest batch assume.
    """

    info: StepInfo
    training_peak_bytes: int | None = None
    inference_peak_bytes: int | None = None
    gpu: str = ""
    max_batch_size: int | None = None
    unknown: tuple[tuple[str, int], ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def batch_size(self) -> int:
        """The batch size of the steps."""
        return self.info.batch_size


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a comparison: its name, its summary and the memory of its steps."""

    name: str
    report: Report
    peaks: StepPeaks | None = None


@dataclass(frozen=True)
class Compared:
    """Entries in order; the others are compared with the first.

    ``ratios`` adds each figure's ratio to the first entry's, ``changes_only`` leaves out layers that all share.
    """

    entries: tuple[Entry, ...]
    ratios: bool = False
    changes_only: bool = False

    def contradiction(self) -> str:
        """Return what is wrong in a comparison that was read; "" if nothing is."""
        return "" if self.entries else "it has no entries"
