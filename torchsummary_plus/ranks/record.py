"""The steps of one rank of many -> their memory events on fake tensors, using the user's own wrapping code."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ..data.capability import Capability
from ..data.errors import InputError, StepError, SummaryError, UnsupportedError
from ..data.memory_records import MemoryLog
from ..data.units import describe
from ..live.exchange import exchanging
from ..live.fakes import standing_in_for, taken_for_tensors
from ..live.inputs import Example
from ..live.modules import ModuleTree
from ..step.bookkeeping import Books, tell_of_twins
from ..step.runner import Step
from ..trace.at_one import Guesses
from ..trace.embeddings import Embeddings, NeedsIntegerError
from ..trace.passes import Listener, deep_stack
from ..trace.questions import Answers
from ..trace.run import eager
from ..trace.swap import LOCK, restored
from . import gloo  # noqa: F401 - the module registers its rules
from .cuda import cuda_alone
from .ddp import ddp_alone
from .fsdp import fsdp_alone
from .kernels import RankKernels
from .kinds import RankLedger
from .passes import RankPass
from .process_group import Rank, in_world
from .stand_ins import forget_stand_ins, parameters_as_fakes, shapes_without_modes

Build = Callable[[], Any]
Recorded = tuple[ModuleTree, MemoryLog]


@dataclass(frozen=True)
class Ranked:
    """What to record: the steps of a builder's model, as one rank on one device."""

    build: Build
    rank: Rank
    step: Step
    device: torch.device
    capability: Capability

    def record(self, example: Example, listeners: Sequence[Listener] = ()) -> Recorded:
        """Return the modules of the rank's model, and its steps' memory events on fake tensors.

        Raises :class:`ForwardError`, :class:`StepError`, and :class:`InputError` if the builder returns no module.
        """
        with LOCK:
            while True:
                try:
                    imported = len(sys.modules)
                    found = self._record(example, listeners)
                    return found if len(sys.modules) == imported else self._record(example, listeners)
                except NeedsIntegerError as needed:
                    example = example.with_dtype(needed.index, torch.long)

    def _record(self, example: Example, listeners: Sequence[Listener]) -> Recorded:
        guesses = Guesses()
        guesses.begin()
        answers = Answers(None, False, guesses)
        with ExitStack() as stack:
            stack.enter_context(restored([]))
            stack.callback(forget_stand_ins)
            exchange = stack.enter_context(exchanging())
            stack.enter_context(deep_stack())
            stack.enter_context(eager())
            stack.enter_context(torch.enable_grad())
            mode_key = stack.enter_context(standing_in_for(self.device, self.capability))
            stack.enter_context(taken_for_tensors())
            stack.enter_context(in_world(self.rank))
            stack.enter_context(shapes_without_modes())
            kernels = RankKernels(self.device, answers)
            ledger = RankLedger("cuda" if self.device.type == "cuda" else "cpu", self.capability)
            if self.device.type == "cuda":
                cards = min(self.rank.local_size, self.rank.world_size)
                streams = stack.enter_context(cuda_alone(self.device, cards))
                ledger.current_stream = lambda: streams.current
            making = partial(kernels.made_as, ledger=ledger)
            stack.enter_context(ddp_alone(making))
            stack.enter_context(fsdp_alone(making, ledger.hold))
            model = self._built(kernels, ledger, mode_key)
            tree = ModuleTree(model)
            model.train(self.step.mode == "train")
            stack.enter_context(torch.set_grad_enabled(self.step.mode == "train"))
            embeddings = Embeddings(example)
            watch = kernels.watch = RankPass(tree, kernels, [embeddings, ledger, *listeners])
            if mode_key is not None:
                watch.hold(mode_key)
            watch.install()
            books = Books(kernels, ledger, self.step, exchange, [])
            try:
                log = books.keep(example, embeddings)
                return tree, replace(log, communicators=len(kernels.groups))
            except (NeedsIntegerError, SummaryError):
                raise
            except Exception as error:
                if _NO_ACCELERATOR in str(error):
                    raise UnsupportedError(_DTENSORS_ON_CUDA) from error
                raise books.blame(error, "") from error

    def _built(self, kernels: RankKernels, ledger: RankLedger, mode_key: Any) -> nn.Module:
        """Return the builder's model, made of fakes; everything live then is booked as existing from the start."""
        watch = kernels.watch = RankPass(ModuleTree(nn.Module()), kernels, [ledger])
        if mode_key is not None:
            watch.hold(mode_key)
        tell_of_twins(kernels, ledger)
        try:
            kernels.building = True
            with parameters_as_fakes(kernels), watch:
                model = self.build()
        except SummaryError:
            raise
        except Exception as error:
            raise StepError("builder", "", f"{type(error).__name__}: {error}") from error
        if not isinstance(model, nn.Module):
            raise InputError(f"the builder returned {describe(model)}; accepted: an instance of torch.nn.Module")
        _check_covered(model)
        kernels.building = False
        gc.collect()
        ledger.begun()
        return model


_NO_ACCELERATOR = "Cannot access accelerator device"
_DTENSORS_ON_CUDA = (
    "a CPU build of torch cannot estimate DTensor gradients (tensor parallelism) on CUDA; create the mesh with "
    "init_device_mesh('cpu', ...) and omit gpu=: the tensors are the same, the scratch memory is the CPU's"
)
"""The autograd engine asks for the stream of a DTensor's device, which only a CUDA build can answer."""

_NOT_COVERED = {"FullyShardedDataParallel": "fully_shard", "DeepSpeedEngine": "fully_shard"}
"""Wrappers whose memory has not been confirmed by real processes, and what to use instead."""


def _check_covered(model: nn.Module) -> None:
    """Raise :class:`UnsupportedError` for a model in an unsupported wrapper."""
    for module in model.modules():
        cure = _NOT_COVERED.get(type(module).__name__)
        if cure is not None:
            raise UnsupportedError(f"{type(module).__name__} is not supported yet; use {cure} instead")
