"""A model's training or inference steps -> their memory events on fake tensors, attempt by attempt."""

from __future__ import annotations

import pickle
import random
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from ..data.capability import Capability
from ..data.errors import ForwardError, StepError, SummaryError
from ..data.memory_records import IDLE_SCALER, UNREGISTERED, MemoryLog, highest, without
from ..live.compat import import_for_optimizers, import_for_steps, replaced
from ..live.cuda_calls import cuda_as_cpu
from ..live.fakes import CPU, EXPORTS, DataDependentError, standing_in_for
from ..live.isolation import global_state_kept, gradients, in_pass, one_pass
from ..live.isolation import seed as seed_own
from ..live.structures import all_tensors
from ..live.weights import Away, is_complete, remade
from ..ops.scratch.cuda.cudnn.queries import Cudnn
from ..table.attempts import Embeddings, NeedsIntegerError, eager
from ..table.environments import set_mode
from ..table.experts import numbers_of_experts
from ..table.failures import forward_error, has_same_text, is_about_shards, step_error, with_real_step
from ..table.forward import Listener, Pass, deep_stack, failed_frame
from ..table.inputs import Example
from ..table.modules import ModuleTree, tensors_in
from ..trace.kernels import CROWDED, Routers
from ..trace.values import NO_OVERFLOW, OUTSIDE, AssumedValues, ValueSource
from .autograd.cuda_engine import CudaEngine
from .autograd.dispatch import StepKernels, engine_watched
from .autograd.functions import StepFunctions, failed_node, functions_as_without_mode, loss_on_card
from .compiling import CompilerNeededError, compiled_for_torch, compiler_left_out
from .ledger import Ledger, Work
from .real_steps import (
    OTHER_GRADIENTS,
    OTHER_TANGENTS,
    Misrepresented,
    RealRun,
    by_other_kernels,
    in_wide_bands,
    measured_step,
    run_for_real,
)
from .runner import Step, StepCopy, Steps, Surroundings, with_loss
from .training import fakes_in_foreach

OTHER_SEEDS = 7_919, 104_729
"""Seeds of the other draws recorded where random numbers may decide what runs."""

STUDENT = {2: 12.71, 3: 4.30}
"""Student's t for 95 % on both sides, by the number of draws."""


