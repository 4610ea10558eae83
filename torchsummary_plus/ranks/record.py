"""Record the steps of one rank of many on fake tensors, using the user's own wrapping code."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ..data.capability import Capability
from ..data.errors import InputError, StepError, SummaryError, UnsupportedError
from ..data.memory_records import COMPILED, HELD_FOR_GATHERS, MemoryLog
from ..data.units import describe, mebibytes
from ..live.compat import import_for_steps, replaced
from ..live.cuda_calls import NumberedGpus
from ..live.fakes import EXPORTS, standing_in_for
from ..live.isolation import global_state_kept, gradients, one_pass
from ..live.weights import all_stored
from ..step.autograd.cuda_engine import CudaEngine
from ..step.compiling import has_compiled
from ..step.deep_steps import FEWEST, Cut, NotRepeatingError, grown, takes_all_layers_alike
from ..step.fake_steps import resizing_watched
from ..step.runner import Step, StepCopy
from ..step.training import fakes_in_foreach, optimizer_maker
from ..table.attempts import Embeddings, NeedsIntegerError, eager
from ..table.environments import set_mode
from ..table.experts import numbers_of_experts
from ..table.forward import Listener, deep_stack
from ..table.inputs import Example
from ..table.modules import ModuleTree
from ..trace.kernels import Routers
from ..trace.values import AssumedValues, ValueSource
from . import compat
from .kernels import RankKernels, RankPass
from .process_group import (
    Rank,
    as_rank,
    cuda_alone,
    devices_asked,
    in_world,
    objects_sent,
    parameters_as_fakes,
)
from .wrappers import (
    FlatParameters,
    NeedsStageError,
    Neighbours,
    RankLedger,
    RecordedPipelineSteps,
    Shards,
    StageReportedError,
    ddp_alone,
    fsdp_alone,
    is_schedule,
    limits_gathers,
    pipelines_alone,
    shards_of,
    stages_of,
)

Build = Callable[[], Any]
Recorded = tuple[ModuleTree, MemoryLog]


@dataclass(frozen=True)
class Ranked:
    """What to record: the steps of a builder's model, on one rank and one device.

    Ranks share what recording one has shown about the others: shapes of stages by batch size.
    """

    build: Build
    rank: Rank
    step: Step
    device: torch.device
    capability: Capability
    neighbours: dict[int | None, Neighbours] = field(default_factory=dict)

    def of_rank(self, number: int) -> Ranked:
        """Return the same for another rank, which reuses what this one found out."""
        return replace(self, rank=as_rank(self.rank.world_size, number))

    def record(self, example: Example, listeners: Sequence[Listener] = ()) -> Recorded:
        """Return the modules of the rank's model, and its steps' memory events on fake tensors.

        Raises :class:`ForwardError`, :class:`StepError`, and :class:`InputError` if the builder returns no module.
        """
        with one_pass():
            import_for_steps(compiler=True)
            neighbours = self.neighbours.setdefault(example.batch_size, Neighbours())
            while True:
                try:
                    return self._deep(example, listeners, neighbours)
                except NeedsIntegerError as needed:
                    example = example.with_dtype(needed.index, torch.long)
                except NeedsStageError as needed:
                    self._ask(needed, example, neighbours)

    def _ask(self, needed: NeedsStageError, example: Example, neighbours: Neighbours) -> None:
        """Run the rank of a stage, and of the stages it needs itself, until the stage has reported its output."""
        stage, rank = needed.args
        other = replace(self, rank=replace(self.rank, rank=rank))
        while stage not in neighbours.reported:
            outer, neighbours.wanted = neighbours.wanted, stage
            try:
                other._record(example, (), Cut(None), neighbours)
                raise UnsupportedError(f"rank {rank} does not report the output of stage {stage}")
            except StageReportedError:
                return
            except NeedsStageError as earlier:
                other._ask(earlier, example, neighbours)
            finally:
                neighbours.wanted = outer

    def _deep(self, example: Example, listeners: Sequence[Listener], neighbours: Neighbours) -> Recorded:
        """Return the steps, extrapolated from those of a few layers if the model has many equal ones.

        An optimizer inside the user's own step belongs to all layers; such steps are recorded in full.
        """
        if not takes_all_layers_alike(self.step):
            return self._settled(example, listeners, Cut(None), neighbours)
        cuts = [Cut(FEWEST + further) for further in range(3)]
        tree, log = self._settled(example, listeners, cuts[0], neighbours)
        whole = cuts[0].whole
        if whole is None:
            return tree, log
        logs = [log, *(self._settled(example, listeners, cut, neighbours)[1] for cut in cuts[1:])]
        with suppress(NotRepeatingError):
            return tree, grown(logs, [cut.left for cut in cuts], cuts[0].paths, whole)
        return self._settled(example, listeners, Cut(None), neighbours)

    def _settled(self, example: Example, listeners: Sequence[Listener], cut: Cut, neighbours: Neighbours) -> Recorded:
        """Record the steps, again if recording imported modules, whose frames keep tensors alive."""
        for _ in range(3):
            imported = len(sys.modules)
            recorded = self._record(example, listeners, cut, neighbours)
            if len(sys.modules) == imported:
                break
        return recorded

    def _record(self, example: Example, listeners: Sequence[Listener], cut: Cut, neighbours: Neighbours) -> Recorded:
        answers = ValueSource(None, AssumedValues())
        device = self.rank.device(self.device.type)
        with ExitStack() as stack:
            stack.enter_context(global_state_kept())
            stack.callback(compat.forget_stand_ins)
            stack.enter_context(deep_stack())
            stack.enter_context(eager())
            stack.enter_context(gradients(True))
            stack.enter_context(replaced(EXPORTS))
            mode_key = stack.enter_context(standing_in_for(device, self.capability))
            stack.enter_context(fakes_in_foreach())
            stack.enter_context(in_world(self.rank))
            ledger = RankLedger("cuda" if self.device.type == "cuda" else "cpu", self.capability)
            kernels = RankKernels(device, answers, ledger)
            stack.enter_context(objects_sent(kernels))
            if self.device.type == "cuda":
                stack.enter_context(cuda_alone(device, self.rank.on_machine))
                stack.enter_context(devices_asked())
            flat = FlatParameters()
            stack.enter_context(ddp_alone(kernels))
            stack.enter_context(fsdp_alone(kernels))
            stack.enter_context(flat.alone(kernels))
            model, schedule, shards = self._built(kernels, ledger, mode_key, cut, flat)
            loss = getattr(schedule, "_loss_fn", None)
            is_compiled = has_compiled([model, loss, self.build, self.step.train_step])
            stack.enter_context(pipelines_alone(neighbours, schedule is not None))
            tree = ModuleTree(model)
            kernels.device = _place_of(tree, device)
            kernels.routers = Routers(numbers_of_experts(tree), self.rank.world_size)
            besides = _note_besides(ledger, model) if kernels.built_on_meta else ()
            set_mode(tree, self.step.mode == "train", kernels)
            stack.enter_context(torch.set_grad_enabled(self.step.mode == "train"))
            embeddings = Embeddings(example)
            watch = kernels.watch = RankPass(tree, kernels, [embeddings, ledger, *listeners], mode_key)
            watch.install()
            step = replace(self.step, optimizer=optimizer_maker(self.step.optimizer))
            steps = RecordedPipelineSteps(kernels, ledger, StepCopy(copy(tree), step))
            steps.schedule = schedule
            try:
                with steps.recording(example, embeddings) as (args, kwargs):
                    for _ in steps.each():
                        steps.run_once(args, kwargs)
                notes = (*besides, *steps.log.assumptions, *((COMPILED,) if is_compiled else ()))
                return tree, replace(steps.log, communicators=len(kernels.groups), shards=shards, assumptions=notes)
            except (NeedsIntegerError, NeedsStageError, StageReportedError, SummaryError):
                raise
            except Exception as error:
                raise steps.blame(error, "") from error

    def _built(
        self, kernels: RankKernels, ledger: RankLedger, mode_key: Any, cut: Cut, flat: FlatParameters
    ) -> tuple[nn.Module, Any, Shards]:
        """Return the model, built of fakes, its schedule if any, and its shards; all exist at the start of the log."""
        watch = kernels.watch = RankPass(ModuleTree(nn.Module()), kernels, [ledger], mode_key)
        ledger.follow(kernels)
        kernels.engine = CudaEngine(watch)
        collections = _collections()
        try:
            kernels.building = True
            numbered = NumberedGpus() if mode_key is not None else nullcontext()
            with parameters_as_fakes(kernels), resizing_watched(ledger), watch, numbered:
                built = self.build()
        except SummaryError:
            raise
        except Exception as error:
            frames = traceback.walk_tb(error.__traceback__)
            if any(str(frame.f_globals.get("__name__")).partition(".")[0] == "deepspeed" for frame, _ in frames):
                raise UnsupportedError(_NO_DEEPSPEED) from error
            raise StepError("builder", "", f"{type(error).__name__}: {error}") from error
        schedule, model = (built, None) if is_schedule(built) else (None, built)
        if schedule is not None:
            for stage in (stages := stages_of(schedule)):  # "cuda:0" is on each machine's first rank alone.
                stage.device = _place_of(ModuleTree(stage.submod), torch.device(stage.device))
            model = stages[0].submod if len(stages) == 1 else nn.ModuleList(stage.submod for stage in stages)
        del built
        if not isinstance(model, nn.Module):
            raise InputError(
                f"the builder returned {describe(model)}; accepted: an instance of torch.nn.Module, or a schedule of "
                "torch.distributed.pipelining"
            )
        if any(kind.__name__ == "DeepSpeedEngine" for module in model.modules() for kind in type(module).__mro__):
            raise UnsupportedError(_NO_DEEPSPEED)
        if limits_gathers(model):
            ledger.held = HELD_FOR_GATHERS
        kernels.building = False
        shards = shards_of(model)
        cut.make(model)
        flat.release(model.modules())
        gc.collect(0 if collections == _collections() else 2)
        ledger.begun()
        return model, schedule, shards


def _place_of(tree: ModuleTree, device: torch.device) -> torch.device:
    """Return the GPU on which a builder placed its model, or ``device`` if that is of another kind."""
    own = tree.device()
    return own if (own.type, device.type) == ("cuda", "cuda") and own.index is not None else device


def _collections() -> int:
    """Return the number of garbage collections so far; while it is unchanged, all new objects are in generation 0."""
    return sum(int(generation["collections"]) for generation in gc.get_stats())


def _note_besides(ledger: RankLedger, model: nn.Module) -> tuple[str, ...]:
    """Return the note on tensors that a builder on meta holds besides the model's parameters and buffers."""
    nbytes = ledger.bytes_besides(all_stored((*model.parameters(), *model.buffers())))
    note = (
        f"the builder's model has {mebibytes(nbytes)} MB of tensors that are neither parameters nor buffers, counted "
        "on the device even if they are on meta, where to_empty() leaves them: register them as buffers"
    )
    return (note,) if nbytes else ()


_NO_DEEPSPEED = (
    "DeepSpeed's engine is not supported; estimate torch's equivalent. ZeRO 1: DistributedDataParallel with "
    "ZeroRedundancyOptimizer; ZeRO 2: fully_shard(..., reshard_after_forward=False); ZeRO 3: fully_shard(...); "
    "offload: fully_shard(..., offload_policy=CPUOffloadPolicy())"
)
"""Its engine does not run on fakes."""
