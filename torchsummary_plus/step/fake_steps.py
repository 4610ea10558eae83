"""A model's training or inference steps -> their memory events, on fake tensors; the model as it was."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..data.errors import ForwardError, StepError, SummaryError
from ..data.memory_records import MemoryLog
from ..live.cuda_guard import capability_of
from ..live.exchange import Copies, exchanging
from ..live.fakes import CPU, standing_in_for, taken_for_tensors
from ..live.inputs import Example
from ..live.modules import ModuleTree
from ..live.offloading import Away
from ..live.remaking import remade
from ..ops.scratch.cuda.cudnn.asking import RULE, Cudnn
from ..trace.at_one import Guesses
from ..trace.embeddings import Embeddings, NeedsIntegerError
from ..trace.hints import forward_error, is_sharded, is_told_by, told_of_real_step
from ..trace.passes import Listener, Pass, deep_stack
from ..trace.questions import OUTSIDE, Answers
from ..trace.rehearsal import Rehearsal, rehearse
from ..trace.run import GrewError, eager, materialised, unwrapped
from ..trace.swap import LOCK, swap_tensors
from .autograd.dispatch import StepKernels
from .bookkeeping import Books, tell_of_twins
from .ledger import Ledger
from .outside import Outside
from .real_steps import RealStep, measured_step, rehearse_step
from .runner import Step, with_loss
from .work import Work
from .workspace import AMPERE, Capability


@dataclass(frozen=True)
class _Task:
    """What to record: a model's steps on an example, on a device, and what real passes told if there were any.

    ``guesses`` answer what they did not, once there is none left to ask.
    """

    tree: ModuleTree
    example: Example
    step: Step
    device: torch.device
    capability: Capability
    cudnn: Cudnn
    listeners: Sequence[Listener]
    rehearsal: Rehearsal | None = None
    real: RealStep | None = None
    guesses: Guesses | None = None


class _NeedsValuesError(Exception):
    """An operator asked for what only values tell, in a forward or ``outside``, and no real pass has told it yet."""

    def __init__(self, outside: bool) -> None:
        super().__init__()
        self.outside = outside


def record_step(
    model: nn.Module,
    example: Example,
    step: Step,
    device: torch.device | None,
    capability: Capability | None = None,
    listeners: Sequence[Listener] = (),
    cudnn: Cudnn | None = None,
) -> MemoryLog:
    """The memory events of a model's steps on fake tensors. The model is as it was.

    ``capability`` is that of the GPU which is asked about: None for the one that is here, or an A100 without one.
    ``cudnn`` is what tells the workspaces of its convolutions; without it they are those of a table.

    The first run of an operator may import parts of torch, whose frames keep its tensors alive for a while; then the
    step is recorded once more. So it is with integers for a sized input that reaches an embedding, with a copy of a
    model that takes shape in its first forward, and with what a real forward or step tells where operators ask for
    values. Where no fake step can be made, the log is that of a real one.
    Raises :class:`ForwardError`, and :class:`StepError` for what fails outside the forward.
    """
    with LOCK:
        tree = ModuleTree(unwrapped(model))
        if any(nn.parameter.is_lazy(tensor) for tensor in tree.tensors()):
            tree = materialised(tree, example)
        place = placed(device or tree.device())
        known = capability or (capability_of(place.index) if place.type == "cuda" else None) or AMPERE
        return _recorded(_Task(tree, example, step, place, known, cudnn or Cudnn(how=RULE), listeners))


def _recorded(task: _Task) -> MemoryLog:
    """The log of a task, which learns from each attempt what the next one has to know."""
    first: ForwardError | StepError | None = None
    while True:
        try:
            imported = len(sys.modules)
            log = _record(task)
            return _with_others(task, log if len(sys.modules) == imported else _record(task))
        except NeedsIntegerError as needed:
            task = replace(task, example=task.example.with_dtype(needed.index, torch.long))
        except GrewError:
            task = replace(task, tree=materialised(task.tree, task.example))
        except _NeedsValuesError as needed:
            task = _rehearsed(task, needed.outside)
        except (ForwardError, StepError) as error:
            first = first or error
            guesses = None if task.guesses is None or _fails_alike(task, first) else task.guesses.after_failure()
            if guesses is None:
                return _otherwise(task, first)
            task = replace(task, guesses=guesses)


def _with_others(task: _Task, log: MemoryLog) -> MemoryLog:
    """The log with those of other guesses, as far as these get a step to its end."""
    others = []
    for guesses in [] if task.guesses is None else task.guesses.alternatives():
        with suppress(SummaryError, GrewError, NeedsIntegerError):
            others.append(_record(replace(task, guesses=guesses)))
    return replace(log, others=tuple(others))


def _fails_alike(task: _Task, error: ForwardError | StepError) -> bool:
    """Whether a real step on the user's own data has failed with the same."""
    real = None if task.real is None else task.real.error
    return task.example.is_data and real is not None and is_told_by(real, error)


