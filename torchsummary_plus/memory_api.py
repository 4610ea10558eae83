"""The calls that predict memory: what a step takes, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from .errors import InputError, choice_error
from .memory.allocator_options import AllocatorOptions
from .memory.attribution import run_log
from .memory.capacity import BatchSizeLimit, Search
from .memory.estimate import build_estimate, least, log_fits, room_for_tensors
from .memory.gpus import GPU, find_gpu, named_gpu, parse_memory
from .memory_estimate import MemoryEstimate, as_memory_estimate
from .memory_records import MemoryLog, StepInfo
from .progress import progress_bar
from .tracing.inputs import Example, as_device, as_dtype, make_example, with_batch
from .tracing.measuring import measure_step
from .tracing.modules import ModuleTree
from .tracing.passes import Frame, Listener, no_collection
from .tracing.step import placed, record_step
from .tracing.steps import Step
from .units import describe

Loss = Callable[[Any], Any]

MODES = ("train", "eval")
BACKENDS = ("cpu", "cuda")


def estimate_memory(
    model: nn.Module,
    input_size: Any = None,
    batch_size: int = 1,
    device: Any = None,
    dtypes: Any = None,
    *,
    input_data: Any = None,
    mode: str = "train",
    optimizer: Any = None,
    loss: Loss | None = None,
    autocast: Any = None,
    train_step: Callable[..., Any] | None = None,
    keep_output: bool = False,
    steps: int = 2,
    allocator: str | None = None,
    gpu: str | None = None,
    progress: bool = True,
) -> MemoryEstimate:
    """The memory that a training or inference step takes, predicted on fake tensors: no GPU, nothing allocated.

    Args:
        model: any ``nn.Module`` that a fake pass can run; it is afterwards what it was.
        input_size, batch_size, dtypes, input_data: as for :func:`summary`, with a batch of at least 1.
        device: None for the model's own; "cuda" gives the figures of a CUDA device on any machine.
        mode: "train" (forward, loss, backward, optimizer step, ``zero_grad()``) or "eval" (forward, no gradients).
        optimizer: None, a name ("adamw"), a class, or a callable from parameters to an optimizer.
        loss: a callable on the output; by default its ``.loss``, else the sum of its floating tensors.
        autocast: a dtype to autocast the forward to.
        train_step: the user's own step, called with the model and its inputs.
        keep_output: whether the loop keeps the output until the next step.
        steps: how many steps to run; the second one has the optimizer's state from its start.
        allocator: options as in ``PYTORCH_CUDA_ALLOC_CONF``; None reads them from the environment.
        gpu: the card that a CUDA device is, by its name: some kernels depend on it. None is the one that is here, or an
            A100 where there is none.
        progress: whether a progress bar may show after a second (at a terminal or in a notebook, with tqdm).

    Raises:
        InputError: an argument is not one of the accepted values.
        ForwardError: the model's forward failed on fake tensors.
        StepError: the loss, the backward, the optimizer or the user's step did.

    >>> from torch import nn
    >>> e = estimate_memory(nn.Linear(256, 256), (256,), batch_size=8, optimizer="sgd")
    >>> e.at_peak["parameters"], e.at_peak["inputs"], sum(e.at_peak.values()) == e.peak_bytes
    (263168, 8192, True)
    """
    if batch_size == -1:
        raise InputError("batch_size is -1; accepted: an integer of at least 1")
    example = make_example(input_size, batch_size, dtypes, input_data)
    step = _step(mode, optimizer, loss, autocast, train_step, keep_output, steps)
    card = None if gpu is None else find_gpu(gpu)
    asked = _Asked(model, _given(example), step, device, allocator, card)
    batch = asked.example.batch_size or 1
    with progress_bar("step", "operators", progress) as tick:
        return asked.estimate(batch, asked.trace(batch, tick))


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
    loss: Loss | None = None,
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
    step = _step(mode, optimizer, loss, autocast, train_step, keep_output, steps)
    asked = _Asked(model, _given(example), step, device, allocator, None)
    batch = asked.example.batch_size or 1
    log, reserved = measure_step(model, with_batch(asked.example, batch), step, asked.device)
    found = asked.estimate(batch, log)
    info = replace(found.info, measured=True)
    return replace(found, info=info, reserved_bytes=found.reserved_bytes if reserved is None else reserved)


def max_batch_size(
    model: nn.Module,
    input_size: Any = None,
    memory: int | str = "24GiB",
    *,
    device: Any = "cuda",
    dtypes: Any = None,
    input_data: Any = None,
    mode: str = "train",
    optimizer: Any = None,
    loss: Loss | None = None,
    autocast: Any = None,
    train_step: Callable[..., Any] | None = None,
    keep_output: bool = False,
    steps: int = 2,
    allocator: str | None = None,
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
    step = _step(mode, optimizer, loss, autocast, train_step, keep_output, steps)
    nbytes = parse_memory(memory)
    asked = _Asked(model, _given(example), step, device, allocator, named_gpu(memory))
    room = room_for_tensors(memory, asked.backend)

    def fits(log: MemoryLog) -> bool:
        return log_fits(log, asked.backend, asked.options, memory)

    with progress_bar("largest batch", "operators", progress) as tick:
        search = Search(lambda batch: asked.trace(batch, tick), fits, lambda log: room - asked.peak(least(log)))
        found = search.run()
        fitting, beyond = (asked.estimate(batch, least(search.log(batch))) for batch in (max(found, 1), found + 1))
    return BatchSizeLimit(
        batch_size=found,
        peak_bytes=fitting.peak_bytes if found else 0,
        next_peak_bytes=beyond.peak_bytes,
        held_by=max(fitting.by_module, key=lambda module: module.own_bytes).path,
        missing_bytes=0 if found else max(0, beyond.device_bytes[1] - nbytes),
        traced=tuple(sorted(search.logs)),
    )


class _Asked:
    """What is asked about: a model, its example and a step, on one device under one allocator."""

    def __init__(
        self, model: nn.Module, example: Example, step: Step, device: Any, allocator: str | None, gpu: GPU | None
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model is {describe(model)}; accepted: an instance of torch.nn.Module")
        self.model = model
        self.example = example
        self.step = step
        self.gpu = gpu
        self.device = placed(as_device(device) or ModuleTree(model).device())
        self.backend = self.device.type
        if self.backend not in BACKENDS:
            raise choice_error("device", self.backend, BACKENDS)
        self.options = AllocatorOptions.from_environment() if allocator is None else AllocatorOptions.parse(allocator)

    def trace(self, batch: int, tick: Callable[[str], None]) -> MemoryLog:
        """The step run on fakes with a batch."""
        example = with_batch(self.example, batch)
        capability = None if self.gpu is None else self.gpu.compute_capability
        with no_collection():
            return record_step(self.model, example, self.step, self.device, capability, [_Ticks(tick, batch)])

    def peak(self, log: MemoryLog) -> int:
        """The bytes of a log's peak."""
        return run_log(log, self.backend, self.options).peak_bytes

    def estimate(self, batch: int, log: MemoryLog) -> MemoryEstimate:
        """A log explained."""
        step = self.step
        info = StepInfo(
            str(self.device),
            batch,
            step.mode,
            "" if step.optimizer is None or step.mode == "eval" else _name(step.optimizer),
            "" if step.autocast is None else str(step.autocast).removeprefix("torch."),
            "" if self.gpu is None else self.gpu.name,
        )
        return as_memory_estimate(build_estimate(log, info, self.backend, self.options))


class _Ticks(Listener):
    """Tells a progress bar of every operator."""

    def __init__(self, tick: Callable[[str], None], batch: int) -> None:
        self.tick = tick
        self.what = f"a batch of {batch:,}"

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self.tick(self.what)


def _step(
    mode: str,
    optimizer: Any,
    loss: Loss | None,
    autocast: Any,
    train_step: Callable[..., Any] | None,
    keep_output: bool,
    steps: int,
) -> Step:
    """A step as it was asked for. Raises :class:`InputError`."""
    if mode not in MODES:
        raise choice_error("mode", mode, MODES)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps is {describe(steps)}; accepted: an integer of at least 1")
    for what, given in (("loss", loss), ("train_step", train_step)):
        if given is not None and not callable(given):
            raise InputError(f"{what} is {describe(given)}; accepted: None or a callable")
    kind = None if autocast is None else as_dtype(autocast)
    return Step(mode, optimizer, loss, kind, train_step, keep_output, steps)


def _given(example: Example | None) -> Example:
    if example is None:
        raise InputError("there is no input; accepted: input_size or input_data")
    return example


def _name(optimizer: Any) -> str:
    """What an optimizer is called: its name as given, or that of its class or callable."""
    return optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
