"""A model's training or inference steps -> their memory events on fake tensors; the model is restored."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..data.capability import AMPERE, Capability
from ..data.choices import RULE
from ..data.errors import ForwardError, StepError, SummaryError
from ..data.memory_records import IDLE_SCALER, MemoryLog, without_optimizer
from ..live.compat import import_for_optimizers, import_for_steps
from ..live.cuda_as_cpu import cuda_as_cpu
from ..live.cuda_driver import capability_of
from ..live.exports import exporting
from ..live.fakes import CPU, DataDependentError, standing_in_for
from ..live.modes import gradients
from ..live.offloading import Away, is_complete
from ..live.own_random import own_random
from ..live.remaking import remade
from ..ops.scratch.cuda.cudnn.queries import Cudnn
from ..table.attempts import Embeddings, NeedsIntegerError, eager, read, real_inputs_first
from ..table.experts import numbers_of_experts
from ..table.forward import Listener, Pass, deep_stack
from ..table.growing import GrewError, materialised
from ..table.hints import forward_error, has_same_text, is_about_shards, with_real_step
from ..table.inputs import Example
from ..table.mode_setting import set_mode
from ..table.modules import ModuleTree, placed, tensors_in
from ..trace.assumed_routing import CROWDED, Routers
from ..trace.global_state import global_state_kept, one_pass
from ..trace.guesses import Guesses
from ..trace.questions import OUTSIDE, Answers
from ..trace.real_kernels import run_really
from ..trace.valued_kernels import NO_OVERFLOW
from .autograd.dispatch import StepKernels
from .autograd.functions import OTHER_FORMULA, REFLECTORS_BAND
from .autograd.products import NO_ZERO, WITH_ZEROS, ZEROS_BAND
from .compiling import refused_to_torch
from .cpu_log_on_gpu import by_other_kernels, in_wide_bands, with_cublas
from .draws import Draws, with_other_draws
from .if_used import IfUsed
from .operator_limit import OperatorLimit, too_long
from .optimizers import fakes_in_foreach
from .real_steps import ForwardTangents, SparseResults
from .recorded_steps import RecordedSteps, follow_meta_storages
from .rehearsal import TOO_MANY_VALUES
from .runner import with_loss
from .step import Step
from .step_copy import StepCopy
from .streamed_ledger import StreamedLedger
from .surroundings import UNSEEN, Surroundings
from .task import Task
from .uncompiled import CompilerNeededError, compiler_left_out, import_for_hooked
from .work import Work


class _NeedsValuesError(Exception):
    """An operator depends on values, in a forward or ``outside``, that no real pass has supplied yet."""

    def __init__(self, outside: bool) -> None:
        super().__init__()
        self.outside = outside


def record_step(
    model: nn.Module | ModuleTree,
    example: Example,
    step: Step,
    device: torch.device | None,
    capability: Capability | None = None,
    listeners: Sequence[Listener] = (),
    cudnn: Cudnn | None = None,
    draws: Draws | None = None,
) -> MemoryLog:
    """Return the memory events of a model's steps on fake tensors. The model is left unchanged.

    ``capability`` is the compute capability to assume; None means the installed GPU's, or an A100's without one.
    ``cudnn`` supplies the workspaces of convolutions; without it they come from a table. ``draws`` seeds the step, and
    is told whether random numbers decide what runs.

    The step is recorded again after the first run of an operator imported parts of torch, whose frames keep tensors
    alive; with integers for a sized input that reaches an embedding; with a copy of a model whose lazy parameters took
    shape; and with the answers of a real forward or step where operators ask for values. If the step cannot run on
    fakes, the log is that of a real step.
    Raises :class:`ForwardError`, and :class:`StepError` for failures outside the forward.
    """
    with one_pass():
        tree = read(model, example)
        place = placed(device or tree.device())
        known = capability or (capability_of(place.index) if place.type == "cuda" else None) or AMPERE
        task = Task(tree, example, step, place, known, cudnn or Cudnn(how=RULE), listeners, draws=draws or Draws())
        task = replace(task, for_cuda=place.type == "cuda")
        return real_inputs_first(tree, example, lambda inputs: _recorded(replace(task, example=inputs)))


def _recorded(task: Task) -> MemoryLog:
    """Record a task, repeating it with what each attempt found out."""
    import_for_steps()
    first: ForwardError | StepError | None = None
    if task.step.optimizer is not None:
        import_for_hooked()
    asks_outside: bool | None = None
    while True:
        if asks_outside is not None:
            # Not inside the handler, whose error keeps frames alive: those of a checkpoint have hooks.
            task = _rehearsed(task, asks_outside)
            measured, asks_outside = _measured_loop(task), None
            if measured is not None:
                return measured
        try:
            imported = len(sys.modules)
            sparse, tangents = SparseResults(), ForwardTangents()
            watched = replace(task, listeners=(*task.listeners, sparse, tangents))
            log = _record(watched)
            log = log if len(sys.modules) == imported else _record(watched)
            measured = next(
                (_measured_because(task, listener.why) for listener in (sparse, tangents) if listener.seen), None
            )
            if measured is not None:
                return measured
            log = in_wide_bands(log, f"tensors may differ by half: {tangents.why}") if tangents.seen else log
            if any(line.endswith(OTHER_FORMULA) for line in log.assumptions):
                log = in_wide_bands(log, "tensors may differ by a quarter for that reason", REFLECTORS_BAND)
            return _with_draws(task, _with_others(task, log))
        except NeedsIntegerError as needed:
            task = replace(task, example=task.example.with_dtype(needed.index, torch.long))
        except CompilerNeededError:
            import_for_optimizers()
        except GrewError:
            task = _after_growth(task)
        except _NeedsValuesError as needed:
            asks_outside = needed.outside
        except (ForwardError, StepError) as error:
            can_run_really = is_complete(task.tree.modules)
            if task.guesses is None and isinstance(error.__cause__, DataDependentError) and not can_run_really:
                task = _rehearsed(task, False)
                continue
            first = first or error
            guesses = None if task.guesses is None or _fails_alike(task, first) else task.guesses.after_failure()
            if guesses is None:
                return _otherwise(task, first)
            task = replace(task, guesses=guesses)


def _after_growth(task: Task) -> Task:
    """Return the task with the modules that a first forward creates; those of later calls are only allocations."""
    if task.tree.before is None:
        with suppress(ForwardError):
            grown = materialised(task.tree, task.example)
            if grown.late:
                return replace(task, tree=grown)
    return replace(task, tree=task.tree.before or task.tree, grows=True)


def _measured_because(task: Task, why: str) -> MemoryLog | None:
    """Return a real step's log, with the reason for it; None on a GPU, or if it cannot run."""
    if task.device.type != "cpu":
        return None
    real = task.rehearsed_step()
    if real.journal is None:
        return None
    log = task.measured(real)
    return replace(log, assumptions=(f"measured in a real step on the CPU, because {why}", *log.assumptions))