def _rehearsed(task: _Task, outside: bool) -> _Task:
    """The task with what a real forward tells; a whole step where that was not all, or something asks outside of it."""
    step = task.step
    if task.rehearsal is None and not outside:
        found = _real_forward(task)
        return replace(task, rehearsal=found, guesses=Guesses() if step.mode == "eval" else None)
    real = task.real or rehearse_step(task.tree, task.example, step)
    kept = real.rehearsal if real.journal is not None or task.rehearsal is None else task.rehearsal
    found = replace(kept, failure=real.rehearsal.failure)
    return replace(task, rehearsal=found, real=real, guesses=Guesses())


def _real_forward(task: _Task) -> Rehearsal:
    """A real forward, on copies of what the model's code reaches beside the model."""
    outside, copies = Outside(task.tree, task.step), Copies(CPU, moves=True)
    with outside.kept(), exchanging() as exchange:
        outside.put(exchange, copies.alike, {id(tensor) for tensor in task.tree.tensors()})
        return rehearse(task.tree, task.example, task.step.mode == "train", task.step.autocast)


def _otherwise(task: _Task, error: ForwardError | StepError) -> MemoryLog:
    """The log where no fake step can be made: on a card that of the CPU, there of a real one; or else the error."""
    if is_sharded(error.original):
        raise error from error.__cause__
    why = f"no fake step could be made ({str(error).splitlines()[0]})"
    if task.device.type == "cuda":
        try:
            log = _recorded(replace(task, device=CPU, guesses=None))
        except (ForwardError, StepError) as other:
            raise replace(error, hint=error.hint or other.hint) from error.__cause__
        return replace(log, in_blocks=False, assumptions=(f"the kernels are those of the CPU: {why}", *log.assumptions))
    real = task.real or rehearse_step(task.tree, task.example, task.step)
    if real.journal is None:
        raise told_of_real_step(error, real.error, real.rehearsal.failure) from error.__cause__
    log = measured_step(task.tree, task.example, task.step, real)
    return replace(log, assumptions=(f"measured in a real step on the CPU: {why}", *log.assumptions))


def _record(task: _Task) -> MemoryLog:
    tree, device, training = task.tree, task.device, task.step.mode == "train"
    outside = Outside(tree, task.step)
    recorded = None if task.rehearsal is None else task.rehearsal.answers
    answers = Answers(recorded, task.real is not None and task.real.journal is not None, task.guesses)
    if task.guesses is not None:
        task.guesses.begin()
    with ExitStack() as stack:
        stack.enter_context(outside.kept())
        exchange = stack.enter_context(exchanging())
        stack.enter_context(deep_stack())
        stack.enter_context(eager())
        stack.enter_context(torch.set_grad_enabled(training))
        mode_key = stack.enter_context(standing_in_for(device, task.capability))
        stack.enter_context(taken_for_tensors())
        tree.modules[0].train(training)
        kernels = StepKernels(device, answers)
        ledger = Ledger("cuda" if device.type == "cuda" else "cpu", task.capability, task.cudnn)
        embeddings = Embeddings(task.example)
        work = Work(ledger)
        watch = kernels.watch = Pass(tree, kernels, [embeddings, ledger, work, *task.listeners])
        tell_of_twins(kernels, ledger)
        if mode_key is not None:
            watch.hold(mode_key)

        of_model: set[int] = set()

        def put(tensor: Tensor) -> Tensor:
            if id(tensor) in outside.alone.ids:
                of_model.add(id(tensor))
                return tensor
            return exchange.put(tensor, kernels.of_model)

        def stand_in(tensor: Tensor) -> Tensor:
            return remade(tensor, kernels.of_model if id(tensor) in of_model else kernels.other)

        away = Away(
            lambda tensor: exchange.put(tensor, kernels.offloaded),
            lambda tensor: exchange.put(tensor, kernels.absent),
            device,
        )
        try:
            swap_tensors(with_loss(tree, task.step), put, put, away)
        except RuntimeError as error:
            raise forward_error(error, watch, ()) from error
        stand_ins = stack.enter_context(outside.alone.exchanged(stand_in))
        outside.put(exchange, kernels.other, outside.alone.ids, stand_ins)
        watch.install()
        size = tree.size()
        books = Books(kernels, ledger, task.step, exchange, list(outside.holdings(stand_ins)))
        try:
            log = books.keep(task.example, embeddings)
        except (NeedsIntegerError, SummaryError):
            raise
        except Exception as error:
            if answers.refused is not None and task.guesses is None:
                raise _NeedsValuesError(answers.refused == OUTSIDE) from error
            raise books.blame(error, "" if task.rehearsal is None else task.rehearsal.failure) from error
        if answers.refused is not None and task.guesses is None:
            raise _NeedsValuesError(answers.refused == OUTSIDE)
        if tree.size() != size:
            raise GrewError
        return replace(log, mult_adds=tuple(work.done.items()), uncounted=tuple(sorted(work.unknown.items())))


def placed(device: torch.device) -> torch.device:
    """A device with its index."""
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device
