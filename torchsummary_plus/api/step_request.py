"""A request for a step's memory, and how it is traced and turned into an estimate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ..compiled.estimate import as_compiled, is_known_release
from ..data.capability import AMPERE, Capability
from ..data.collection import no_collection
from ..data.errors import UnsupportedError
from ..data.memory_records import AS_COMPILED, COMPILED, HOW_COMPILED, NOT_COMPILED, SUMMED, TUNED, MemoryLog, StepInfo
from ..live.structures import dtype_name
from ..memory.attribution import run_log
from ..memory.estimate import build_estimate, least, log_fits, room_of_log
from ..ops.scratch.cuda.chips import Chip
from ..results.memory_estimate import MemoryEstimate, as_memory_estimate
from ..step.compiling import has_compiled
from ..step.deep_steps import log_of_few_layers
from ..step.fake_steps import Draws, Task, recorded, task_of
from ..table.attempts import read
from ..table.forward import Frame, Listener
from ..table.inputs import Example, with_batch
from ..table.modules import ModuleTree, class_name, tensors_in
from .step_options import StepOptions


class StepRequest:
    """A request: a model, its example and a step, on one device with one allocator."""

    def __init__(self, model: nn.Module | ModuleTree, example: Example, options: StepOptions) -> None:
        self.example = example
        self.tree = read(model, example)
        for path, module in zip(self.tree.paths, self.tree.modules):
            if any(map(nn.parameter.is_lazy, tensors_in([module]))):
                raise UnsupportedError(
                    f"{path} ({class_name(module)}) has parameters without a shape, because the forward does not use "
                    "it, so its memory is unknown; remove it"
                )
        self.device = options.place(self.tree)
        self.gpu = options.gpu_model()
        self.step = options.step(self.device)
        self.backend = self.device.type
        self.options = options.allocation(self.device)
        self.unused = options.unused()
        self.cudnn = options.cudnn_of(self.device)
        self.is_compiled = has_compiled([self.tree.called, self.step.train_step])
        self.compiled = options.compiled
        """Whether to estimate the step as compiled."""

    @property
    def chip(self) -> Capability | None:
        """The chip of the GPU that was named, None without one."""
        return None if self.gpu is None else Chip(self.gpu.compute_capability, self.gpu.multiprocessors)

    def trace(self, batch: int, tick: Callable[[str], None], highest_draw: bool = False) -> MemoryLog:
        """Trace the step on fakes at a batch size.

        With ``highest_draw``, for a limit, random numbers that decide what runs are those of the highest peak.
        """
        draws = partial(Draws, seed=0, highest=True) if highest_draw else Draws
        task: Callable[..., Task] = partial(
            task_of,
            example=with_batch(self.example, batch),
            device=self.device,
            capability=self.chip,
            listeners=[Ticks(tick, batch)],
            cudnn=self.cudnn,
        )
        with no_collection():
            log = log_of_few_layers(task, self.tree, self.step, draws)
            return recorded(task(self.tree, step=self.step, draws=draws())) if log is None else log

    def trace_as_asked(self, batch: int, tick: Callable[[str], None], highest_draw: bool = False) -> MemoryLog:
        """Trace the step at a batch size, as compiled if that was asked for."""
        log = self.trace(batch, tick, highest_draw)
        if not self.compiled:
            return log
        return as_compiled(self.task(batch), log, partial(tick, f"compiling for a batch of {batch:,}"))

    def task(self, batch: int) -> Task:
        """Return the step at a batch size, on the GPU that was named or else the installed one."""
        card, example = self.cudnn.card, with_batch(self.example, batch)
        known = self.chip or (AMPERE if card is None else card.capability)
        is_cuda = self.backend == "cuda"
        return Task(self.tree, example, self.step, self.device, known, self.cudnn, (), for_cuda=is_cuda)

    def peak(self, log: MemoryLog) -> int:
        """Return a log's peak in bytes."""
        return run_log(log, self.backend, self.options).peak_bytes

    def limits(self, memory: int | float | str) -> tuple[Callable[[MemoryLog], bool], Callable[[MemoryLog], int]]:
        """Return two functions of a log: whether it fits in this much memory, and the bytes that its peak leaves."""
        return (
            lambda log: log_fits(log, self.backend, self.options, memory),
            lambda log: room_of_log(log, self.backend, memory) - self.peak(least(log)),
        )

    def estimate(self, batch: int, log: MemoryLog) -> MemoryEstimate:
        """Build the estimate of a log."""
        also = []
        if AS_COMPILED not in log.assumptions and (self.compiled or self.is_compiled):  # Estimated as its source.
            has_advice = is_known_release() and not any(line.startswith(NOT_COMPILED) for line in log.assumptions)
            also += [COMPILED, *((HOW_COMPILED,) if has_advice else ())]
        if torch.backends.cudnn.benchmark and any("convolution" in kernel.kind for kernel in log.kernels):
            also.append(TUNED)
        log = replace(log, assumptions=(*log.assumptions, *also, *self.unused))
        return as_memory_estimate(build_estimate(log, self._info(batch, log), self.backend, self.options))

    def _info(self, batch: int, log: MemoryLog) -> StepInfo:
        step, optimizer, own = self.step, self.step.optimizer, self.step.train_step
        trains = step.mode == "train"
        parameters = (p for module in self.tree.modules for p in module._parameters.values() if p is not None)
        dtypes = Counter(dtype_name(p.dtype) for p in parameters if p.dtype.is_floating_point)
        loss = step.loss.name if step.loss else "the output's sum" if SUMMED in log.assumptions else "the output's own"
        return StepInfo(
            device=str(self.device),
            batch_size=batch,
            mode=step.mode,
            optimizer=_called(optimizer) if optimizer is not None and trains else "",
            autocast="" if step.autocast is None else dtype_name(step.autocast),
            gpu="" if self.gpu is None else self.gpu.name,
            dtype=" and ".join(name for name, _ in dtypes.most_common()),
            loss=loss if trains and own is None else "",
            train_step=_called(own) if own is not None and trains else "",
            micro_batches=step.micro_batches,
            model=class_name(self.tree.modules[0]),
        )


def _called(named: Any) -> str:
    """Return the name of an optimizer or function: the string itself, or the name of the callable or class."""
    return named if isinstance(named, str) else getattr(named, "__name__", type(named).__name__)


class Ticks(Listener):
    """Says at every operator which batch is being tried."""

    def __init__(self, tick: Callable[[str], None], batch: int) -> None:
        self.tick = tick
        self.words = f"trying a batch of {batch:,}"

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Say which batch is being tried."""
        self.tick(self.words)
