"""`compare`: models, or the memory of steps, side by side, and its results with their views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, overload

from torch import nn

from ..data.arguments import unknown_argument
from ..data.errors import ForwardError, InputError, choice_error
from ..data.units import describe, numbered
from ..formats.table import Table
from ..memory.gpus import named_gpu
from ..render import tables as side_by_side
from ..render.plots import draw_comparison, draw_steps, placed
from ..render.tables import Entry, StepPeaks
from ..results.memory_estimate import MemoryEstimate
from ..results.model_summary import ModelSummary, Presentation
from ..results.views import OF_FIGURES, Chosen, Depth, Figures, Section, ShownLook, Views
from ..table.rows import Report
from .memory import BESIDES, estimate_memory, max_batch_size
from .public import FOR_TABLES, public
from .step_request import INFERENCE, StepOptions, shows, step_keywords
from .table import summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack


MANY = 3  # Maximum number of models whose layers fit on a page side by side, with shapes and parameters.

MANY_COLUMNS = ("num_params",)


@dataclass(frozen=True, repr=False)
class Comparison(Views, Figures):
    """The result of :func:`compare`: immutable data, printed by ``str()`` and the other views.

    The main table has a row per figure, with the best value marked; the second (``table=1`` in formats with a single
    table) has the layers, aligned by type and shapes.

    >>> from torch import nn
    >>> from torchsummary_plus import compare
    >>> result = compare({"narrow": nn.Linear(3, 2), "wide": nn.Linear(3, 4)}, input_size=(3,))
    >>> "*8" in result.to_text()
    True
    """

    entries: tuple[Entry, ...]
    """The models in order; the others are compared with the first."""
    ratios: bool = False
    """Whether each figure's ratio to the first entry's is shown."""
    changes_only: bool = False
    """Whether layers that all share are left out."""
    view: Presentation = field(default_factory=Presentation)
    figures: tuple[str, ...] | None = None
    """The figures of the main table; None for all."""
    orient: str = "figures"
    """What the rows of the main table are: "figures" or "models"."""
    layers: bool | None = None
    """Whether the layers are shown; None shows them if at least half of them match, or if columns were chosen."""

    _own_options: ClassVar[tuple[str, ...]] = OF_FIGURES

    def aligned(self, style: str | None = None, depth: Depth = ...) -> tuple[tuple[int | None, ...], ...]:
        """Return, for each row of the layer table, the index of the row in each entry's report (None: absent)."""
        shown, _ = self._options({"style": style, "depth": depth})
        view = self.view.with_look(shown)
        rows = side_by_side.aligned_lines(self.entries, view.style, view.depth)
        return tuple(tuple(None if item is None else item[0].row.index for item in row) for row in rows)

    def plot(
        self, figures: Sequence[str] | str | None = None, *, ax: Axes | None = None, width: str | None = None
    ) -> Axes:
        """Plot the models as bars, one panel per figure, with the best value in bold.

        ``figures`` are row names of the main table; None means parameters, multiply-adds and memory (a step's peak if
        ``compare`` was asked for one, else the total size). Without ``ax`` a new figure is made, "column", "page" or
        "notebook" wide. Raises :class:`InputError`, or :class:`MissingExtraError` without matplotlib.
        """
        return draw_comparison(self.entries, figures, placed(ax, width))

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        chosen, orient = look.get("figures", self.figures), look.get("orient", self.orient)
        if orient not in side_by_side.ORIENTS:
            raise choice_error("orient", orient, side_by_side.ORIENTS)
        figures = side_by_side.figures_table(self.entries, chosen, self.ratios)
        if orient == "models":
            figures = side_by_side.models_table(figures, len(self.entries))
        view, layers = self.view.with_look(look), look.get("layers", self.layers)
        columns = side_by_side.shared_names(self.entries, view.col_names)  # Raises, also where no layers are shown.
        if layers is False:
            return (figures,)
        aligned = side_by_side.aligned_lines(self.entries, view.style, view.depth)
        if layers or view.col_names is not None or self.changes_only or side_by_side.layers_match(aligned):
            nested = view.style == "tree"
            return figures, side_by_side.layers_table(self.entries, aligned, columns, nested, self.changes_only)
        return (replace(figures, notes=(*figures.notes, side_by_side.FEW_MATCH)),)

    def _look_of_data(self, table: int, in_frame: bool) -> Chosen:
        return {"layers": True}

    def to_html(self, **look: Unpack[ShownLook]) -> str:
        """Return the tables as an HTML fragment; by default only the parameter columns of many models."""
        look.setdefault("style", None)  # A tree would hide rows that only one model has.
        return super().to_html(**self._fitting(look))

    def _fitting(self, look: ShownLook) -> ShownLook:
        """Return a look whose columns fit on a page: only parameters for many models, unless others are chosen."""
        if len(self.entries) > MANY and self.view.col_names is None:
            look.setdefault("columns", MANY_COLUMNS)
        return look

    def _sections(self) -> tuple[Section, ...]:
        tables = self.tables(**self._fitting({"units": "auto"}))
        return tuple((title, (table,), "") for title, table in zip(("Comparison", "Side by side"), tables))