@dataclass
class Draws:
    """Whether random numbers may determine what a step runs, and the step's seed (None: the caller's state).

    They do if the code ``asks`` for a drawn value, and may if it uses ``foreign`` generators: Python's, NumPy's, those
    with which torch loads data. With ``highest`` the draw of the highest peak stands for the step, as limits need it.
    """

    seed: int | None = None
    highest: bool = False
    asks: bool = False
    foreign: bool = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Seed the generators, which the caller restores, and note whether Python's or NumPy's were used."""
        if self.seed is not None:
            seed_own(self.seed)
            random.seed(self.seed)
            if "numpy.random" in sys.modules:
                sys.modules["numpy.random"].seed(self.seed)
        before = _foreign_states()
        try:
            yield
        finally:
            self.foreign |= _foreign_states() != before


@dataclass(frozen=True)
class Task:
    """What to record: a model's steps on a device; a real step's answers, if it ran, and ``guesses`` for the rest."""

    tree: ModuleTree
    example: Example
    step: Step
    device: torch.device
    capability: Capability
    cudnn: Cudnn
    listeners: Sequence[Listener]
    real_run: RealRun | None = None
    guesses: AssumedValues | None = None
    draws: Draws = field(default_factory=Draws)
    for_cuda: bool = False
    """Whether the device, or the CPU in its place, stands for a GPU that the code may name."""
    failure: ForwardError | StepError | None = None
    """The failure of the first attempt with guesses."""
    misrepresented: set[str] = field(default_factory=set)
    """What fakes misrepresent in the step."""

    def run_for_real(self) -> RealRun:
        """Return the answers of real steps, which run once."""
        if self.real_run is not None:
            return self.real_run
        if self.step.mode == "train":
            import_for_optimizers()
        with cuda_as_cpu(self.for_cuda), global_state_kept(), self.draws.watched():
            return run_for_real(self.tree, self.example, self.step)

    def measured(self, real: RealRun, why: str) -> MemoryLog:
        """Return the log of a real step on the CPU that has run once, with the reason for it."""
        with cuda_as_cpu(self.for_cuda):
            log = measured_step(self.tree, self.example, self.step, real)
        return replace(log, assumptions=(f"measured in a real step on the CPU{why}", *log.assumptions))


class NeedsValuesError(Exception):
    """An operator depends on values that no real step has supplied yet."""


SETBACKS = ForwardError, StepError, NeedsIntegerError, CompilerNeededError, NeedsValuesError
"""Why an attempt gives no log."""


def record(task: Task) -> MemoryLog:
    """Return the memory events of a model's steps on fake tensors; raise :class:`ForwardError` or :class:`StepError`.

    A step that fails is recorded again, as :func:`next_attempt` says; so is one in which the first run of an operator
    imported parts of torch, whose frames keep tensors alive.
    """
    with one_pass():
        import_for_steps()
        while True:
            imported, task = len(sys.modules), replace(task, misrepresented=set())
            try:
                log = record_once(task)
                return _completed(task, log if len(sys.modules) == imported else record_once(task))
            except SETBACKS as error:
                setback = error if isinstance(error, SummaryError) else error.with_traceback(None)
            following = next_attempt(task, setback)
            del setback  # Its frames keep tensors alive: those of a checkpoint have hooks.
            if isinstance(following, MemoryLog):
                return following
            task = following


def next_attempt(task: Task, setback: Exception) -> Task | MemoryLog:
    """Return the task that follows one without a log, or a log. Raises the first failure if all attempts fail.

    After a failure, the last guess is inverted, unless a real step on the user's own data failed alike; then complex
    inputs are tried for a model of complex parameters, and last of all other kernels.
    """
    if isinstance(setback, NeedsIntegerError):  # A sized input reaches an embedding.
        return replace(task, example=task.example.with_dtype(setback.index, torch.long))
    if isinstance(setback, CompilerNeededError):
        import_for_optimizers()
        return task
    if isinstance(setback, NeedsValuesError):
        return replace(task, real_run=task.run_for_real(), guesses=AssumedValues())
    assert isinstance(setback, (ForwardError, StepError))
    task = replace(task, failure=task.failure or setback)
    real = task.real_run.error if task.real_run is not None and task.example.is_data else None
    if task.guesses is not None and not (real and has_same_text(real, task.failure or setback)):
        guesses = task.guesses.after_failure()
        if guesses is not None:
            return replace(task, guesses=guesses)
    inputs = task.example.complex_instead(task.tree)
    return _by_other_kernels(task) if inputs is None else replace(task, example=inputs, real_run=None, guesses=None)


def _completed(task: Task, log: MemoryLog) -> MemoryLog:
    """Return the log with those under other guesses and draws, or a measured one if fakes misrepresent the step."""
    if task.misrepresented and task.device.type == "cpu":
        real = task.run_for_real()
        if real.journal is not None:  # Either is reason enough.
            return task.measured(real, f", because {min(task.misrepresented)}")
    for why in {OTHER_TANGENTS, OTHER_GRADIENTS}.intersection(task.misrepresented):
        log = in_wide_bands(log, f"tensors may differ by half: {why}")
    return _with_other_draws(task, _with_others(task, log))


def _with_others(task: Task, log: MemoryLog) -> MemoryLog:
    """Merge the logs of alternative guesses under which the step completes."""
    tasks = [replace(task, guesses=guess) for guess in ([] if task.guesses is None else task.guesses.alternatives())]
    real = task.real_run
    if real is not None and real.failure and task.step.mode == "train":
        fixed = real.without_sizes()
        if fixed.answers.keys() != real.answers.keys():  # Sizes in later steps depend on changed weights.
            tasks += [
                replace(task, real_run=fixed, guesses=AssumedValues(least=least, routing="")) for least in (False, True)
            ]
    others: list[MemoryLog] = []
    known = len(tasks)
    for number, variant in enumerate(tasks):  # Those without routing add their own alternatives.
        with suppress(SummaryError, NeedsIntegerError):
            others.append(record_once(variant))
            guesses = variant.guesses
            if number < known and guesses is not None and not guesses.routing and not guesses.least:
                tasks += [replace(variant, guesses=guess) for guess in guesses.alternatives()]
    return replace(log, others=(*log.others, *others))


def _by_other_kernels(task: Task) -> MemoryLog:
    """On the CPU's kernels for a GPU, and in a real step for the CPU; raises the first failure if that fails too."""
    error = task.failure
    assert error is not None
    if is_about_shards(error.original):
        raise error from error.__cause__
    first, *_ = re.split(r"\.\s+(?=[A-Z])", str(error).splitlines()[0])  # torch adds advice for authors of operators.
    why = f"the step cannot run on fake tensors ({first})"
    if task.step.mode == "train":
        import_for_optimizers()
    if task.device.type == "cuda":
        try:
            with cuda_as_cpu():
                log = record(replace(task, device=CPU, guesses=None, failure=None))
        except (ForwardError, StepError) as other:
            raise replace(error, hint=error.hint or other.hint) from error.__cause__
        log = replace(log, assumptions=(f"estimated with the CPU's kernels: {why}", *log.assumptions))
        return by_other_kernels(log, task.capability)
    real = task.run_for_real()
    if real.journal is None:
        raise with_real_step(error, real.error, real.failure) from error.__cause__
    return task.measured(real, f": {why}")


