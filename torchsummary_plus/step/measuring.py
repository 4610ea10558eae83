"""A model's training or inference steps, run for real on its own device.

Their memory events come from torch's profiler, their time by phase and module from the device's own clock.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch import nn

from ..data.errors import ForwardError, InputError, UnsupportedError
from ..data.memory_records import MeasuredTime, MemoryLog, without
from ..data.records import tensors
from ..live import compat
from ..live.copying import Copies
from ..live.fakes import real_input
from ..live.isolation import global_state_kept, gradients, no_collection, one_pass
from ..live.storages import all_stored
from ..live.structures import all_tensors
from ..live.weights import Away, graph_constants, is_complete, offloaded, repack
from ..table.attempts import PassOptions, eager, read, trace
from ..table.environments import set_mode
from ..table.failures import forward_error, step_error
from ..table.forward import Frame, Listener, Pass, failed_frame, module_of
from ..table.inputs import Example
from ..table.modules import ModuleTree, tensors_in
from ..trace.kernels import run_really
from ..trace.values import OUTSIDE
from ..watch.history import AllocatorHistory, free_blocks_taken
from ..watch.profiled import (
    Marks,
    ProfileReader,
    QuietProfile,
    alone,
    changes,
    freed,
    received,
    storages,
    with_history,
    with_unseen_frees,
)
from ..watch.recording import Account
from .compiling import compiled_for_torch
from .runner import Steps
from .step_copy import PriorTensor, Step, StepCopy, Surroundings

WARM_UP, TIMED = 3, 7
"""Steps that run before time is measured, and those of which it is."""


def measure_step(
    model: nn.Module | ModuleTree, example: Example, step: Step, device: torch.device, is_timed: bool = False
) -> tuple[MemoryLog, int | None]:
    """Return the memory events of real steps on copies of the model's tensors. The model is left unchanged.

    On CUDA, also return the most bytes that the caching allocator reserved for them. With ``is_timed``, further steps
    give the log its time.
    Raises :class:`InputError` if the model is on another device, :class:`UnsupportedError` under a profiler, which
    would lose its records to this one, :class:`ForwardError` and :class:`StepError`.
    """
    if compat.profiler_enabled():
        why = "a profiler is already running; call it outside the profiled block"
        raise UnsupportedError(f"measure_memory uses torch's profiler, and {why}")
    with one_pass():
        tree = read(model, example)
        example = _settled(tree, example)
        if not is_complete(tree.modules[: tree.unregistered]):  # The others may be skeletons for functional_call.
            raise InputError("the model has tensors on meta and cannot run; use estimate_memory")
        if tree.device() != device:
            move = f"model.to({str(device)!r})"
            raise InputError(f"the model is on {tree.device()}, not on {device}; move it with {move}")
        before = _reserved(device, afresh=True)
        with free_blocks_taken(device), compiled_for_torch(), copied(tree, step, Copies(device)) as copy:
            log = profiled(copy, example, device)
            after = _reserved(device)
        if is_timed:
            repeated = replace(step, steps=WARM_UP + TIMED)
            with compiled_for_torch(), copied(tree, repeated, Copies(device)) as copy:
                stopwatch = Stopwatch(device)
                steps, args, kwargs = prepared(copy, example, device, stopwatch, [stopwatch])
                steps.run(args, kwargs)
                log = replace(log, measured_time=stopwatch.measured(WARM_UP))
        return log, None if before is None or after is None else after - before


def _reserved(device: torch.device, afresh: bool = False) -> int | None:
    """Return the CUDA allocator's peak of reserved bytes; None on other devices.

    If ``afresh``, first reset it, and free the allocator's cache and cuBLAS's workspaces, so that a step allocates them
    as the first step of a process does.
    """
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    if afresh:
        gc.collect()
        compat.clear_cublas_workspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.max_memory_reserved(device)


@contextmanager
def copied(tree: ModuleTree, step: Step, copies: Copies, draws: bool = True) -> Iterator[StepCopy]:
    """Yield a copy of a model and its step on copies of their tensors, with the model's mode set.

    Its steps draw from the CPU's generator, which is set back, unless a pass runs them: with ``draws`` False.
    """
    surroundings = Surroundings(tree, step)
    with (
        global_state_kept(draws),
        eager(),
        gradients(step.mode == "train"),
        surroundings.copied(copies.alike, copies.alike, Away(copies.alike)) as copy,
    ):
        repack(copy.tree.modules)
        set_mode(copy.tree, step.mode == "train", run_really)
        owned = [*enumerate(tree.modules), *((OUTSIDE, module) for module in surroundings.modules)]
        constants = ((owner, constant) for owner, module in owned for constant in graph_constants(module))
        # Those of scripted modules' graphs; oneDNN's are among the packed weights.
        copy.prior += (PriorTensor(tensor, "parameters", owner) for owner, tensor in constants if not tensor.is_mkldnn)
        copies.finish()
        yield copy


def profiled(copy: StepCopy, example: Example, device: torch.device, collects: bool = True) -> MemoryLog:
    """Run the steps of a copy, and return the memory events from torch's profiler.

    Without ``collects``, Python collects no garbage until the end of the steps; the log says what it would free.
    """
    tree, step = copy.tree, copy.step
    if step.optimizer is not None or step.train_step is not None:
        compat.import_for_optimizers()
    marks = Marks(device)
    steps, args, kwargs = prepared(copy, example, device, marks, [marks])
    steps.make_packed(lambda shape, dtype: torch.empty(tuple(shape), dtype=dtype, device=device))
    packed_bytes = sum(tensor.nbytes for tensor, _ in steps.packed)
    away = [tensor for module in tree.modules for tensor in offloaded(module)]
    besides = [*(held.tensor for held in copy.prior if not held.if_used), *(tensor for tensor, _ in steps.packed)]
    of_packages = [held.tensor for held in copy.prior if held.if_used]
    own = [*tree.tensors(), *away, *tensors_in(steps.loss_modules), *besides]
    known = all_stored([*own, *all_tensors((args, kwargs, steps.targets))])
    if_used = storages(of_packages, device).keys() - storages(known, device)
    on_device = [*known, *of_packages]
    existing = {address: storage.nbytes() for address, storage in storages(on_device, device).items()}
    history = AllocatorHistory(device)
    gc.collect()
    try:
        marks.follow(on_device)
        for tensors in (known, own, away, on_device, besides, of_packages):
            tensors.clear()
        quiet = QuietProfile(device.type, bool(if_used))
        with history, nullcontext() if collects else no_collection(), quiet as done, alone():
            steps.run(args, kwargs)
            if not collects:
                marks.collect()
    except (InputError, UnsupportedError):
        raise
    except Exception as error:
        if steps.doing == "forward" or failed_frame(error) is not None:
            raise forward_error(error, steps.watch.tree) from error
        raise step_error(error, steps.doing, tree, OUTSIDE, "") from error
    changed = changes(done, device.type)
    unused = if_used - {*received(done), *freed(changed)} if if_used else set()
    before = [(at, nbytes, history.blocks.get(at, nbytes)) for at, nbytes in existing.items() if at not in unused]
    events = iter(with_history(changed, history.happened))
    reader = ProfileReader(before)
    reader.read(events)
    missed = _missed(reader, before, history)
    if paths := [tree.paths[index] for index in sorted(marks.in_threads)]:
        names = ", ".join([*paths[:3], *["..."] * (len(paths) > 3)])
        why = "called in threads that the model starts, whose allocations torch's profiler does not record"
        missed += (f"{names}: {why}; the measured peak may be too low",)
    log = reader.log(tuple(tree.paths), steps.assumptions(missed))
    log = with_unseen_frees(log, reader.reused, packed_bytes)
    return log if collects else _with_collected(log, reader.garbage(events))


def prepared(
    copy: StepCopy, example: Example, device: torch.device, account: Any, listeners: Sequence[Listener]
) -> tuple[Steps, Any, Any]:
    """Return a copy's real steps with their targets, and copies of the example's arguments on a device.

    Copies on the same device keep strides and shared storages.
    """
    watch = Pass(copy.tree, run_really, listeners)
    watch.install()
    steps = Steps(watch, device, account, copy)
    alike = Copies(device)

    def make(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return real_input(shape, dtype, device)

    def duplicate(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == device:
            return alike.alike(tensor)
        copy = make(tensor.shape, tensor.dtype) if tensor.is_meta else tensor.detach().to(device, copy=True)
        return copy.requires_grad_(tensor.requires_grad)

    args, kwargs, _ = steps.make_inputs(example, make, duplicate)
    alike.finish()
    return steps, args, kwargs


def _with_collected(log: MemoryLog, garbage: set[int]) -> MemoryLog:
    """Add the log of steps whose reference cycles are collected at once."""
    nbytes = sum(log.storages[number].nbytes for number in garbage)
    if not nbytes:
        return log
    when = "which Python may free at any time; here none were freed during the steps"
    notes = *log.assumptions, f"reference cycles hold {nbytes:,} bytes, {when}"
    return replace(log, others=(*log.others, without(log, garbage)), assumptions=notes)


def _missed(
    reader: ProfileReader, before: Iterable[tuple[int, int, int]], history: AllocatorHistory
) -> tuple[str, ...]:
    """Return a note if the allocator's own peak differs from the profile's."""
    if history.peak_bytes is None:
        return ()
    own = history.peak_bytes + sum(block for _, _, block in before)
    seen = reader.peak_bytes()
    return () if own == seen else (f"the allocator reports a peak of {own:,} bytes, but the profile shows {seen:,}",)


def _settled(tree: ModuleTree, example: Example) -> Example:
    """Return the example with integers for sized inputs without a dtype that reach an embedding.

    A forward that fails decides nothing: the steps say why themselves, and those of the user's own may not call it.
    """
    undecided = [number for number, sized in enumerate(example.sized()) if sized.dtype is None]
    if not undecided:
        return example
    try:
        specs = list(tensors(trace(tree, example, PassOptions("auto")).inputs))
    except (ForwardError, UnsupportedError):  # The latter where every forward adds modules.
        return example
    for number in undecided:
        example = example.with_dtype(number, getattr(torch, specs[number].dtype))
    return example


_SEEN = "torchsummary_plus_module"
"""The entry in an autograd node's metadata that marks it as known."""