@dataclass(frozen=True, repr=False)
class StepComparison(Views, Figures):
    """The result of :func:`compare` for steps: immutable data, printed by ``str()`` and the other views.

    The table has a row per figure in bytes (the peak by kind and by phase; allocated, reserved and device memory), one
    for the time where it is known, a column per step, and the difference of each further step from the first.

    >>> from torch import nn
    >>> from torchsummary_plus import compare, estimate_memory
    >>> layer, request = nn.Linear(8, 8), {"input_size": (8,), "device": "cpu"}
    >>> steps = {name: estimate_memory(layer, **request, optimizer=name) for name in ("sgd", "adam")}
    >>> compare(steps).to_csv().splitlines()[0]
    'figure,path,level,sgd,adam,adam-sgd'
    """

    names: tuple[str, ...]
    estimates: tuple[MemoryEstimate, ...]

    def plot(self, *, ax: Axes | None = None, width: str | None = None) -> Axes:
        """Plot the peaks as bars, by kind; ``ax``, ``width`` and the errors are those of :meth:`Comparison.plot`."""
        return draw_steps(self.names, self.estimates, placed(ax, width))

    def _tables(self, look: Chosen) -> tuple[Table, ...]:
        times = [estimate.known_time() for estimate in self.estimates]
        seconds = [None if time is None else time.seconds for time in times]
        return (side_by_side.steps_table(self.names, self.estimates, seconds),)


class ReadingArguments(TypedDict, total=False):
    """The arguments of :func:`summary` that affect its figures, which an entry may override."""

    input_size: Any
    batch_size: int
    device: Any
    dtypes: Any
    input_data: Any
    mode: str
    run: str
    functional: bool


class CompareArguments(ReadingArguments, total=False):
    """The keyword arguments of a comparison of models; their defaults are those of :func:`compare`."""

    names: Sequence[str] | None
    memory: str | Mapping[str, Any] | StepOptions | None
    style: str
    depth: int | None
    col_names: Iterable[str] | None
    ratios: bool
    changes_only: bool
    layers: bool | None


READING = {name: signature(summary).parameters[name] for name in ReadingArguments.__annotations__}
"""These arguments as parameters, with their defaults."""


@overload
def compare(*models: MemoryEstimate, names: Sequence[str] | None = None) -> StepComparison: ...


@overload
def compare(
    *models: nn.Module | ModelSummary | Mapping[str, Any] | Sequence[Any], **options: Unpack[CompareArguments]
) -> Comparison: ...