def _measured_loop(task: Task) -> MemoryLog | None:
    """Return a real step's log if a fake one would take minutes, otherwise None.

    For an inference that keeps no output, one step is measured, since all are equal.
    Raises :class:`UnsupportedError` if no real step can run either.
    """
    if task.rehearsal is None or not task.rehearsal.is_loop:
        return None
    if task.step.mode == "eval" and not task.step.keep_output and task.step.train_step is None:
        task = replace(task, step=replace(task.step, steps=1))
    real = task.rehearsed_step()
    if real.journal is None:
        raise too_long(f"{TOO_MANY_VALUES}, and {real.rehearsal.failure}")
    log, why = task.measured(real), f"measured in a real step on the CPU, because {TOO_MANY_VALUES}"
    if task.device.type == "cuda":
        return by_other_kernels(log, task.capability, why)
    return replace(log, assumptions=(why, *log.assumptions))


def _with_others(task: Task, log: MemoryLog) -> MemoryLog:
    """Merge the logs of alternative guesses under which the step completes."""
    tasks = [replace(task, guesses=guess) for guess in ([] if task.guesses is None else task.guesses.alternatives())]
    if task.rehearsal is not None and task.step.mode == "train" and not task.has_real_step:
        fixed = task.rehearsal.without_sizes()
        if fixed.answers.keys() != task.rehearsal.answers.keys():  # A forward's sizes are those of the initial weights.
            tasks += [replace(task, rehearsal=fixed, guesses=Guesses(least=least)) for least in (False, True)]
    if any(line.endswith(NO_ZERO) for line in log.assumptions):
        tasks += [replace(task, zeros="some"), replace(task, zeros="several")]
    others, unrouted = [], []
    for variant, other in _completed(tasks):
        others.append(in_wide_bands(other, WITH_ZEROS, ZEROS_BAND) if variant.zeros == "some" else other)
        if variant.guesses is not None and not variant.guesses.routing and not variant.guesses.least:
            unrouted += [replace(variant, guesses=guess) for guess in variant.guesses.alternatives()]
    others += [other for _, other in _completed(unrouted)]
    return replace(log, others=(*log.others, *others))


