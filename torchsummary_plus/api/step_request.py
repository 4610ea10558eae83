"""A request for a step's memory, in one process or as one of many, and how it is traced and turned into an estimate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from inspect import isroutine
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..compiled.estimate import as_compiled, is_known_release
from ..data.capability import AMPERE, Chip
from ..data.errors import InputError, UnsupportedError
from ..data.memory_records import AS_COMPILED, COMPILED, HOW_COMPILED, NOT_COMPILED, SUMMED, TUNED, MemoryLog, StepInfo
from ..data.units import describe
from ..live.isolation import no_collection
from ..live.structures import dtype_name
from ..memory.attribution import replay
from ..memory.estimate import build_estimate, least, log_fits, room_of_log
from ..memory.gpus import find_gpu
from ..results.memory_estimate import MemoryEstimate
from ..step.compiling import has_compiled
from ..step.deep_steps import log_of_few_layers
from ..step.fake_steps import Draws, Task, record
from ..table.attempts import read
from ..table.forward import Frame, Listener
from ..table.inputs import Example, with_batch
from ..table.modules import ModuleTree, class_name, tensors_in
from .public import check_model
from .step_options import StepOptions

if TYPE_CHECKING:
    from ..ranks.record import Ranked


def required(example: Example | None) -> Example:
    """Return an example. Raises :class:`InputError` if there is none."""
    if example is None:
        raise InputError("no input was given; pass input_size=, without the batch axis, or input_data=")
    return example


class StepRequest:
    """A request: a model, its example and a step, on one device with one allocator.

    ``rank`` is the number of processes and that of one of them, whose builder ``model`` creates it for each trace.
    """

    def __init__(self, model: Any, example: Example, options: StepOptions, rank: tuple[int, int] | None = None) -> None:
        self.example = example
        if rank is None and not isinstance(model, ModuleTree):
            check_model(model)
        self.tree = ModuleTree(nn.Module()) if rank is not None else read(model, example)
        for path, module in zip(self.tree.paths, self.tree.modules):
            if any(map(nn.parameter.is_lazy, tensors_in([module]))):
                raise UnsupportedError(
                    f"{path} ({class_name(module)}) has parameters without a shape, because the forward does not use "
                    "it, so its memory is unknown; remove it"
                )
        self.device = options.place(self.tree)
        self.gpu = None if options.gpu is None else find_gpu(options.gpu)
        self.step = options.step(self.device)
        self.backend = self.device.type
        self.options = options.allocation(self.device)
        given = [name for name in ("optimizer", "loss", "targets") if getattr(options, name) is not None]
        have = "has" if len(given) == 1 else "have"
        unused = f'{" and ".join(given)} {have} no effect: mode "eval" is a forward alone'
        self.unused = (unused,) if given and options.mode == "eval" else ()
        self.cudnn = options.cudnn_of(self.device, self.gpu)
        self.is_compiled = rank is None and has_compiled([self.tree.called, self.step.train_step])
        self.compiled = options.compiled  # Whether to estimate the step as compiled.
        self.chip = None if self.gpu is None else Chip(self.gpu.compute_capability, self.gpu.multiprocessors)
        self.ranked: Ranked | None = None
        if rank is not None:
            from ..ranks.process_group import as_rank  # Imported here: it imports torch.distributed.
            from ..ranks.record import Ranked

            options.refuse_compiled("with world_size")
            self.ranked = Ranked(model, as_rank(*rank), self.step, self.device, self.chip or AMPERE)

    def trace(
        self, batch: int, tick: Callable[[str], None], highest_draw: bool = False, as_source: bool = False
    ) -> MemoryLog:
        """Trace the step at a batch size, as compiled if that was asked for, unless ``as_source``.

        With ``highest_draw``, random decisions are those of the highest peak.
        """
        if self.ranked is not None:
            with no_collection():
                self.tree, log = self.ranked.record(with_batch(self.example, batch), [Ticks(tick, batch)])
            return log
        draws = Draws(seed=0, highest=True) if highest_draw else Draws()
        task = replace(self.task(batch), listeners=[Ticks(tick, batch)], draws=draws)
        with no_collection():
            log = log_of_few_layers(task) or record(task)
        if as_source or not self.compiled:
            return log
        return as_compiled(self.task(batch), log, partial(tick, f"compiling for a batch of {batch:,}"))

    def task(self, batch: int) -> Task:
        """Return the task of recording the step, on the GPU that was named or else the installed one."""
        card, example = self.cudnn.card, with_batch(self.example, batch)
        known = self.chip or (AMPERE if card is None else card.capability)
        is_cuda = self.backend == "cuda"
        return Task(self.tree, example, self.step, self.device, known, self.cudnn, (), for_cuda=is_cuda)

    def peak(self, log: MemoryLog) -> int:
        """Return a log's peak in bytes."""
        return replay(log, self.backend, self.options).peak_bytes

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
        step, optimizer, own = self.step, self.step.optimizer, self.step.train_step
        trains = step.mode == "train"
        parameters = (p for module in self.tree.modules for p in module._parameters.values() if p is not None)
        dtypes = Counter(dtype_name(p.dtype) for p in parameters if p.dtype.is_floating_point)
        loss = step.loss.name if step.loss else "the output's sum" if SUMMED in log.assumptions else "the output's own"
        info = StepInfo(
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
            world_size=0 if self.ranked is None else self.ranked.rank.world_size,
            rank=0 if self.ranked is None else self.ranked.rank.rank,
        )
        return MemoryEstimate(**vars(build_estimate(log, info, self.backend, self.options)))


