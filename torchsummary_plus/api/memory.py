"""The calls that predict a step's memory and time, also for a table's rows, to a limit, or under several settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..data.arguments import GENERATE, MODE_SYNONYMS, STEP_MODES, integer, names_cures
from ..data.errors import InputError, choice_error
from ..data.memory_records import RowMemory, a_gpu
from ..data.records import Trace
from ..data.units import common_unit, describe, in_common_unit, rate_text
from ..formats.table import Cell, Field, Table, TableRow
from ..formats.text import WIDTH, table_text
from ..memory.attribution import module_memory
from ..memory.capacity import LARGEST_BATCH, BatchSizeLimit, ContextLimit, Search
from ..memory.estimate import IN_PIECES, least, room_of_log, tensors_peak
from ..memory.gpus import COMMON, find_gpu, other_device, parse_memory
from ..render.plots import draw_steps, placed
from ..results.memory_estimate import MemoryEstimate
from ..results.views import Chosen, Figures, ShownLook, Views
from ..step.real_steps import measure_step
from ..step.training import EIGHT_BIT, PAGED
from ..table.inputs import Example, make_example, with_batch
from ..table.modules import ModuleTree
from ..table.rows import Row, row_memory
from ..timing.step_time import gpu_with_peaks
from .public import FOR_CONTEXTS, check_model, progress_line, public
from .step_request import (
    GenerationRequest,
    StepArguments,
    StepOptions,
    StepRequest,
    options_to_fit,
    required,
    step_keywords,
    step_requests,
    takes_step_arguments,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

    from ..timing.step_time import StepTime


@public
@takes_step_arguments
def estimate_memory(
    model: nn.Module | Callable[[], Any],
    input_size: Any = None,
    batch_size: int = 1,
    device: Any = None,
    dtypes: Any = None,
    *,
    input_data: Any = None,
    gpu: str | None = None,
    cudnn: str = "auto",
    world_size: int | None = None,
    rank: int = 0,
    ranks: str | Sequence[int] | None = None,
    progress: bool = True,
    options: StepOptions | None = None,
    prompt: int | None = None,
    new_tokens: int = 1,
    cache: str = "dynamic",
    cache_dtype: Any = None,
    **step: Unpack[StepArguments],
) -> MemoryEstimate:
    """Predict the memory of a training or inference step on fake tensors; no GPU is needed.

    Args:
        model: any ``nn.Module`` that a fake pass can run; it is left unchanged. With ``world_size``, a function without
            arguments that builds and wraps the model, as a distributed training script does.
        input_size, batch_size, dtypes, input_data: as for :func:`summary`, with a batch of at least 1.
        device: None for the model's own, or CUDA if ``gpu`` is given; "cuda" predicts a CUDA device on any machine.
        mode: "train" (forward, loss, backward, optimizer step, ``zero_grad()``), "eval" (forward, no gradients) or
            "generate" (a transformers model's own greedy ``generate()``, whose cache is of the kind ``kv_cache``).
        optimizer: None, a name ("adamw", "adamw8bit", "paged_adamw8bit"), a class, an instance that holds some or all
            of the model's parameters, or a callable from parameters to an optimizer.
        loss: a name ("cross_entropy", "mse", "bce_with_logits", "causal_lm", ...; targets are made in the output's
            shape), a callable of the output, or, with ``targets``, a module or function of both. By default the
            output's own ``.loss``, else its sum, noted in ``assumptions``: a real loss may take much more.
        targets: the loss's second argument: a tensor, a size without the batch axis, ``(size, dtype)``, or a list or
            dict of these. They count as inputs and grow with the batch.
        autocast: torch.bfloat16 or torch.float16, the dtype of autocast in the forward and the loss; True for the
            device's own. ``amp`` is an alias; for other trainers' options, the error names the replacement.
        train_step: the user's own step, called with the model and its inputs.
        keep_output: whether the loop keeps the output until the next forward returns another.
        steps: number of steps to run; the second one starts with the optimizer's state.
        gradient_accumulation_steps: number of micro-batches of ``batch_size`` whose gradients add up before the
            optimizer's step; each loss is divided by it. They stay from one micro-batch to the next.
        allocator: options as in ``PYTORCH_CUDA_ALLOC_CONF``; None reads them from the environment.
        compiled: whether to predict the step as ``torch.compile`` runs it: as the user has compiled it, or else with
            the whole model compiled. That takes seconds to minutes, in a subprocess. If it fails, the estimate is that
            of the uncompiled step, and ``assumptions`` says why. It needs torch 2.13 to 2.15.
        gpu: name of the GPU model to assume, which implies CUDA and affects some kernels. None means the installed
            GPU, or an A100 without one.
        cudnn: source of the convolutions' workspaces: "auto" queries torch's own cuDNN if possible, else uses a table;
            "ask" fails if cuDNN cannot be queried; "rule" uses the table.
        world_size, rank: the number of processes that train the model, and the one to estimate. The builder and the
            steps run in a simulated world of this size, in which collectives send nothing; an existing process group is
            left alone.
        ranks: "all" or a list of ranks, to return the one with the highest peak (shards may be uneven, and ZeRO gives
            each rank different parameters).
        progress: say what is being tried, after two seconds, at a terminal or in a notebook.
        options: the step's options as one object, to share between calls; arguments of the call override them.

        prompt, new_tokens: for "generate": the number of tokens read and written for each of ``batch_size`` sequences.
        cache, cache_dtype: for "generate": transformers' "dynamic", "static" or "quantized" cache, the last with dtype
            "fp8", "int8", "int4" (its default) or "int2"; or "paged:16", blocks of 16 tokens, also with dtype "fp8".

    Raises:
        InputError: an argument is not one of the accepted values.
        ForwardError: the model's forward failed on fake tensors.
        StepError: the loss, the backward, the optimizer, ``train_step`` or the builder failed.

    >>> from torch import nn
    >>> e = estimate_memory(nn.Linear(256, 256), (256,), batch_size=8, optimizer="sgd")
    >>> e.at_peak["parameters"], e.at_peak["inputs"], sum(e.at_peak.values()) == e.peak_bytes
    (263168, 8192, True)
    """
    settings = StepOptions.of("estimate_memory", options, step, device=device, gpu=gpu, cudnn=cudnn)
    world = world_size, rank, ranks
    if settings.mode == GENERATE:
        asked = integer("prompt", prompt, 1), batch_size, new_tokens, cache, cache_dtype, settings
        return predicted(step_requests(model, partial(GenerationRequest, *asked), *world), progress)
    if prompt is not None:
        raise InputError(
            f'prompt is {describe(prompt)} and mode {describe(settings.mode)}; accepted with mode="generate"'
        )
    if settings.mode not in STEP_MODES:
        raise choice_error("mode", settings.mode, (*STEP_MODES, GENERATE), MODE_SYNONYMS)
    example = required(make_example(input_size, batch_size, dtypes, input_data))
    return predicted(step_requests(model, partial(StepRequest, example=example, options=settings), *world), progress)


def predicted(requests: Iterable[StepRequest], progress: bool) -> MemoryEstimate:
    """Return the estimate of a step, of the rank with the highest peak. An open batch counts as 1."""
    estimates = []
    with progress_line(progress) as tick:
        for request in requests:
            batch = request.example.batch_size or 1
            estimates.append(request.estimate(batch, request.trace(batch, tick)))
    worst = max(estimates, key=lambda estimate: estimate.peak_bytes)
    return worst if len(estimates) == 1 else replace(worst, info=replace(worst.info, ranks=len(estimates)))


@public
@takes_step_arguments
def measure_memory(
    model: nn.Module,
    input_size: Any = None,
    batch_size: int = 1,
    device: Any = None,
    dtypes: Any = None,
    *,
    input_data: Any = None,
    time: bool = False,
    options: StepOptions | None = None,
    **step: Unpack[StepArguments],
) -> MemoryEstimate:
    """Run the step of :func:`estimate_memory` for real and measure its memory with torch's profiler.

    Arguments and result are those of :func:`estimate_memory`, so the two can be compared. The model must be on the
    device; the steps run on copies of its tensors, so it is left unchanged, and the copies' memory counts instead of
    its own. On CUDA, the allocator's history and statistics add the requested bytes, the sizes of blocks, the
    allocator's own peak (an assumption names it if the profile's differs) and the reserved bytes. A user's
    ``train_step`` receives the model with the copies; optimizers it creates from other tensors do not train them.

    With ``time``, ten further steps run without the profiler; of the last seven, :meth:`MemoryEstimate.time` has the
    median, by phase and by module, by CUDA's events or the CPU's clock.

    Raises:
        InputError: an argument is not one of the accepted values, or the model is elsewhere.
        ForwardError: the model's forward failed.
        StepError: the loss, the backward, the optimizer or ``train_step`` failed.

    >>> from torch import nn
    >>> net = nn.Linear(256, 256)
    >>> request = {"batch_size": 8, "optimizer": "sgd"}
    >>> measure_memory(net, (256,), **request).peak_bytes == estimate_memory(net, (256,), **request).peak_bytes
    True
    """
    settings = replace(StepOptions.of("measure_memory", options, step, device=device), gpu=None)
    example = required(make_example(input_size, batch_size, dtypes, input_data))
    settings.refuse_compiled("in measure_memory, which runs the source")
    request, batch = StepRequest(model, example, settings), example.batch_size or 1
    log, reserved = measure_step(request.tree, with_batch(example, batch), request.step, request.device, time)
    estimate = request.estimate(batch, log)
    estimate = replace(estimate, info=replace(estimate.info, measured=True))
    return estimate if reserved is None else replace(estimate, reserved_bytes=reserved)


@public
@takes_step_arguments
def max_batch_size(
    model: nn.Module | Callable[[], Any],
    input_size: Any = None,
    memory: int | float | str | None = None,
    *,
    device: Any = "cuda",
    gpu: str | None = None,
    dtypes: Any = None,
    input_data: Any = None,
    cudnn: str = "auto",
    world_size: int | None = None,
    rank: int = 0,
    progress: bool = True,
    options: StepOptions | None = None,
    **step: Unpack[StepArguments],
) -> BatchSizeLimit:
    """Find the largest batch whose step fits in ``memory`` (bytes, "24GiB", a device's name); no GPU is needed.

    The memory is that of ``gpu`` if one is named in its place, else 24 GiB. Two traces, at batch sizes 2 and 3, are
    extrapolated and replayed. The predicted batch and the next one are then traced as well; if they differ from the
    prediction the search continues until both are traced, or to a batch of 16,777,216. With ``compiled`` a second
    search begins at its answer, with the compiled step. With ``input_data``, tensors whose first axis is the batch grow
    by repetition. Other arguments and errors are those of :func:`estimate_memory`, except that the default device is
    CUDA.

    >>> from torch import nn
    >>> limit = max_batch_size(nn.Linear(1024, 1024), (1024,), 1 << 24, device="cpu", optimizer="sgd")
    >>> limit.batch_size > 100, limit.peak_bytes <= 1 << 24 < limit.next_peak_bytes
    (True, True)
    """
    settings, memory = options_to_fit("max_batch_size", options, step, memory, device, gpu=gpu, cudnn=cudnn)
    nbytes, other = parse_memory(memory), other_device(memory)
    if other is not None and str(settings.device).startswith("cuda"):  # Kernels of other vendors are unknown:
        settings = replace(settings, device="cpu")  # their devices are assumed to hold the tensors of a CPU step.
    example = required(make_example(input_size, 1, dtypes, input_data))
    request = next(step_requests(model, partial(StepRequest, example=example, options=settings), world_size, rank))

    with progress_line(progress) as tick:
        limits = request.limits(memory)
        search = Search(partial(request.trace, tick=tick, highest_draw=True, as_source=True), *limits)
        batch = search.run()
        if request.compiled:
            as_asked = partial(request.trace, tick=tick, highest_draw=True)
            search = Search(as_asked, *limits, start=max(2, search.low))
            batch = search.run()
        sizes = (max(size, search.smallest) for size in (batch, batch + 1))
        fitting, beyond = (request.estimate(size, least(search.log(size))) for size in sizes)
    time = fitting.known_time()
    peak, next_peak = (
        estimate.peak_bytes if other is None else tensors_peak(estimate.log) for estimate in (fitting, beyond)
    )
    return BatchSizeLimit(
        batch_size=batch,
        peak_bytes=peak if batch else 0,
        next_peak_bytes=next_peak,
        held_by=fitting.holders[0][0],
        missing_bytes=0 if batch else max(0, beyond.device_bytes[1] - nbytes),
        traced=tuple(sorted(search.logs)),
        memory=memory if isinstance(memory, str) else "",
        memory_bytes=nbytes,
        context_bytes=nbytes - room_of_log(fitting.log, request.backend, memory),
        info=fitting.info,
        peak_range=fitting.peak_range if batch and other is None else (peak * bool(batch),) * 2,
        unknown=fitting.unknown,
        assumptions=fitting.assumptions,
        samples_per_second=None if not batch or time is None else time.samples_per_second,
    )


@public
@names_cures(FOR_CONTEXTS)
def max_context(
    model: nn.Module,
    memory: int | float | str | None = None,
    batch_size: int = 1,
    *,
    gpu: str | None = None,
    new_tokens: int = 2,
    cache: str = "dynamic",
    cache_dtype: Any = None,
    device: Any = "cuda",
    autocast: Any = None,
    allocator: str | None = None,
    cudnn: str = "auto",
    progress: bool = True,
    options: StepOptions | None = None,
) -> ContextLimit:
    """Return the longest context that a transformers model can generate with in ``memory``.

    The context is a prompt and ``new_tokens`` after it, for each of ``batch_size`` sequences; ``memory`` is bytes,
    "24GiB" (the default) or a GPU's name, which can be given as ``gpu`` too. Traces of short prompts are extrapolated
    as :func:`max_batch_size` does for batches; the answer and the next prompt are always traced. Options of an
    optimizer or a loss have no effect. Raises :class:`InputError`, or :class:`UnsupportedError` for a model that
    does not generate.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> tokens = {"vocab_size": 9, "bos_token_id": 0, "eos_token_id": 1}
    >>> config = GPT2Config(n_layer=1, n_embd=32, n_head=2, n_positions=64, **tokens)
    >>> limit = max_context(GPT2LMHeadModel(config), "8GiB", progress=False)
    >>> limit.context > 1_000_000, limit.position_limit
    (True, 64)
    """
    own = {"autocast": autocast, "allocator": allocator, "cudnn": cudnn}
    settings, memory = options_to_fit("max_context", options, {}, memory, device, gpu, **own)

    def request(prompt: int) -> GenerationRequest:
        return GenerationRequest(prompt, batch_size, new_tokens, cache, cache_dtype, settings, model)

    first = request(1)
    with progress_line(progress) as tick:
        search = Search(
            lambda prompt: request(prompt).trace(batch_size, tick, highest_draw=True),
            *first.limits(memory),
        )
        tokens = search.run()
        counts = (max(count, search.smallest) for count in (tokens, tokens + 1))
        fitting, beyond = (request(count).estimate(batch_size, least(search.log(count))) for count in counts)
    config = getattr(model, "config", None)
    return ContextLimit(
        context=0 if not tokens else min(tokens, LARGEST_BATCH) + new_tokens,
        batch_size=batch_size,
        new_tokens=new_tokens,
        peak_bytes=fitting.peak_bytes if tokens else 0,
        next_peak_bytes=beyond.peak_bytes,
        position_limit=getattr(config, "max_position_embeddings", None),
        traced=tuple(sorted(search.logs)),
        memory_bytes=parse_memory(memory),
        cuda_context_bytes=parse_memory(memory) - room_of_log(fitting.log, first.backend, memory),
        info=fitting.info,
        peak_range=fitting.peak_range if tokens else (0, 0),
        unknown=fitting.unknown,
        assumptions=fitting.assumptions,
    )


@public
def estimate_time(
    model: Any,
    input_size: Any = None,
    batch_size: int = 1,
    *,
    gpu: str | None = None,
    measured: float | StepTime | None = None,
    **options: Any,
) -> StepTime:
    """Predict how long a training or inference step takes on a GPU; none is needed.

    It is ``estimate_memory(model, input_size, batch_size, gpu=gpu, **options).time(measured=measured)``: where memory
    or several GPUs matter too, ask that result instead. Raises the errors of both.

    >>> from torch import nn
    >>> time = estimate_time(nn.Linear(4096, 4096), (4096,), 8192, gpu="RTX 4090", mode="eval", progress=False)
    >>> time.low < time.seconds < time.high, sum(time.by_phase.values()) == time.seconds
    (True, True)
    """
    gpu_with_peaks(gpu)  # Before the model is traced, which may take long.
    return estimate_memory(model, input_size, batch_size, gpu=gpu, **options).time(measured=measured)


INPUTS = ("batch_size", "dtypes", "input_data")
"""Options that set the step's inputs, by default those of the table's pass."""

BESIDES = (*INPUTS, "world_size", "rank", "ranks", "progress", "build")
"""Options besides those of the step; ``build`` builds the model of ``world_size`` processes."""


def memory_of(
    tree: ModuleTree,
    example_of: Callable[..., Example | None],
    memory: str | Mapping[str, Any] | StepOptions,
    device: Any,
    trace: Trace,
    rows: tuple[Row, ...],
) -> tuple[MemoryEstimate, tuple[RowMemory, ...]]:
    """Return the estimate that ``memory=`` of a table asks for, and each row's share of it.

    ``example_of`` builds the table's example, also with other inputs; ``device`` is the table's.
    """
    options = {"device": device, **step_keywords(memory, also=BESIDES)}
    inputs = {name: options.pop(name) for name in INPUTS if name in options}
    world = options.pop("world_size", None), options.pop("rank", 0), options.pop("ranks", None)
    build, progress = options.pop("build", None), options.pop("progress", True)
    if (build is None) != (world[0] is None):
        raise InputError(
            "memory has only one of world_size and build; pass both: "
            "build is the function that builds and wraps the model"
        )
    example = required(example_of(**inputs), may_be_open="batch_size" not in inputs)
    asked = partial(StepRequest, example=example, options=StepOptions(**options))
    estimate = predicted(step_requests(build or tree, asked, *world), progress)
    calls: Sequence[tuple[str, RowMemory]] = estimate.by_call
    modules = dict(module_memory(estimate.log))
    time = estimate.known_time()
    for module in () if time is None else time.by_module:
        modules[module.path] = replace(modules[module.path], seconds=module.own_seconds)
    if build is not None:
        calls, modules = _unwrapped({module.path for module in trace.modules}, calls, modules)
    return estimate, row_memory(trace, rows, calls, modules)


_WRAPPERS = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "module")
"""The names that wrappers give to the module inside them: ``checkpoint_wrapper``, FSDP1, and
``DistributedDataParallel``."""


def _unwrapped(
    known: set[str], calls: Sequence[tuple[str, RowMemory]], modules: Mapping[str, RowMemory]
) -> tuple[Sequence[tuple[str, RowMemory]], dict[str, RowMemory]]:
    """Return the memory of a wrapped model's modules, by their paths in the model itself."""

    def plain(path: str) -> str:
        parts = path.split(".")
        return path if path in known else ".".join(part for part in parts if part not in _WRAPPERS)

    split = [path.rpartition(".") for path in modules if path not in known]
    wrappers = {outer for outer, _, name in split if name in _WRAPPERS}
    summed: dict[str, RowMemory] = {}
    for path, memory in modules.items():
        outer = summed.get(plain(path), RowMemory())
        summed[plain(path)] = replace(outer + memory, shards=outer.shards + memory.shards)
    return [(plain(path), memory) for path, memory in calls if path not in wrappers], summed


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
    example = required(make_example(input_size, batch_size, dtypes, input_data))
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
            steps = {gpu: StepRequest(changed, example, replace(with_changes, device="cuda", gpu=gpu)) for gpu in names}
            rows.append(_tried(name, steps, batch_size, tick))
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
