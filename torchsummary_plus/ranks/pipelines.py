"""Schedules of ``torch.distributed.pipelining`` on a single rank, with the shapes of neighbouring stages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..data.errors import InputError, UnsupportedError
from ..live.compat import Place
from ..live.fakes import Fake
from ..step.fake_steps import RecordedSteps
from .compat import pipelining
from .process_group import replaced

STAGES = "torch.distributed.pipelining.stage"


class NeedsStageError(Exception):
    """A stage needs the output shapes of the previous stage, which is on another rank: its number, and the rank's."""


class StageReportedError(Exception):
    """The requested stage has reported the shapes of its output."""


@dataclass
class Neighbours:
    """Output shapes of other ranks' stages, by stage number; ``wanted`` is the stage that a rank is run for."""

    reported: dict[int, Any] = field(default_factory=dict)
    wanted: int | None = None


@contextmanager
def pipelines_alone(neighbours: Neighbours, runs: bool) -> Iterator[None]:
    """Inside the block, give stages the shapes of their neighbours, and open no connections.

    Before torch 2.13, raises :class:`UnsupportedError` if the builder's schedule ``runs``. Gradients have the shapes of
    the outputs that they belong to. Source: torch/distributed/pipelining/stage.py, ``_forward_metadata_inference`` and
    ``_backward_metadata_inference``.
    """
    if STAGES not in sys.modules or pipelining().receive.owner is None:
        if runs:
            raise UnsupportedError(
                "pipeline schedules need torch 2.13 or later; with this release, estimate each stage's module by itself"
            )
        yield
        return

    def receive(stage: Any, source: int) -> Any:
        if source > stage.stage_index:
            gradients = pipelining().gradient_metas(stage._stage_meta.outputs)
            return pipelining().backward_meta(backward_metas=gradients)
        if source not in neighbours.reported:
            raise NeedsStageError(source, stage._resolve_peer_global_rank(source))
        return neighbours.reported[source]

    def send(stage: Any, meta: Any, destination: int) -> None:
        if destination > stage.stage_index:
            neighbours.reported[stage.stage_index] = meta
            if neighbours.wanted == stage.stage_index:
                raise StageReportedError

    def as_of_a_tensor(function: Any) -> Any:
        """Have the check that releases plain tensors once they are sent (since torch 2.15) accept fakes."""
        plain = torch.empty(0, device="cpu")
        return lambda stage, output: function(stage, plain if type(output) is Fake else output)

    stand_ins: dict[Place, Callable[..., Any]] = {
        **{place: lambda _: _decide_mode for place in pipelining().connects},
        pipelining().receive: lambda _: receive,
        pipelining().send: lambda _: send,
        pipelining().releases: as_of_a_tensor,
    }
    with replaced(stand_ins):
        yield


def _decide_mode(_: Any, stages: list[Any], has_backward: bool, p2p_done: bool) -> None:
    """Let a schedule infer shapes if one of this rank's stages was not given any."""
    modes = pipelining().modes
    needed = any(modes.needs_dynamic(stage._user_meta, has_backward) for stage in stages)
    for stage in stages:
        stage._inference_mode = modes.DYNAMIC if needed else modes.STATIC


def is_schedule(built: Any) -> bool:
    """Whether a builder has returned a schedule."""
    return STAGES in sys.modules and isinstance(built, pipelining().schedule)


def stages_of(schedule: Any) -> list[Any]:
    """Return this rank's stages."""
    return list(getattr(schedule, "_stages", None) or [schedule._stage])


class RecordedPipelineSteps(RecordedSteps):
    """The steps of a schedule: the first stage gets the inputs, the last one targets of the first input's shape."""

    schedule: Any = None

    def run_once(self, args: Any, kwargs: Any, in_closure: bool = False) -> Tensor | None:
        """Run one step of the schedule; the model's own without one."""
        if self.schedule is None or self.step.train_step is not None:
            return super().run_once(args, kwargs, in_closure)
        if self.step.loss is not None:
            raise InputError(
                "loss was given, but the builder returned a schedule, which has its own; pass the loss as "
                "the schedule's loss_fn"
            )
        stages = stages_of(self.schedule)
        inputs = args if any(stage.is_first for stage in stages) else ()
        target = {"target": args[0]} if any(stage.is_last for stage in stages) and self.step.mode == "train" else {}
        self.doing = "schedule"
        run = self.schedule.step if self.step.mode == "train" else self.schedule.eval
        run(*inputs, **kwargs, **target)
        if self.step.mode == "eval":
            self.account.enter("end", self.account.step)
            return None
        self.doing = "optimizer"
        if self.optimizer is None:
            self.model.zero_grad()
        else:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return None
