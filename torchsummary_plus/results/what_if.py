"""WhatIf: settings of a step by GPU, with their table and other views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..data.errors import choice_error
from ..data.memory_records import a_gpu
from ..data.units import common_unit, in_common_unit, rate_text
from ..formats.table import Cell, Field, Table, TableRow
from ..formats.text import WIDTH, table_text
from ..memory.estimate import IN_PIECES
from ..memory.gpus import find_gpu
from ..render.bars import draw_steps
from ..render.figure import placed
from .memory_estimate import MemoryEstimate
from .views import Chosen, Figures, Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

    from .views import ShownLook


@dataclass(frozen=True, slots=True)
class GpuFit:
    """A setting on a GPU: the largest batch that fits, and whether the batch that was asked for does.

    ``needed_bytes`` is the peak at the batch that was asked for, without optional scratch memory; ``usable_bytes`` is
    the GPU's memory without a CUDA context, ``samples_per_second`` those of the step's time there, if it is known.
    """

    gpu: str
    largest_batch: int
    fits: bool
    needed_bytes: int
    usable_bytes: int
    samples_per_second: float | None = None

    def __str__(self) -> str:
        if self.fits:
            rate = "" if self.samples_per_second is None else f", {rate_text(self.samples_per_second)}/s"
            return f"fits, up to {self.largest_batch:,}{rate}"
        missing = self.needed_bytes - self.usable_bytes
        return f"no: {in_common_unit(missing)} missing" if missing > 0 else "no: fragmented"


@dataclass(frozen=True)
class Setting:
    """A setting: its name, the estimate of its step for the first GPU, and its limit on each GPU."""

    name: str
    estimate: MemoryEstimate
    limits: tuple[GpuFit, ...]


@dataclass(frozen=True, repr=False)
class WhatIf(Views, Figures):
    """The result of :func:`what_if`: immutable data, printed by ``str()`` and the other views.

    The table has a row per setting, with its peak and, for each GPU, whether it fits and up to which batch; as data, a
    GPU's column is the largest batch. ``result["bf16"]`` is a setting, whose ``estimate`` has every detail.

    >>> from torch import nn
    >>> from torchsummary_plus import what_if
    >>> result = what_if(nn.Linear(8, 8), (8,), 2, ["T4"], settings={"SGD": {"optimizer": "sgd"}})
    >>> result.to_csv().splitlines()[0]
    'setting,path,level,peak_bytes,T4'
    """

    batch_size: int
    gpus: tuple[str, ...]
    settings: tuple[Setting, ...]

    def __getitem__(self, name: str) -> Setting:
        known = {setting.name: setting for setting in self.settings}
        if name not in known:
            raise choice_error("setting", name, known)
        return known[name]

    def contradiction(self) -> str:
        """Return what is wrong in a result that was read; "" if nothing is."""
        known = all(tuple(limit.gpu for limit in setting.limits) == self.gpus for setting in self.settings)
        return "" if known and self.settings else "each setting has a limit for each GPU, and there is at least one"

    @property
    def advice(self) -> tuple[str, ...]:
        """A sentence for each GPU that the first setting does not fit, with the next cheaper setting that does."""
        first, *others = self.settings
        said = []
        for gpu, *limits in zip(map(a_gpu, self.gpus), *(setting.limits for setting in self.settings)):
            if limits[0].fits:
                continue
            fitting = [(other, limit) for other, limit in zip(others, limits[1:]) if limit.fits]
            if fitting:
                nearest, limit = max(fitting, key=lambda fit: fit[0].estimate.peak_bytes)
                words = f"the next cheaper setting is {nearest.name}, up to a batch of {limit.largest_batch:,}"
                said.append(f"To fit {gpu}, {words}.")
                continue
            least, limit = min(zip(self.settings, limits), key=lambda fit: fit[1].needed_bytes)
            missing = limit.needed_bytes - limits[0].usable_bytes
            why = f"with {in_common_unit(missing)} missing" if missing > 0 else f"but {IN_PIECES}"
            said.append(f"No setting fits {gpu}: {least.name} comes closest, {why}.")
        them = a_gpu(self.gpus[0]) if len(self.gpus) == 1 else "each of these GPUs"
        return tuple(said) or (f"{first.name} fits {them}.",)

    def plot(self, *, ax: Axes | None = None, width: str | None = None) -> Axes:
        """Plot the peaks by kind as bars, with a line for each GPU's usable memory.

        Without ``ax`` a new figure is made, "column", "page" or "notebook" wide. Raises :class:`MissingExtraError`
        without matplotlib.
        """
        names, estimates = zip(*((setting.name, setting.estimate) for setting in self.settings))
        usable = {limit.gpu: limit.usable_bytes for limit in self.settings[0].limits}
        return draw_steps(names, estimates, placed(ax, width), usable)

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        info, fields = self.settings[0].estimate.info, [Field("peak_bytes", "Peak", "bytes", scaled=True)]
        fields += [Field(gpu, f"{gpu} ({find_gpu(gpu).datasheet_gb} GB)", "count") for gpu in self.gpus]
        rows = []
        for setting in self.settings:
            limits = (Cell(limit.largest_batch, str(limit)) for limit in setting.limits)
            peak = fields[0].cell(setting.estimate.peak_bytes)
            rows.append(TableRow(setting.name, setting.name, 0, (peak, *limits)))
        answer, *notes = self.advice
        if any(limit.samples_per_second is not None for s in self.settings for limit in s.limits if limit.fits):
            notes.append(f"/s: samples per second at a batch of {self.batch_size:,}.")
        title = f"{info.step}: {info.model}, batch {self.batch_size:,}"
        unit = common_unit(max(setting.estimate.peak_bytes for setting in self.settings))
        return (Table(title, "Setting", tuple(fields), tuple(rows), (), tuple(notes), answer=answer, unit=unit),)

    def to_text(self, **look: Unpack[ShownLook]) -> str:
        """Return the table as plain text on lines of at most 80 characters, with the GPUs in several grids."""
        return table_text(self.tables(**look)[0], WIDTH)