@public
@shows(READING.values())
def compare(
    *models: Any | ModelSummary | Mapping[str, Any],
    names: Sequence[str] | None = None,
    memory: str | Mapping[str, Any] | StepOptions | None = None,
    style: str = "torchsummary",
    depth: int | None = None,
    col_names: Iterable[str] | None = None,
    ratios: bool = False,
    changes_only: bool = False,
    layers: bool | None = None,
    **reading: Unpack[ReadingArguments],
) -> Comparison | StepComparison:
    """Compare models: their totals with the best value marked, and their layers aligned by type and shapes.

    Results of :func:`estimate_memory` and :func:`measure_memory` are compared with each other: the peak by kind and by
    phase, and requested, allocated, reserved and device bytes. They accept only ``names``.

    Args:
        models: two or more models, results of :func:`summary`, or dicts with an entry's own options: ``model``,
            ``name``, ``memory``, and any of ``input_size``, ``batch_size``, ``device``, ``dtypes``, ``input_data``,
            ``mode``, ``run`` and ``functional``, which override those of the call. A summary is used as it is; its own
            ``memory`` supplies the memory figures. Also one list of these, or one dict of them by name.
        names: names of the entries; class names by default.
        memory: "train" or options of :func:`estimate_memory` add the peaks of a training and an inference step ("eval":
            of inference only); an open batch counts as 1. With the option ``gpu``, a GPU's name or an amount such as
            "24GiB", the largest batch that fits is added.
        style, depth, col_names: those of the layer table, as in :func:`summary`; every model has the same columns.
        ratios: also show each figure's ratio to the first model's.
        changes_only: leave out layers that all models share.
        layers: whether to show the layers; None shows them if at least half of them match, or if columns are chosen.

    Other arguments are those of :func:`summary`, and apply to entries that are not summaries.

    Raises:
        InputError: an argument is not one of the accepted values.
        ForwardError: the forward of a model failed.
        StepError: another part of its training step failed.

    >>> from torch import nn
    >>> small, large = (nn.Sequential(nn.Linear(8, n), nn.ReLU(), nn.Linear(n, 2)) for n in (4, 16))
    >>> c = compare(small, large, input_size=(8,), names=["small", "large"])
    >>> [entry.report.total_params for entry in c.entries], c.aligned()
    ([46, 178], ((1, 1), (2, 2), (3, 3)))
    """
    for name in reading:
        if name not in READING:
            given = [name for name, value in reading.items() if isinstance(value, (nn.Module, ModelSummary))]
            as_models = {name: f'a dict of models by name: compare({{"{name}": ...}})' for name in given}
            raise unknown_argument("compare", name, READING, FOR_TABLES | as_models)
    columns = None if col_names is None else (col_names,) if isinstance(col_names, str) else tuple(col_names)
    view = Presentation(style, depth, columns)
    models, names = _entries(models, names)
    if any(isinstance(model, MemoryEstimate) for model in models):
        for model in models:
            if not isinstance(model, MemoryEstimate):
                raise InputError(
                    f"{describe(model)} cannot be compared with an estimate; accepted: only estimates, or only models"
                )
        if len(models) < 2:
            raise InputError("only one estimate was given; accepted: 2 or more")
        own = ["measured" if estimate.info.measured else "predicted" for estimate in models]
        return StepComparison(tuple(_names(own, names)), models)
    if len(models) < 2:
        raise InputError(f"{'only one model' if models else 'no model'} was given; accepted: 2 or more")
    entries = [_entry(model, reading, memory, f"{number} of {len(models)}") for number, model in enumerate(models, 1)]
    called = _names([entry.name for entry in entries], names)
    compared = [Entry(name, entry.report, entry.peaks) for name, entry in zip(called, entries)]
    result = Comparison(tuple(compared), ratios, changes_only, view, layers=layers)
    side_by_side.shared_names(compared, columns)  # Raises for memory columns unless all entries have an estimate.
    return result


def _entries(models: tuple[Any, ...], names: Sequence[str] | None) -> tuple[tuple[Any, ...], Sequence[str] | None]:
    """Unpack a single list of entries, or a single dict of entries by name; return other arguments unchanged."""
    if any(isinstance(model, (tuple, list)) and all(isinstance(size, int) for size in model) for model in models):
        raise InputError("compare() takes only models by position; pass the size of their inputs as input_size=")
    if len(models) != 1:
        return models, names
    (only,) = models
    if isinstance(only, (tuple, list)):
        return tuple(only), names
    if isinstance(only, Mapping) and "model" not in only:
        return tuple(only.values()), list(only) if names is None else names
    return models, names