def _completed(tasks: Sequence[Task]) -> Iterator[tuple[Task, MemoryLog]]:
    """Yield the tasks whose steps complete, with their logs."""
    for task in tasks:
        with suppress(SummaryError, GrewError, NeedsIntegerError):
            yield task, _record(task)


def _with_draws(task: Task, log: MemoryLog) -> MemoryLog:
    """Add the logs of other random numbers if they may decide what runs."""
    known = task.rehearsal
    redrawn = known is not None and known.drew
    return with_other_draws(log, task.draws, lambda draws: _record(task.redrawn(draws)), redrawn)


def _fails_alike(task: Task, error: ForwardError | StepError) -> bool:
    """Whether a real step on the user's own data failed with the same error."""
    real = task.real.error if task.real is not None and task.example.is_data else None
    return real is not None and has_same_text(real, error)


def _rehearsed(task: Task, outside: bool) -> Task:
    """Add a real pass's answers to the task: a forward's for inference, the steps' for training, as weights change.

    If the steps cannot run, a forward answers, unless something outside it asks.
    """
    step = task.step
    trains = step.mode == "train"
    real = task.rehearsed_step() if trains or outside else task.real
    if task.rehearsal is None and not outside and (real is None or real.journal is None):
        return replace(task, rehearsal=task.rehearsed_forward(), real=real, guesses=None if trains else Guesses())
    real = real or task.rehearsed_step()
    rehearsal = real.rehearsal if real.journal is not None or task.rehearsal is None else task.rehearsal
    rehearsal = replace(rehearsal, failure=real.rehearsal.failure)
    return replace(task, rehearsal=rehearsal, real=real, guesses=Guesses())


def _first_sentence(text: str) -> str:
    """Return a message without the advice that torch adds for authors of operators.

    >>> _first_sentence("there is no Meta kernel registered. You may have run into this message while ...")
    'there is no Meta kernel registered'
    """
    return re.split(r"\.\s+(?=[A-Z])", text.splitlines()[0])[0]


def _otherwise(task: Task, error: ForwardError | StepError) -> MemoryLog:
    """Return the log if the step cannot run on fakes: the CPU's for a GPU, a real step's for the CPU; or raise."""
    if is_about_shards(error.original):
        raise error from error.__cause__
    why = f"the step cannot run on fake tensors ({_first_sentence(str(error))})"
    if task.step.mode == "train":
        import_for_optimizers()
    if task.device.type == "cuda":
        try:
            with cuda_as_cpu():
                log = _recorded(replace(task, device=CPU, guesses=None))
        except (ForwardError, StepError) as other:
            raise replace(error, hint=error.hint or other.hint) from error.__cause__
        return by_other_kernels(log, task.capability, f"estimated with the CPU's kernels: {why}")
    real = task.rehearsed_step()
    if real.journal is None:
        raise with_real_step(error, real.error, real.rehearsal.failure) from error.__cause__
    log = task.measured(real)
    if task.for_cuda:
        log = with_cublas(log, task.capability)
    return replace(log, assumptions=(f"measured in a real step on the CPU: {why}", *log.assumptions))