class Stopwatch(Account):
    """Notes the time whenever a phase, a module's call or a module's part of the backward begins or ends.

    The backward reaches a module's part at the node that made its output, and leaves it at the node that made its
    input, which is another module's or the caller's.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self._laps: list[tuple[Any, str, int, int]] = []
        """When each lap begins, its phase, its step and its module."""

    def enter(self, phase: str, step: int) -> None:
        """Begin a phase of a step."""
        super().enter(phase, step)
        self._begin_lap(OUTSIDE)

    def stop(self) -> None:
        """End the last lap."""
        self._begin_lap(OUTSIDE)

    def begin(self, frame: Frame) -> None:
        """Begin a module's lap."""
        super().begin(frame)
        if frame.module is not None:
            self._follow((frame.args, frame.kwargs), _outside(frame))
            self._begin_lap(frame.module)

    def end(self, frame: Frame, output: Any) -> None:
        """Return to the lap of the module around."""
        if frame.module is not None:
            self._follow(output, frame.module)
            self._begin_lap(_outside(frame))

    def _follow(self, values: Any, module: int) -> None:
        """Begin a module's lap where the backward reaches the nodes of tensors, unless they are known as another's."""
        for tensor in all_tensors(values):
            node: Any = tensor.grad_fn
            if node is not None and _SEEN not in node.metadata:
                node.metadata[_SEEN] = module
                node.register_prehook(lambda _: self._begin_lap(module))

    def _begin_lap(self, module: int) -> None:
        now: Any = perf_counter()
        if self.device.type == "cuda":
            now = torch.cuda.Event(enable_timing=True)
            now.record(torch.cuda.current_stream(self.device))
        self._laps.append((now, self.phase, self.step, module))

    def measured(self, warm_up: int) -> MeasuredTime:
        """Return the times of the steps after the first ones; what follows a step's last phase counts with it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        steps: dict[int, Counter[tuple[str, int]]] = {}
        before = "forward"
        for (begun, phase, step, module), (ended, *_) in pairwise(self._laps):
            before = before if phase == "end" else phase
            seconds = begun.elapsed_time(ended) / 1e3 if self.device.type == "cuda" else ended - begun
            if phase != "setup" and step >= warm_up:
                steps.setdefault(step, Counter())[before, module] += seconds
        runs = sorted(steps.values(), key=lambda parts: parts.total())
        parts = tuple((*place, seconds) for place, seconds in runs[len(runs) // 2].items())
        return MeasuredTime(tuple(parts.total() for parts in runs), parts)


def _outside(frame: Frame) -> int:
    """Return the module that made a call."""
    module = module_of(frame.outer)
    return OUTSIDE if module is None else module
