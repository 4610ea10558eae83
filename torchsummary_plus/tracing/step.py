"""A model's training or inference steps -> their memory events, on fake tensors; the model as it was."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..errors import SummaryError
from ..memory_records import MemoryLog
from .books import Books, tell_of_twins
from .cuda_guard import capability_of
from .embeddings import Embeddings, NeedsIntegerError
from .exchange import Copies, exchanging
from .fakes import CPU, standing_in_for, taken_for_tensors
from .hints import forward_error
from .inputs import Example
from .ledger import Ledger
from .modules import ModuleTree
from .outside import Outside
from .passes import Listener, Pass, deep_stack
from .questions import Answers
from .rehearsal import Rehearsal, rehearse
from .semantics import StepKernels
from .steps import Step, with_loss
from .trace import GrewError, eager, materialised, unwrapped
from .workspace import AMPERE, Capability
from .world import LOCK, swap_tensors


@dataclass(frozen=True)
class _Task:
    """What to record: a model's steps on an example, on a device, and what a real forward told if there was one."""

    tree: ModuleTree
    example: Example
    step: Step
    device: torch.device
    capability: Capability
    listeners: Sequence[Listener]
    rehearsal: Rehearsal | None = None


class _NeedsValuesError(Exception):
    """An operator asked for what only values tell, and no real forward has told it yet."""


def record_step(
    model: nn.Module,
    example: Example,
    step: Step,
    device: torch.device | None,
    capability: Capability | None = None,
    listeners: Sequence[Listener] = (),
) -> MemoryLog:
    """The memory events of a model's steps on fake tensors. The model is as it was.

    ``capability`` is that of the GPU which is asked about: None for the one that is here, or an A100 without one.

    The first run of an operator may import parts of torch, whose frames keep its tensors alive for a while; then the
    step is recorded once more. So it is with integers for a sized input that reaches an embedding, with a copy of a
    model that takes shape in its first forward, and with what a real forward tells where operators ask for values.
    Raises :class:`ForwardError`, and :class:`StepError` for what fails outside the forward.
    """
    with LOCK:
        tree = ModuleTree(unwrapped(model))
        if any(nn.parameter.is_lazy(tensor) for tensor in tree.tensors()):
            tree = materialised(tree, example)
        place = placed(device or tree.device())
        known = capability or (capability_of(place.index) if place.type == "cuda" else None) or AMPERE
        task = _Task(tree, example, step, place, known, listeners)
        while True:
            try:
                imported = len(sys.modules)
                log = _record(task)
                return log if len(sys.modules) == imported else _record(task)
            except NeedsIntegerError as needed:
                task = replace(task, example=task.example.with_dtype(needed.index, torch.long))
            except GrewError:
                task = replace(task, tree=materialised(task.tree, task.example))
            except _NeedsValuesError:
                task = replace(task, rehearsal=_rehearsed(task))


def _rehearsed(task: _Task) -> Rehearsal:
    """A real forward, on copies of what the model's code reaches beside the model."""
    outside, copies = Outside(task.tree, task.step), Copies(CPU)
    with outside.kept(), exchanging() as exchange:
        outside.put(exchange, copies.alike, {id(tensor) for tensor in task.tree.tensors()})
        return rehearse(task.tree, task.example, task.step.mode == "train", task.step.autocast)


def _record(task: _Task) -> MemoryLog:
    tree, device, training = task.tree, task.device, task.step.mode == "train"
    outside = Outside(tree, task.step)
    answers = Answers(None if task.rehearsal is None else task.rehearsal.answers)
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
        ledger = Ledger("cuda" if device.type == "cuda" else "cpu", task.capability)
        embeddings = Embeddings(task.example)
        watch = kernels.watch = Pass(tree, kernels, [embeddings, ledger, *task.listeners])
        tell_of_twins(kernels, ledger)
        if mode_key is not None:
            watch.hold(mode_key)
        try:
            swap_tensors(
                with_loss(tree, task.step),
                lambda tensor: exchange.put(tensor, kernels.parameter),
                lambda tensor: exchange.put(tensor, kernels.buffer),
            )
        except RuntimeError as error:
            raise forward_error(error, watch, ()) from error
        outside.put(exchange, kernels.other)
        watch.install()
        size = tree.size()
        books = Books(kernels, ledger, task.step, exchange, list(outside.holdings()))
        try:
            log = books.keep(task.example, embeddings)
        except (NeedsIntegerError, SummaryError):
            raise
        except Exception as error:
            if answers.refused and task.rehearsal is None:
                raise _NeedsValuesError from error
            raise books.blame(error, "" if task.rehearsal is None else task.rehearsal.failure) from error
        if answers.refused and task.rehearsal is None:
            raise _NeedsValuesError
        if tree.size() != size:
            raise GrewError
        return log


def placed(device: torch.device) -> torch.device:
    """A device with its index."""
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device