def _record(task: Task) -> MemoryLog:
    tree, device = task.tree, task.device
    surroundings = Surroundings(tree, task.step)
    recorded = None if task.rehearsal is None else task.rehearsal.answers
    answers = Answers(recorded, task.has_real_step, task.guesses)
    answers.zeros = task.zeros
    if surroundings.has_unseen_graphs:
        answers.assume(OUTSIDE, "autograd graphs from before the step", UNSEEN)
    if task.guesses is not None:
        task.guesses.begin()
    with ExitStack() as stack, closing(answers):
        mode_key = _entered(stack, task)
        kernels = StepKernels(device, answers)
        kernels.keeps_places = tree.is_split() and device.type == "cuda"
        kernels.others_stay = tree.device().type == device.type == "cuda"
        ledger = StreamedLedger("cuda" if device.type == "cuda" else "cpu", task.capability, task.cudnn)
        if task.for_cuda:
            ledger.workspaces.keeps = "cuda"
        spread = {tensor.device.index for tensor in tree.tensors() if tensor.device.type == device.type == "cuda"}
        if len(spread) > 1:  # The copy has them all on one.
            ledger.gpus |= spread
        embeddings = Embeddings(task.example)
        work = Work(ledger, task.step.steps)
        moved = device.type != tree.device().type
        if_used = IfUsed(ledger, moved and device.type == "cuda")
        stack.callback(if_used.settle)
        uses = [if_used] if moved or surroundings.reach.of_packages else []
        follow_meta_storages(kernels, ledger)
        copy = _copied(stack, task, surroundings, kernels, moved)
        tree = copy.tree
        watch = kernels.watch = Pass(tree, kernels, [*uses, embeddings, ledger, work, OperatorLimit(), *task.listeners])
        set_mode(tree, task.step.mode == "train", kernels)
        if task.guesses is not None and task.rehearsal is not None and task.rehearsal.failure and not recorded:
            task.guesses.routers = kernels.routers = _routers(tree, task.guesses.routing)
        if mode_key is not None:
            watch.hold(mode_key)
        watch.install()
        size = tree.size()
        steps = RecordedSteps(kernels, ledger, copy)
        steps.if_used = if_used
        if surroundings.has_idle_scaler and device.type == "cuda":
            steps.notes[IDLE_SCALER] = None
        log = _run_steps(steps, task, answers, embeddings)
        task.draws.note(answers)
        if tree.size() != size and not task.grows:
            raise GrewError
        if any(how is NO_OVERFLOW for _, _, how in answers.notes):
            log = replace(log, others=(without_optimizer(log),))
        log = replace(log, assumptions=(*log.assumptions, *if_used.assumptions()))
        counted = tuple(work.mult_adds.items()), tuple(sorted(work.unknown.items()))
        return replace(log, mult_adds=counted[0], uncounted=counted[1], kernels=tuple(work.kernels))


def _routers(tree: ModuleTree, routing: str) -> Routers | None:
    return Routers(numbers_of_experts(tree), crowded=routing == CROWDED) if routing else None


def _entered(stack: ExitStack, task: Task) -> Any:
    """Enter the contexts of a recording; return the mode key."""
    stack.enter_context(global_state_kept())
    stack.enter_context(own_random())
    stack.enter_context(deep_stack())
    stack.enter_context(eager())
    stack.enter_context(compiler_left_out())
    stack.enter_context(refused_to_torch())
    stack.enter_context(gradients(task.step.mode == "train"))
    stack.enter_context(task.draws.watched())
    stack.enter_context(exporting())
    mode_key = stack.enter_context(standing_in_for(task.device, task.capability))
    stack.enter_context(fakes_in_foreach())
    return mode_key


def _copied(stack: ExitStack, task: Task, surroundings: Surroundings, kernels: StepKernels, moved: bool) -> StepCopy:
    """Return a copy of the model and its step on fakes."""
    registered = {id(tensor) for tensor in tensors_in(with_loss(task.tree, task.step))}

    def own(tensor: Tensor) -> Tensor:
        return kernels.of_model(tensor) if id(tensor) in registered else kernels.attribute(tensor)

    def other(tensor: Tensor) -> Tensor:
        make = kernels.of_module if id(tensor) in surroundings.moving else kernels.other
        return kernels.of_package(tensor) if id(tensor) in surroundings.reach.of_packages else make(tensor)

    away = Away(kernels.offloaded, kernels.absent, task.device)
    moves = task.device.type == "cuda" != task.tree.device().type
    again = partial(remade, change=kernels.again) if moves and not kernels.keeps_places else None
    try:
        return stack.enter_context(surroundings.copied(own, other, away, moved, again))
    except RuntimeError as error:
        raise forward_error(error, Pass(task.tree, run_really, []), ()) from error


def _run_steps(steps: RecordedSteps, task: Task, answers: Answers, embeddings: Embeddings) -> MemoryLog:
    """Run the steps and return their log; raises :class:`_NeedsValuesError`, or the failure as a user should see it."""
    try:
        log = steps.record(task.example, embeddings)
    except (NeedsIntegerError, CompilerNeededError, SummaryError):
        raise
    except Exception as error:
        if answers.refused is not None and task.guesses is None:
            raise _NeedsValuesError(answers.refused == OUTSIDE) from error
        raise steps.blame(error, "" if task.rehearsal is None else task.rehearsal.failure) from error
    if answers.refused is not None and task.guesses is None:
        raise _NeedsValuesError(answers.refused == OUTSIDE)
    return log