def _names(own: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """Return a name per entry: the given one, else its ``own``, numbered if several share it."""
    if names is None:
        return numbered(own)
    if isinstance(names, str) or len(names) != len(own) or len(set(names)) != len(names):
        raise InputError(f"names is {describe(names)}; accepted: a list of {len(own)} different names")
    return [str(name) for name in names]


def _entry(
    entry: Any, common: Mapping[str, Any], memory: str | Mapping[str, Any] | StepOptions | None, place: str
) -> Entry:
    """Build the entry of a model, a summary, or a dict of overriding options; its name may still change."""
    if isinstance(entry, ModelSummary):
        return _entry_of(entry, _peaks_of(entry))
    own = dict(entry) if isinstance(entry, Mapping) else {"model": entry}
    accepted = ("model", "name", "memory", *READING)
    for option in own:
        if option not in accepted:
            raise choice_error("an entry's option", option, accepted)
    model, name, settings = own.pop("model", None), own.pop("name", None), own.pop("memory", None)
    reading = {**common, **own}
    try:
        step: dict[str, Any] | None = None
        for asked in (memory, settings):  # The entry's own options come last.
            if asked is not None:
                step = {"mode": "train", **(step or {}), **step_keywords(asked, also=BESIDES)}
        gpu = None if step is None else step.pop("gpu", None)
        if step is not None and gpu is not None:
            card = named_gpu(gpu)
            device = step.get("device", reading.get("device")) or "cuda"
            step.update(gpu=None if card is None else card.name, device=device)
        result = summary(model, **reading, memory=step, verbose=0)
        peaks = _peaks_of(result)
        if step is not None and peaks is not None:
            of_step = ("input_size", "device", "dtypes", "input_data")
            inputs = {name: reading[name] for name in of_step if name in reading}
            peaks = _with_inference_and_limit(peaks, model, {**inputs, **step}, gpu)
    except ForwardError as error:
        which = f"this is model {place} ({type(model).__name__})"
        which += "; to give a model its own inputs, pass a dict with input_size"
        error.hint = f"{error.hint}; {which}" if error.hint else which
        raise
    return _entry_of(result, peaks, name)


def _entry_of(result: ModelSummary, peaks: StepPeaks | None, name: str | None = None) -> Entry:
    """Return an entry with the figures of a summary, without its default view."""
    report = Report(**{item.name: getattr(result, item.name) for item in fields(Report)})
    return Entry(name or result.rows[0].class_name, report, peaks)


def _peaks_of(result: ModelSummary) -> StepPeaks | None:
    """Return the peaks of an existing summary, if it has an estimate."""
    if result.memory is None:
        return None
    memory, info = result.memory, result.memory.info
    training, inference = (memory.peak_bytes, None) if info.mode == "train" else (None, memory.peak_bytes)
    return StepPeaks(info, training, inference, info.gpu, unknown=memory.unknown, assumptions=memory.assumptions)


def _with_inference_and_limit(peaks: StepPeaks, model: Any, step: dict[str, Any], gpu: Any) -> StepPeaks:
    """Add to a training step's peak that of an inference step, and the largest batch that fits in ``gpu``."""
    build = step.pop("build", model)
    if step["mode"] == "train":
        inference = {**step, **INFERENCE, "batch_size": peaks.batch_size}
        estimate = estimate_memory(build, **inference)
        unknown = tuple({**dict(estimate.unknown), **dict(peaks.unknown)}.items())
        assumptions = tuple(dict.fromkeys((*peaks.assumptions, *estimate.assumptions)))
        peak = estimate.peak_bytes
        peaks = replace(peaks, inference_peak_bytes=peak, unknown=unknown, assumptions=assumptions)
    if gpu is None:
        return peaks
    searched = {name: value for name, value in step.items() if name not in ("batch_size", "gpu", "ranks")}
    largest = max_batch_size(build, memory=gpu, **searched)
    assumptions = tuple(dict.fromkeys((*peaks.assumptions, *largest.assumptions)))
    return replace(peaks, gpu=str(gpu), max_batch_size=largest.batch_size, assumptions=assumptions)
