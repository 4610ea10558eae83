"""``what_if``: a step's memory under several settings, and the largest batch of each on several GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..data.arguments import integer
from ..data.errors import InputError, choice_error
from ..data.memory_records import a_gpu
from ..data.units import common_unit, describe, in_common_unit, rate_text
from ..formats.table import Cell, Field, Table, TableRow
from ..formats.text import WIDTH, table_text
from ..memory.capacity import Search
from ..memory.estimate import IN_PIECES, least, room_of_log
from ..memory.gpus import COMMON, find_gpu
from ..render.plots import draw_steps, placed
from ..results.memory_estimate import MemoryEstimate
from ..results.views import Chosen, Figures, ShownLook, Views
from ..step.training import EIGHT_BIT, PAGED
from ..table.inputs import make_example
from .public import check_model, progress_line, public
from .step_request import StepArguments, StepOptions, StepRequest, required, takes_step_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

MICRO_BATCHES = (4, 2)  # The numbers of micro-batches that are tried by default, the first that divides the batch.


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
        """Plot the peaks as bars, by kind, with a line for each GPU's usable memory; see :meth:`Comparison.plot`."""
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


@public
@takes_step_arguments
def what_if(
    model: nn.Module,
    input_size: Any = None,
    batch_size: int = 1,
    gpus: Sequence[str] | str | None = None,
    *,
    settings: Mapping[str, Mapping[str, Any]] | Sequence[str] | None = None,
    input_data: Any = None,
    dtypes: Any = None,
    cudnn: str = "auto",
    progress: bool = True,
    options: StepOptions | None = None,
    **step: Unpack[StepArguments],
) -> WhatIf:
    """Return which settings of a step fit which GPUs, and up to which batch; no GPU is needed.

    Args:
        model, input_size, batch_size, input_data, dtypes, cudnn, progress, options: as for :func:`estimate_memory`.
            ``batch_size`` is that of an optimizer step, which a setting may divide into micro-batches.
        gpus: GPUs by name; None means common ones from 8 to 80 GB.
        settings: by name, the options of :func:`estimate_memory` that differ from the call's, and ``model`` for another
            model. None means those that need no other model: float32, bf16 and fp16 autocast, 8-bit and paged
            optimizers, and micro-batches; a list chooses among these by name.

    The steps are recorded once for each setting and shared between GPUs, and again on each GPU near its largest batch,
    which is found to within about 1 %; :func:`max_batch_size` confirms it. Raises what :func:`estimate_memory`
    raises.

    >>> from torch import nn
    >>> net = nn.Linear(1024, 1024)
    >>> result = what_if(net, (1024,), 64, ["RTX 4090"], settings={"Adam": {"optimizer": "adam"}, "SGD": {}})
    >>> result["Adam"].limits[0].fits, result["SGD"].estimate.peak_bytes < result["Adam"].estimate.peak_bytes
    (True, True)
    """
    base = StepOptions.of("what_if", options, step, cudnn=cudnn)
    integer("batch_size", batch_size, 1)
    listed = COMMON if gpus is None else [gpus] if isinstance(gpus, str) else list(gpus)
    if not listed:
        raise InputError("gpus is empty; accepted: None or names of GPUs")
    names = [find_gpu(name).name for name in listed]
    rows = []
    with progress_line(progress) as tick:
        for name, changes in _settings(settings, check_model(model), base, batch_size).items():
            own = dict(changes)
            changed = own.pop("model", model)  # Which a setting may replace.
            if not isinstance(changed, nn.Module):
                raise InputError(f"the model of setting {describe(name)} is {describe(changed)}; accepted: a Module")
            with_changes = StepOptions.of("what_if", base, own)
            example = required(make_example(input_size, batch_size, dtypes, input_data))
            requests = {
                gpu: StepRequest(changed, example, replace(with_changes, device="cuda", gpu=gpu)) for gpu in names
            }
            rows.append(_tried(name, requests, batch_size, tick))
    return WhatIf(batch_size, tuple(names), tuple(rows))


def _settings(
    settings: Mapping[str, Mapping[str, Any]] | Sequence[str] | None, model: nn.Module, base: StepOptions, batch: int
) -> Mapping[str, Mapping[str, Any]]:
    """Return the settings by name: by default the call's own, then those that may take less memory."""
    if isinstance(settings, Mapping):
        for name, changes in settings.items():
            if not isinstance(changes, Mapping):
                raise InputError(f"setting {describe(name)} is {describe(changes)}; accepted: a dict of options")
        if not settings:
            raise InputError("settings is empty; accepted: None, names, or a dict of options by name")
        return settings
    dtypes = {str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point()}
    known: dict[str, dict[str, Any]] = {" and ".join(sorted(dtypes)) if base.autocast is None else "as given": {}}
    if base.autocast is None and dtypes == {"float32"}:
        known |= {"bf16": {"autocast": torch.bfloat16}, "fp16": {"autocast": torch.float16}}
    trains = base.mode == "train" and base.train_step is None
    eight_bit = f"{base.optimizer}8bit" if isinstance(base.optimizer, str) else ""
    if trains and eight_bit in EIGHT_BIT:
        known["8-bit optimizer"] = {"optimizer": eight_bit}
        known["paged 8-bit optimizer"] = {"optimizer": PAGED + eight_bit}
    count = next((count for count in MICRO_BATCHES if batch % count == 0 and batch > count), 0)
    if trains and count and base.gradient_accumulation_steps == 1:
        known[f"{count} micro-batches"] = {"gradient_accumulation_steps": count}
    for name in settings or ():
        if name not in known:
            raise choice_error("setting", name, known)
    return known if settings is None else {name: known[name] for name in settings}


def _tried(name: str, requests: Mapping[str, StepRequest], batch_size: int, tick: Callable[[str], None]) -> Setting:
    """Return a setting's estimate, for the kernels of the first GPU, and its largest batch on each GPU."""
    first = next(iter(requests.values()))
    count = first.step.micro_batches
    if batch_size % count:
        raise InputError(f"batch_size is {batch_size} and setting {describe(name)} has {count} micro-batches; pass a "
                         "batch size that they divide")  # fmt: skip
    batch = batch_size // count

    def tell(words: str) -> None:
        tick(f"{name}: {words}")

    shared = {size: first.trace(size, tell) for size in (batch, 3 if batch == 2 else 2)}
    needed = first.peak(least(shared[batch]))
    limits, logs, estimate = [], shared, first.estimate(batch, shared[batch])
    for gpu, request in requests.items():
        trace = partial(request.trace, tick=tell, highest_draw=True)
        search = Search(trace, *request.limits(gpu), shared=logs)
        largest = search.run()
        logs = search.logs
        usable = room_of_log(shared[batch], request.backend, gpu)
        time = estimate.known_time(gpu)
        rate = None if time is None else time.samples_per_second
        limits.append(GpuFit(gpu, count * largest, batch <= largest, needed, usable, rate))
    return Setting(name, estimate, tuple(limits))