def record_once(task: Task) -> MemoryLog:
    """Record the steps once. Raises one of :data:`SETBACKS`."""
    surroundings, guesses = Surroundings(task.tree, task.step), task.guesses
    answers = ValueSource(None if task.real_run is None else task.real_run.answers, guesses)
    if guesses is not None:
        guesses.begin()
    with (
        global_state_kept(),
        deep_stack(),
        eager(),
        compiler_left_out(),
        compiled_for_torch(refuses=True),
        gradients(task.step.mode == "train"),
        task.draws.watched(),
        replaced(EXPORTS),
        standing_in_for(task.device, task.capability) as mode_key,
        fakes_in_foreach(),
        ExitStack() as stack,
        closing(answers),
    ):
        embeddings = Embeddings(task.example)
        steps, work = _prepared(stack, task, surroundings, answers, embeddings, mode_key)
        size, log = steps.tree.size(), None
        try:
            with steps.recording(task.example, embeddings) as (args, kwargs):
                for _ in steps.each():
                    steps.run_once(args, kwargs)
            log = steps.log
        except (NeedsIntegerError, CompilerNeededError, SummaryError):
            raise
        except Exception as error:
            has_no_values = isinstance(error, DataDependentError) and not is_complete(task.tree.modules)
            if guesses is not None or (not answers.refused and not has_no_values):
                raise steps.blame(error, "" if task.real_run is None else task.real_run.failure) from error
        if log is None or (answers.refused and guesses is None):
            raise NeedsValuesError
        task.draws.asks |= answers.drew
        task.draws.foreign |= answers.loaded
        if steps.tree.size() != size:
            log = replace(log, assumptions=(*log.assumptions, UNREGISTERED))
        if any(how is NO_OVERFLOW for _, _, how in answers.notes):
            moments = log.moments
            stepped = {n for moment, n, nbytes in log.events if nbytes and moments[moment].phase == "optimizer"}
            log = replace(log, others=(without(log, stepped),))  # As if all of the optimizer's steps were skipped.
        return replace(
            log,
            mult_adds=tuple(work.mult_adds.items()),
            uncounted=tuple(sorted(work.unknown.items())),
            kernels=tuple(work.kernels),
        )


