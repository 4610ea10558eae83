"""MemoryEstimate: the memory of a step, with its views."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..data.errors import InputError
from ..data.units import in_common_unit
from ..formats.table import Table
from ..formats.text import WIDTH, answer_text, table_text
from ..memory.estimate import Estimate
from ..render.plots import draw_holders, draw_timeline, placed
from ..render.tables import BY_KIND, answer_table, details_text, memory_table, place, time_tables
from ..timing.step_time import StepTime, step_time
from .views import Chosen, Figures, Section, ShownLook, Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack


REPORT_COLUMNS = (
    "peak_own_bytes", "peak_inclusive_bytes", "saved_bytes", "param_bytes", "grad_bytes", "optimizer_bytes",
)  # fmt: skip
"""A report's columns for each module."""


@dataclass(frozen=True, repr=False)
class MemoryEstimate(Views, Figures, Estimate):
    """The result of :func:`estimate_memory`: immutable data in bytes, printed by ``str()`` and the other views.

    Formats for people say whether it fits and what the peak consists of; :meth:`details` has the rest. As data, its
    table has the bytes at the peak by kind (columns ``bytes`` and ``percent``), or by module if ``columns`` are those
    of that table: at the peak ``peak_own_bytes``, ``peak_inclusive_bytes`` and ``peak_parameters_bytes`` or any
    other kind; over the whole step ``output_bytes``, ``saved_bytes``, ``param_bytes``, ``grad_bytes``,
    ``optimizer_bytes``. Modules below ``depth`` are folded into the one above.

    >>> from torch import nn
    >>> from torchsummary_plus import estimate_memory
    >>> step = estimate_memory(nn.Linear(1024, 1024), (1024,), batch_size=64, device="cpu", optimizer="sgd")
    >>> step.peak_phase, step.fits("16GiB")
    ('backward', yes, 15.99 GiB left)
    """

    _main_plot: ClassVar[str] = "plot_timeline"

    def render(self, width: int = WIDTH, units: str | None = None) -> str:
        """Return the estimate as text on lines of at most ``width`` characters: whether it fits, and what it holds.

        Without ``units``, all figures are in GiB, MiB or KiB, by the size of the peak.
        """
        return answer_text(answer_table(self), width, units)

    def details(self) -> str:
        """Return what the printed estimate leaves out: phases, layers, the allocator's figures, all assumptions."""
        return details_text(self)

    def time(self, gpu: str | None = None, *, measured: float | StepTime | None = None) -> StepTime:
        """Return how long the step takes on a GPU, by default the one that it was estimated for; nothing is traced.

        ``measured`` calibrates the answer: the step's seconds as measured on that GPU, or a :class:`StepTime`: that of
        this step from :func:`measure_memory`, or another step's that was calibrated. Of a step that was itself measured
        with ``time=True``, return the measured time. Raises :class:`InputError` for a GPU without published peaks, a
        device other than CUDA, and a step that ran for real without being timed.

        >>> from torch import nn
        >>> from torchsummary_plus import estimate_memory
        >>> step = estimate_memory(nn.Linear(4096, 4096), (4096,), 8192, gpu="RTX 4090", optimizer="sgd")
        >>> time = step.time()
        >>> time.low < time.seconds < time.high, time.bound, step.time("T4").seconds > time.seconds
        (True, 'compute', True)
        """
        return step_time(self.log, self.info, self.backend, gpu, measured)

    def known_time(self, gpu: str = "") -> StepTime | None:
        """Return :meth:`time`; None where it would raise: without a measured time, or a GPU, its peaks, and kernels."""
        try:
            return self.time(gpu or None)
        except InputError:
            return None

    def to_text(self, **look: Unpack[ShownLook]) -> str:
        """Return :meth:`render`'s text, or with ``columns`` a table."""
        shown, cells = self._options(look)
        if "columns" in shown:
            return table_text(self.tables(**look)[0])
        return self.render(units=cells.units.get("bytes", cells.sizes))

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        if "columns" not in look:
            return (answer_table(self),)
        return (memory_table(self, look["columns"], look.get("depth"), look.get("style") or "torchsummary"),)

    def _look_of_data(self, table: int, in_frame: bool) -> Chosen:
        return {"columns": BY_KIND}

    def _sections(self) -> tuple[Section, ...]:
        (answer,) = self.tables()
        (by_module,) = self.tables(columns=REPORT_COLUMNS, style="tree", units="auto")
        time = self.known_time()
        of_time = () if time is None else (("Time", time_tables(time), ""),)
        return (("Memory", (answer, by_module), self), *of_time)

    def _check(self) -> None:
        peaks = {self.peak_bytes, sum(self.at_peak.values()), self._run(self.log).peak_bytes}
        if not self.log.is_consistent or len(peaks) > 1:
            raise InputError("the MemoryEstimate contradicts itself: its peak is not that of its log")
        super()._check()
        self.tables(columns=REPORT_COLUMNS, style="tree")
        _ = self.fits("24GiB"), self.by_call, self.known_time()

    def _headline(self) -> tuple[str, str]:
        return str(self.info), f"Peak: {in_common_unit(self.peak_bytes)}, in the {place(self)}"

    def plot_timeline(
        self, *, steps: int | Collection[int] | None = None, memory: int | float | str | None = None,
        ax: Axes | None = None, width: str | None = None,
    ) -> Axes:  # fmt: skip
        """Plot memory over the step, stacked by kind, with phases, the peak and the layer it is in.

        ``steps`` counts from 1; None is the last one that reaches the peak. ``memory`` (bytes, "24GiB", a GPU's name)
        draws a line at what the allocator can use of it. Without ``ax`` a new figure is made, "column", "page" or
        "notebook" wide. Raises :class:`InputError`, or :class:`MissingExtraError` without matplotlib.
        """
        return draw_timeline(self, steps, memory, placed(ax, width))

    def plot(
        self, *, top: int = 15, depth: int | None = None, ax: Axes | None = None, width: str | None = None
    ) -> Axes:
        """Plot the ``top`` modules that own most of the peak as bars, by kind; modules below ``depth`` are folded.

        ``ax`` and the errors are those of :meth:`plot_timeline`.
        """
        return draw_holders(self, top, depth, placed(ax, width))
