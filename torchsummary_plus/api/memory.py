"""The calls that predict memory: what a step takes, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ..data.errors import InputError, UnsupportedError
from ..data.memory_records import MemoryLog
from ..data.units import describe
from ..live.inputs import Example, make_example, with_batch
from ..live.modules import ModuleTree
from ..memory.attribution import run_log
from ..memory.capacity import BatchSizeLimit, Search
from ..memory.estimate import build_estimate, communicator_range, least, log_fits, room_for_tensors, uses_libraries
from ..memory.gpus import named_gpu, parse_memory
from ..ops.scratch.cuda.chips import chip_named
from ..results.memory_estimate import MemoryEstimate, as_memory_estimate
from ..step.fake_steps import record_step
from ..step.measuring import measure_step
from ..step.workspace import AMPERE
from ..trace.passes import Frame, Listener, no_collection
from .progress import progress_bar
from .step_options import StepOptions, step_info


def estimate_memory(
    model: nn.Module | Callable[[], Any],
    input_size: Any = None,
    batch_size: int = 1,
    device: Any = None,
    dtypes: Any = None,
    *,
    input_data: Any = None,
    mode: str = "train",
    optimizer: Any = None,
    loss: Any = None,
    targets: Any = None,
    autocast: Any = None,
    train_step: Callable[..., Any] | None = None,
    keep_output: bool = False,
    steps: int = 2,
    allocator: str | None = None,
    gpu: str | None = None,
    cudnn: str = "auto",
    world_size: int | None = None,
    rank: int = 0,
    ranks: str | Sequence[int] | None = None,
    progress: bool = True,
    prompt: int | None = None,
    new_tokens: int = 1,
    cache: str = "dynamic",
) -> MemoryEstimate:
    """The memory that a training or inference step takes, predicted on fake tensors: no GPU, nothing allocated.

    Args:
        model: any ``nn.Module`` that a fake pass can run; it is afterwards what it was. With ``world_size`` a function
            without arguments that builds and wraps one, as a script of distributed training does.
        input_size, batch_size, dtypes, input_data: as for :func:`summary`, with a batch of at least 1.
        device: None for the model's own, or for CUDA with ``gpu``; "cuda" gives the figures of a CUDA device on any
            machine.
        mode: "train" (forward, loss, backward, optimizer step, ``zero_grad()``), "eval" (forward, no gradients) or
            "generate" (a transformers model's own greedy ``generate()``; its cache is a kind, ``kv_cache``).
        optimizer: None, a name ("adamw"), a class, or a callable from parameters to an optimizer.
        loss: a name ("cross_entropy", "mse", "bce_with_logits", "causal_lm", ...; its targets are made of the output's
            shape), a callable of the output, or, with ``targets``, a module or function of both. By default the
            output's own ``.loss``, else its sum, which ``assumptions`` then says: a real loss may take much more.
        targets: what the loss is given beside the output: a tensor, a size without the batch axis, ``(size, dtype)``,
            or a list or dict of such. They are booked as inputs, and grow with the batch.
        autocast: torch.bfloat16 or torch.float16, to autocast the forward and the loss to.
        train_step: the user's own step, called with the model and its inputs.
        keep_output: whether the loop keeps the output until the next forward has made another.
        steps: how many steps to run; the second one has the optimizer's state from its start.
        allocator: options as in ``PYTORCH_CUDA_ALLOC_CONF``; None reads them from the environment.
        gpu: the card to run on, by its name: it means CUDA, and some kernels depend on it. None is the one that is
            here, or an A100 where there is none.
        cudnn: how to find the workspaces of convolutions: "auto" asks torch's own cuDNN if there is one, and uses a
            table otherwise; "ask" fails if cuDNN cannot be asked; "rule" uses the table.
        world_size, rank: the number of processes that train the model, and the one to estimate. The builder and the
            steps run in a fake world of this size, where collectives send nothing; an existing process group is left
            alone.
        ranks: "all", or several ranks: returns the one with the highest peak (shards may be uneven, and ZeRO gives each
            rank other parameters).
        progress: whether a progress bar may show after a second (at a terminal or in a notebook, with tqdm).
        prompt, new_tokens, cache: for "generate": tokens read and written for each of ``batch_size`` sequences, and a
            "dynamic" or "static" cache. Sliding windows, latent attention and hybrid caches are the model's own.

    Raises:
        InputError: an argument is not one of the accepted values.
        ForwardError: the model's forward failed on fake tensors.
        StepError: the loss, the backward, the optimizer or the user's step did.

    >>> from torch import nn
    >>> e = estimate_memory(nn.Linear(256, 256), (256,), batch_size=8, optimizer="sgd")
    >>> e.at_peak["parameters"], e.at_peak["inputs"], sum(e.at_peak.values()) == e.peak_bytes
    (263168, 8192, True)
    """
    if mode == "generate":
        from .generation import estimate_generation  # It needs this file.

        where = {"device": device, "gpu": gpu, "autocast": autocast, "allocator": allocator, "cudnn": cudnn}
        return estimate_generation(model, prompt, new_tokens, batch_size, cache, progress, **where)
    if batch_size == -1:
        raise InputError("batch_size is -1; accepted: an integer of at least 1")
    if prompt is not None:
        raise InputError(f'prompt is {describe(prompt)} and mode {describe(mode)}; accepted with mode="generate"')
    example = make_example(input_size, batch_size, dtypes, input_data)
    options = StepOptions(
        mode, optimizer, loss, targets, autocast, train_step, keep_output, steps, device, gpu, allocator, cudnn
    )
    given, found = _given(example), []
    with progress_bar("step", "operators", progress) as tick:
        for one in _ranks(world_size, rank, ranks):
            asked = _asked(model, given, options, world_size, one)
            batch = asked.example.batch_size or 1
            found.append(asked.estimate(batch, asked.trace(batch, tick)))
    worst = max(found, key=lambda estimate: estimate.peak_bytes)
    return worst if len(found) == 1 else replace(worst, info=replace(worst.info, ranks=len(found)))


def measure_memory(
    model: nn.Module,
    input_size: Any = None,
    batch_size: int = 1,
    device: Any = None,
    dtypes: Any = None,
    *,
    input_data: Any = None,
    mode: str = "train",
    optimizer: Any = None,
    loss: Any = None,
    targets: Any = None,
    autocast: Any = None,
    train_step: Callable[..., Any] | None = None,
    keep_output: bool = False,
    steps: int = 2,
    allocator: str | None = None,
) -> MemoryEstimate:
    """The memory that the step of :func:`estimate_memory` takes when it is run for real, as torch's profiler sees it.

    The arguments and the result are those of :func:`estimate_memory`, which it can be set beside. The model must be on
    the device; the steps run on copies of its tensors, so that it is afterwards what it was, with the memory of the
    copies in place of its own. On CUDA the allocator's own history and statistics are read as well: what was asked for,
    the blocks it cut, its peak (an assumption names it where the profiler saw another) and what it reserved. A user's
    ``train_step`` is given the model with the copies; optimizers that it makes of other tensors do not train them.

    Raises:
        InputError: an argument is not one of the accepted values, or the model is elsewhere.
        ForwardError: the model's forward failed.
        StepError: the loss, the backward, the optimizer or the user's step did.

    >>> from torch import nn
    >>> net = nn.Linear(256, 256)
    >>> asked = {"batch_size": 8, "optimizer": "sgd"}
    >>> measure_memory(net, (256,), **asked).peak_bytes == estimate_memory(net, (256,), **asked).peak_bytes
    True
    """
    if batch_size == -1:
        raise InputError("batch_size is -1; accepted: an integer of at least 1")
    example = make_example(input_size, batch_size, dtypes, input_data)
    options = StepOptions(
        mode, optimizer, loss, targets, autocast, train_step, keep_output, steps, device, None, allocator
    )
    asked = Asked(model, _given(example), options)
    batch = asked.example.batch_size or 1
    log, reserved = measure_step(model, with_batch(asked.example, batch), asked.step, asked.device)
    found = asked.estimate(batch, log)
    info = replace(found.info, measured=True)
    return replace(found, info=info, reserved_bytes=found.reserved_bytes if reserved is None else reserved)


def max_batch_size(
    model: nn.Module | Callable[[], Any],
    input_size: Any = None,
    memory: int | str = "24GiB",
    *,
    device: Any = "cuda",
    dtypes: Any = None,
    input_data: Any = None,
    mode: str = "train",
    optimizer: Any = None,
    loss: Any = None,
    targets: Any = None,
    autocast: Any = None,
    train_step: Callable[..., Any] | None = None,
    keep_output: bool = False,
    steps: int = 2,
    allocator: str | None = None,
    cudnn: str = "auto",
    world_size: int | None = None,
    rank: int = 0,
    progress: bool = True,
) -> BatchSizeLimit:
    """The largest batch whose step fits in ``memory`` (bytes, "24GiB", a GPU's name), without a trial on a device.

    Two traces, at batches of 2 and 3, are scaled to any batch and replayed. The batch that they foretell and the next
    one are then traced as well; where these differ the search goes on, up to six traces and a batch of 16,777,216.
    With ``input_data`` the tensors whose first axis is the batch grow by repetition. Other arguments and errors are
    those of :func:`estimate_memory`, but the device is by default CUDA.

    >>> from torch import nn
    >>> limit = max_batch_size(nn.Linear(1024, 1024), (1024,), 1 << 24, device="cpu", optimizer="sgd")
    >>> limit.batch_size > 100, limit.peak_bytes <= 1 << 24 < limit.next_peak_bytes
    (True, True)
    """
    example = make_example(input_size, 1, dtypes, input_data)
    nbytes, card = parse_memory(memory), named_gpu(memory)
    named = None if card is None else card.name
    options = StepOptions(
        mode, optimizer, loss, targets, autocast, train_step, keep_output, steps, device, named, allocator, cudnn
    )
    asked = _asked(model, _given(example), options, world_size, rank)

    def room(log: MemoryLog) -> int:
        _, outside = communicator_range(log, asked.backend)
        return room_for_tensors(memory, asked.backend, uses_libraries(log)) - outside

    def fits(log: MemoryLog) -> bool:
        return log_fits(log, asked.backend, asked.options, memory)

    with progress_bar("largest batch", "operators", progress) as tick:
        search = Search(lambda batch: asked.trace(batch, tick), fits, lambda log: room(log) - asked.peak(least(log)))
        found = search.run()
        fitting, beyond = (asked.estimate(batch, least(search.log(batch))) for batch in (max(found, 1), found + 1))
    return BatchSizeLimit(
        batch_size=found,
        peak_bytes=fitting.peak_bytes if found else 0,
        next_peak_bytes=beyond.peak_bytes,
        held_by=max(fitting.by_module, key=lambda module: module.own_bytes).path,
        missing_bytes=0 if found else max(0, beyond.device_bytes[1] - nbytes),
        traced=tuple(sorted(search.logs)),
        memory="" if isinstance(memory, int) else memory,
        memory_bytes=nbytes,
        context_bytes=nbytes - room(fitting.log),
        info=fitting.info,
    )


class Asked:
    """What is asked about: a model, its example and a step, on one device under one allocator."""

    def __init__(self, model: nn.Module, example: Example, options: StepOptions) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model is {describe(model)}; accepted: an instance of torch.nn.Module")
        self.model = model
        self.example = example
        self.step = options.step()
        self.gpu = options.card()
        self.tree = ModuleTree(model)
        self.device = options.place(self.tree)
        self.backend = self.device.type
        self.options = options.allocation()
        self.cudnn = options.asker(self.device)

    def trace(self, batch: int, tick: Callable[[str], None]) -> MemoryLog:
        """The step run on fakes with a batch."""
        example = with_batch(self.example, batch)
        capability = None if self.gpu is None else chip_named(self.gpu.name, self.gpu.compute_capability)
        with no_collection():
            ticks = [_Ticks(tick, batch)]
            return record_step(self.model, example, self.step, self.device, capability, ticks, self.cudnn)

    def peak(self, log: MemoryLog) -> int:
        """The bytes of a log's peak."""
        return run_log(log, self.backend, self.options).peak_bytes

    def estimate(self, batch: int, log: MemoryLog) -> MemoryEstimate:
        """A log explained."""
        info = step_info(self.step, self.device, self.gpu, self.tree, batch, log)
        return as_memory_estimate(build_estimate(log, info, self.backend, self.options))


def _ranks(world_size: int | None, rank: int, ranks: str | Sequence[int] | None) -> Sequence[int]:
    """The ranks to ask about. Raises :class:`InputError`."""
    if ranks is None:
        return (rank,)
    if world_size is None:
        raise InputError("ranks were given without world_size; accepted: both, or neither")
    if isinstance(ranks, str):
        if ranks != "all":
            raise InputError(f"ranks is {describe(ranks)}; accepted: None, 'all', or a list of ranks")
        return range(world_size)
    if not ranks:
        raise InputError("ranks is empty; accepted: None, 'all', or a list of ranks")
    return ranks


class _AskedOfRank(Asked):
    """The same of one rank: the model is what a builder makes of fakes, anew for each trace."""

    def __init__(self, build: Callable[[], Any], example: Example, options: StepOptions, size: int, rank: int) -> None:
        try:
            from ..ranks.process_group import as_rank  # torch.distributed takes a while to import.
            from ..ranks.record import Ranked
        except ImportError as error:
            raise UnsupportedError(f"world_size needs a newer torch, with torch.distributed: {error}") from error
        self.example = example
        self.step = options.step()
        self.gpu = options.card()
        self.tree = ModuleTree(nn.Module())
        self.device = options.place(self.tree)
        self.backend = self.device.type
        self.options = options.allocation()
        gpu = self.gpu
        capability = AMPERE if gpu is None else chip_named(gpu.name, gpu.compute_capability)
        self.rank = as_rank(size, rank)
        self.ranked = Ranked(build, self.rank, self.step, self.device, capability)

    def trace(self, batch: int, tick: Callable[[str], None]) -> MemoryLog:
        with no_collection():
            self.tree, log = self.ranked.record(with_batch(self.example, batch), [_Ticks(tick, batch)])
        return log

    def estimate(self, batch: int, log: MemoryLog) -> MemoryEstimate:
        found = super().estimate(batch, log)
        return replace(found, info=replace(found.info, world_size=self.rank.world_size, rank=self.rank.rank))


def _asked(model: Any, example: Example, options: StepOptions, world_size: int | None, rank: int) -> Asked:
    """What is asked of a model, or of one rank of those that train it."""
    if world_size is None:
        if rank != 0:
            raise InputError(f"rank is {describe(rank)} without world_size; accepted: both, or neither")
        if not isinstance(model, nn.Module) and callable(model) and not isinstance(model, type):
            raise InputError(f"model is {describe(model)}; accepted: a torch.nn.Module, or with world_size its builder")
        return Asked(model, example, options)
    if isinstance(model, nn.Module) or not callable(model):
        raise InputError(
            f"model is {describe(model)}; accepted with world_size: a function without arguments that builds and wraps "
            "the model, since the wrapping must run in that world"
        )
    return _AskedOfRank(model, example, options, world_size, rank)


class _Ticks(Listener):
    """Tells a progress bar of every operator."""

    def __init__(self, tick: Callable[[str], None], batch: int) -> None:
        self.tick = tick
        self.what = f"a batch of {batch:,}"

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self.tick(self.what)


def _given(example: Example | None) -> Example:
    if example is None:
        raise InputError("there is no input; accepted: input_size or input_data")
    return example