def _called(named: Any) -> str:
    """Return the name of an optimizer or function: the string itself, or the name of the callable or class."""
    return named if isinstance(named, str) else getattr(named, "__name__", type(named).__name__)


class Ticks(Listener):
    """Says at every operator which batch is being tried."""

    def __init__(self, tick: Callable[[str], None], batch: int) -> None:
        self.tick = partial(tick, f"trying a batch of {batch:,}")

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Say which batch is being tried."""
        self.tick()


def step_requests(
    model: Any,
    make: Callable[..., StepRequest],
    world_size: int | None = None,
    rank: int = 0,
    ranks: str | Sequence[int] | None = None,
) -> Iterator[StepRequest]:
    """Yield the request for each of the ranks, or for the model without a world. Raises :class:`InputError`.

    ``make`` returns the request of a model, or of a builder and a ``rank``.
    """
    if world_size is None:
        if ranks is not None:
            raise InputError("ranks was given without world_size; pass world_size= too")
        if rank != 0:
            raise InputError(f"rank is {describe(rank)} without world_size; pass world_size= too")
        if isroutine(model):
            raise InputError(
                f"model is {describe(model)}; accepted: a torch.nn.Module, or with world_size= its builder, a function"
            )
        yield make(model)
        return
    numbers = range(world_size) if ranks == "all" else (rank,) if ranks is None else ranks
    if not numbers or isinstance(numbers, str):
        given = "empty" if not numbers else describe(ranks)
        raise InputError(f"ranks is {given}; accepted: None, 'all', or a list of ranks")
    if isinstance(model, nn.Module) or not callable(model):
        given = f"a {type(model).__name__}" if isinstance(model, nn.Module) else describe(model)
        of_trainer = (
            "; for a transformers Trainer, the function creates it and returns "
            "trainer.accelerator.prepare(trainer.model, trainer.create_optimizer())[0]"
        )
        raise InputError(
            f"model is {given}; accepted with world_size: a function without arguments that builds and wraps "
            "the model, because the wrapping must run inside the simulated process group"
            + (of_trainer if hasattr(model, "accelerator") else "")
        )
    numbers = list(numbers)
    request = make(model, rank=(world_size, numbers[0]))
    for number in numbers:
        request = copy(request)
        assert request.ranked is not None
        request.ranked = request.ranked.of_rank(number)
        yield request