def _prepared(
    stack: ExitStack,
    task: Task,
    surroundings: Surroundings,
    answers: ValueSource,
    embeddings: Embeddings,
    mode_key: Any,
) -> tuple[RecordedSteps, Work]:
    """Return the steps, ready to run on fakes, and what counts their work."""
    guesses, on_cuda, original = task.guesses, task.device.type == "cuda", task.tree
    kernels = StepKernels(task.device, answers)
    kernels.keeps_places = on_cuda and {"cpu", "cuda"} <= {tensor.device.type for tensor in original.tensors()}
    kernels.others_stay = original.device().type == "cuda" and on_cuda
    ledger = Ledger("cuda" if on_cuda else "cpu", task.capability, task.cudnn)
    if task.for_cuda:
        ledger.workspaces.keeps = "cuda"
    spread = {tensor.device.index for tensor in original.tensors() if tensor.device.type == "cuda" and on_cuda}
    if len(spread) > 1:  # The copy has them all on one.
        ledger.gpus |= spread
    moved = task.device.type != original.device().type
    ledger.used_bytes = 0 if moved and on_cuda else None
    work = Work(ledger, task.step.steps)
    ledger.follow(kernels)
    registered = {id(tensor) for tensor in tensors_in(with_loss(original, task.step))}

    def own(tensor: Tensor) -> Tensor:
        is_parameter = isinstance(tensor, nn.Parameter)
        return kernels.parameter(tensor) if is_parameter else kernels.buffer(tensor, id(tensor) in registered)

    def other(tensor: Tensor) -> Tensor:
        if id(tensor) in surroundings.reachable.of_packages:
            return kernels.of_package(tensor)
        return kernels.other(tensor, id(tensor) in surroundings.moving)

    away = Away(kernels.offloaded, task.device)
    again = partial(remade, change=kernels.again) if moved and on_cuda and not kernels.keeps_places else None
    try:
        copy = stack.enter_context(surroundings.copied(own, other, away, moved, again))
    except RuntimeError as error:
        raise forward_error(error, original) from error
    tree = copy.tree
    listeners = [embeddings, ledger, work, Misrepresented(task.misrepresented), *task.listeners]
    watch = kernels.watch = Pass(tree, kernels, listeners, mode_key)
    set_mode(tree, task.step.mode == "train", kernels)
    real_run = task.real_run
    if guesses is not None and guesses.routing and real_run and real_run.failure and not real_run.answers:
        crowded = guesses.routing == CROWDED
        guesses.routers = kernels.routers = Routers(numbers_of_experts(tree), crowded=crowded)
    watch.install()
    steps = RecordedSteps(kernels, ledger, copy)
    if surroundings.has_idle_scaler and on_cuda:
        steps.notes[IDLE_SCALER] = None
    return steps, work


def _with_other_draws(task: Task, log: MemoryLog) -> MemoryLog:
    """Return a log with those of other draws, if any of them allocates other bytes.

    If the draws ask for the highest, its events replace the log's own. All allocations in order are compared, not
    peaks: draws that route tokens differently may still have equal peaks; the next may not.
    """
    draws, redraws = task.draws, task.real_run is not None and task.real_run.drew
    if not (draws.asks or draws.foreign or redraws):
        return log
    others: list[MemoryLog] = []
    for seed in OTHER_SEEDS:
        other = replace(task, draws=Draws(seed))
        if redraws:
            other = replace(other, real_run=replace(other, real_run=None).run_for_real())
        with suppress(SummaryError, NeedsIntegerError):
            others.append(record_once(other))
    sizes, *other_sizes = ([nbytes for _, _, nbytes in each.events] for each in (log, *others))
    if all(other == sizes for other in other_sizes):
        note = f"random numbers may decide what runs: {len(others) + 1} draws allocated the same memory"
        return replace(log, assumptions=(*log.assumptions, note)) if draws.asks else log
    if draws.highest:
        note = f"random numbers decide what runs: the highest peak of {len(others) + 1} draws; others may exceed it"
        most = max((log, *others), key=lambda each: highest(each.events)[0])
        return replace(most, others=log.others, assumptions=(*log.assumptions, note))
    note = f"random numbers decide what runs: the range is where 95 % of draws lie, judged by {len(others) + 1} of them"
    # Another of n normal draws lies within t * deviation * sqrt(1 + 1/n) of their mean.
    peaks = [highest(each.events)[0] for each in (*others, log)]
    reach = STUDENT[len(peaks)] * stdev(peaks) * sqrt(1 + 1 / len(peaks))
    spread = max(0, int(min(peaks) - mean(peaks) + reach)), max(0, int(mean(peaks) + reach - max(peaks)))
    return replace(log, others=(*log.others, *others), assumptions=(*log.assumptions, note), spread=spread)


def _foreign_states() -> bytes:
    """Return the states of the generators whose draws are not operators."""
    numpy_random = sys.modules.get("numpy.random")
    return pickle.dumps((random.getstate(), None if numpy_random is None else numpy_random.get_state()))


@contextmanager
def resizing_watched(ledger: Ledger) -> Iterator[None]:
    """Record resized storages again, since no operator visible to a mode resizes them."""
    kind: Any = torch.UntypedStorage
    resize = kind.resize_

    def watched(storage: torch.UntypedStorage, nbytes: int) -> Any:
        for target in {id(target): target for target in (storage, ledger.kernels.meta_storages.of(storage))}.values():
            resize(target, nbytes)
        ledger.resized(storage)
        return storage

    kind.resize_ = in_pass(watched, resize)
    try:
        yield
    finally:
        del kind.resize_


class RecordedSteps(Steps):
    """Runs a model's steps under a ledger. The model is a copy on fakes."""

    engine: CudaEngine
    log: MemoryLog
    """What was recorded, once it is."""

    def __init__(self, kernels: StepKernels, ledger: Ledger, copy: StepCopy) -> None:
        super().__init__(kernels.watch, kernels.device, ledger, copy)
        self.kernels = kernels
        self.ledger = ledger
        self.answers = kernels.answers

    @contextmanager
    def recording(self, example: Example, embeddings: Embeddings) -> Iterator[tuple[Any, Any]]:
        """Yield the arguments of the steps, which run inside; ``log`` then ends between two steps, as a loop would."""
        kernels, ledger, watch = self.kernels, self.ledger, self.watch
        args, kwargs, new_inputs = self.make_inputs(example, kernels.input_of, kernels.of_input)
        embeddings.watch(new_inputs)
        self.make_packed(kernels.input_of)
        kernels.finish()
        self._classify_initial_tensors(args, kwargs)
        with ExitStack() as stack:
            stack.enter_context(self._states_named())
            stack.enter_context(resizing_watched(ledger))
            self.copy.give_hooks()
            engine = self.engine = kernels.engine = CudaEngine(watch)
            stack.callback(engine.release)
            functions = StepFunctions(watch, engine, self.device)
            watch.state.on_cuda = functions.on_cuda
            if functions.on_cuda:
                stack.enter_context(loss_on_card())
            else:
                functions.keep_number = ledger.record_number
            stack.enter_context(engine_watched(functions, ledger.workspaces))
            stack.enter_context(self._backwards_named())
            stack.enter_context(watch)
            parameters = [tensor for reference, _ in self.parameters.values() if (tensor := reference()) is not None]
            inputs = all_tensors((args, kwargs, self.targets))
            for tensor in (*self.copy.replacements, *parameters, *self.tree.tensors(), *inputs):
                engine.add_leaf(tensor)
            self.copy.finish()
            del parameters, inputs, tensor
            stack.enter_context(functions)
            stack.enter_context(
                functions_as_without_mode(functions, lambda tensor, name: ledger.notice(watch.frame, tensor, name))
            )
            yield args, kwargs
            paths = tuple(self.tree.paths)
            self.log = ledger.log(paths, self.assumptions(kernels.answers.assumptions(paths)))
            self.output = None

    def each(self) -> Iterator[None]:
        """Yield at the beginning of each step; after it, the engine drops what nobody refers to."""
        for _ in super().each():
            yield
            self.engine.drop_unreferenced()

    def blame(self, error: Exception, values: str) -> SummaryError:
        """Return the error as the user should read it: which part of the step failed, where, and why.

        ``values`` says why no real step could supply values, if so.
        """
        if self.doing == "forward" or failed_frame(error) is not None:
            return forward_error(error, self.watch.tree, (), values)
        names_phase = self.doing == "train_step" and self.ledger.phase in ("backward", "optimizer")
        phase = self.ledger.phase if names_phase else self.doing
        node = failed_node(error)
        owner = OUTSIDE if node is None else self.ledger.node_modules.of(node)
        return step_error(error, phase, self.tree, owner, values)
