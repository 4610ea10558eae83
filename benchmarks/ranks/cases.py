"""Distributed training programs on small models, run in real processes and predicted for each rank.

A case is a builder and a training step, as in a script; the step creates its optimizer on its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.ranks import steps
from benchmarks.ranks import wraps as w
from benchmarks.ranks.models import MODELS, Part
from benchmarks.ranks.parallel import ByHeads, Gathered, Ring, by_one_hot
from benchmarks.ranks.wraps import checkpointed, ddp, fsdp, fsdp1, unwrapped, zero

BATCH = 4


@dataclass(frozen=True)
class Case:
    """A model, given by name, how it is wrapped and trained, and the world sizes in which it may run."""

    name: str
    model: str
    wrap: w.Wrap
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW
    accumulate: int = 1
    clip: bool = False
    worlds: tuple[int, ...] = (2, 4)
    loop: Callable[..., None] | None = None
    """The step, if it is not the default one."""
    objects: dict[str, Any] = field(default_factory=dict)
    """What the loop keeps: its optimizer."""

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        model: nn.Module = self.wrap(MODELS[self.model].make())
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.objects["optimizer"] = self.optimizer(trained)
        return model

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the inputs of a step, and its targets."""
        return MODELS[self.model].inputs(BATCH)

    def train(self, model: Any, inputs: Tensor, targets: Tensor, mark: steps.Mark = lambda _: None) -> None:
        """Run one step: the micro-batches, then the optimizer."""
        if self.loop is not None:
            self.loop(model, inputs, targets, self.objects, mark)
        else:
            for number in range(self.accumulate):
                with _alone(model) if number < self.accumulate - 1 else nullcontext():
                    steps.differentiated(mark, partial(steps.loss_of, model, inputs, targets))
            mark("optimizer")
            if self.clip:
                clips = partial(nn.utils.clip_grad_norm_, model.parameters())
                getattr(model, "clip_grad_norm_", clips)(1.0)
            steps.updated(self.objects)
        mark("end")


@contextmanager
def _alone(model: Any) -> Iterator[None]:
    """Keep the gradients of a backward from being reduced across ranks."""
    if hasattr(model, "no_sync"):
        with model.no_sync():
            yield
        return
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


@dataclass(frozen=True)
class PipelineCase(Case):
    """Build a Llama with one layer per stage, in a schedule given by its name in ``torch.distributed.pipelining``."""

    schedule: str = "Schedule1F1B"
    stages_each: int = 1
    is_sharded: bool = False
    """Whether half of the ranks are stages, each sharded over two."""

    def build(self) -> nn.Module:
        from torch import distributed as dist
        from torch.distributed import pipelining

        torch.manual_seed(0)
        group, rank, ranks = None, dist.get_rank(), dist.get_world_size()
        mesh = w.paired("stage", "shard") if self.is_sharded else None
        if mesh is not None:
            group, rank, ranks = mesh.get_group("stage"), mesh.get_local_rank("stage"), ranks // 2
        count = ranks * self.stages_each
        numbers = [rank + ranks * turn for turn in range(self.stages_each)]
        modules: list[nn.Module] = [Part(number, count) for number in numbers]
        if mesh is not None:
            modules = [fsdp(module, mesh=mesh["shard"], reshard_after_forward=False) for module in modules]
        stages = [
            pipelining.PipelineStage(module, number, count, torch.device("cpu"), group=group)
            for number, module in zip(numbers, modules)
        ]
        make = getattr(pipelining, self.schedule)
        argument = stages if "stages" in signature(make).parameters else stages[0]
        self.objects["schedule"] = make(argument, BATCH, loss_fn=_loss_of_stage)
        self.objects["ends"] = [stage.is_first for stage in stages], [stage.is_last for stage in stages]
        model = nn.ModuleList(modules)
        self.objects["optimizer"] = self.optimizer(model.parameters())
        return model

    def train(self, model: Any, inputs: Tensor, targets: Tensor, mark: steps.Mark = lambda _: None) -> None:
        mark("forward")
        first, last = map(any, self.objects["ends"])
        self.objects["schedule"].step(*([inputs] if first else []), **({"target": targets} if last else {}))
        mark("optimizer")
        steps.updated(self.objects)
        mark("end")


def _loss_of_stage(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten())


AdamW = torch.optim.AdamW
FOUR = {"worlds": (4,)}
TWICE = {"accumulate": 2}
CLIPS = {"clip": True}
ORIGINAL: dict[str, Any] = {"use_orig_params": True}
HALF = {"param_dtype": torch.bfloat16}
REDUCED_IN_FULL = {**HALF, "reduce_dtype": torch.float32}

Rows = dict[str, tuple[Any, dict[str, Any]]]
"""How a case wraps its model, and its other fields, by its name without the model's."""

EITHER: Rows = {
    "ddp": (ddp, {}), "ddp view": (partial(ddp, gradient_as_bucket_view=True), {}),
    "ddp static": (partial(ddp, static_graph=True), {}), "ddp small buckets": (partial(ddp, bucket_cap_mb=1), {}),
    "ddp unused": (partial(ddp, find_unused_parameters=True), {}), "ddp accumulate": (ddp, TWICE),
    "ddp clip": (ddp, CLIPS), "zero": (ddp, {"optimizer": zero}), "fsdp": (fsdp, {}),
    "fsdp root": (partial(fsdp, each=False), {}), "fsdp keep": (partial(fsdp, reshard_after_forward=False), {}),
    "fsdp bf16": (w.fsdp_mixed, {}), "fsdp bf16 reduce fp32": (partial(w.fsdp_mixed, reduce=torch.float32), {}),
    "fsdp accumulate": (fsdp, TWICE), "fsdp bf16 accumulate": (partial(w.fsdp_mixed, reduce=torch.float32), TWICE),
    "fsdp clip": (fsdp, CLIPS), "fsdp checkpoint": (partial(checkpointed, fsdp), {}),
    "ddp checkpoint": (partial(checkpointed, ddp), {}),
    "fsdp sgd": (fsdp, {"optimizer": partial(torch.optim.SGD, lr=1e-3, momentum=0.9)}),
    "fsdp int": (partial(fsdp, reshard_after_forward=2), FOUR), "hsdp": (w.hsdp, FOUR),
    "hsdp bf16": (partial(w.hsdp, reduce=torch.float32), FOUR),
}  # fmt: skip
LLAMA: Rows = {
    "tp": (w.tensor_parallel, {"worlds": (2,)}), "sp": (w.sequence_parallel, {}),
    "fsdp selective": (partial(w.products_kept, fsdp), {}), "fsdp prefetch": (w.prefetched, {}),
    "fsdp tp": (w.fsdp_and_tp, FOUR), "fsdp tied": (fsdp, {"model": "tied"}),
    "fsdp1 checkpoint": (partial(checkpointed, fsdp1), {}),
    "fsdp1 checkpoint orig": (partial(checkpointed, partial(fsdp1, **ORIGINAL)), {}),
    "fsdp1 tied": (fsdp1, {"model": "tied"}), "fsdp1 tied orig": (partial(fsdp1, **ORIGINAL), {"model": "tied"}),
    "experts": (partial(w.with_experts, unwrapped), {}), "experts fsdp": (partial(w.with_experts, fsdp), {}),
    "hsdp tp": (w.hsdp_and_tp, FOUR),
    "experts one-hot": (partial(w.with_experts, unwrapped, count=by_one_hot), {}),
    "ring": (partial(w.over_parts, Ring), {}), "gathered": (partial(w.over_parts, Gathered), {}),
    "by heads": (partial(w.over_parts, ByHeads), {}),
}  # fmt: skip
FLAT: Rows = {
    "fsdp1": (fsdp1, {}), "fsdp1 orig": (partial(fsdp1, **ORIGINAL), {}),
    "fsdp1 root": (partial(fsdp1, each=False), {}),
    "fsdp1 grad op": (partial(fsdp1, strategy="SHARD_GRAD_OP"), {}),
    "fsdp1 grad op orig": (partial(fsdp1, strategy="SHARD_GRAD_OP", **ORIGINAL), {}),
    "fsdp1 none": (partial(fsdp1, strategy="NO_SHARD"), {}),
    "fsdp1 none orig": (partial(fsdp1, strategy="NO_SHARD", **ORIGINAL), {}),
    "fsdp1 hybrid": (partial(fsdp1, strategy="HYBRID_SHARD"), FOUR),
    "fsdp1 hybrid orig": (partial(fsdp1, strategy="_HYBRID_SHARD_ZERO2", **ORIGINAL), FOUR),
    "fsdp1 bf16": (partial(fsdp1, mixed=HALF), {}), "fsdp1 bf16 orig": (partial(fsdp1, mixed=HALF, **ORIGINAL), {}),
    "fsdp1 bf16 reduce fp32": (partial(fsdp1, mixed=REDUCED_IN_FULL, **ORIGINAL), {}),
    "fsdp1 accumulate": (fsdp1, TWICE), "fsdp1 accumulate orig": (partial(fsdp1, **ORIGINAL), TWICE),
    "fsdp1 clip": (fsdp1, CLIPS), "fsdp1 clip orig": (partial(fsdp1, **ORIGINAL), CLIPS),
    "fsdp1 prefetch": (w.fsdp1_prefetched, {}), "fsdp1 unlimited": (partial(fsdp1, limit_all_gathers=False), {}),
    "fsdp1 frozen": (w.partly_frozen, {}),
}  # fmt: skip
SCRIPTS: Rows = {
    "ddp fp16": (partial(w.compressed, name="fp16_compress_hook"), {}),
    "ddp checkpoint static": (partial(checkpointed, partial(ddp, static_graph=True)), {}),
    "zero overlap": (partial(ddp, gradient_as_bucket_view=True), {"optimizer": zero}),
    "lightning": (ddp, {"loop": steps.lightning}),
    "bunched": (w.bunched, {}), "fsdp fused": (fsdp, {"optimizer": partial(AdamW, fused=True), **CLIPS}),
    "ddp fused": (ddp, {"optimizer": partial(AdamW, fused=True)}),
    "gossip batched": (unwrapped, {"loop": steps.by_pairs}), "two stages": (unwrapped, {"loop": steps.in_turn}),
    "collectives": (ddp, {"loop": steps.gathered_objects}),
}  # fmt: skip
PIPELINES: dict[str, dict[str, Any]] = {
    "1f1b": {}, "gpipe": {"schedule": "ScheduleGPipe"},
    "interleaved": {"schedule": "ScheduleInterleaved1F1B", "stages_each": 2},
    "1f1b fsdp": {"is_sharded": True, **FOUR},
}  # fmt: skip

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *(PipelineCase(f"pipeline {name}", "llama", fsdp, **fields) for name, fields in PIPELINES.items()),
        *(
            Case(f"llama {name}", wrap=wrap, **{"model": "llama", **fields})
            for name, (wrap, fields) in (EITHER | LLAMA | FLAT | SCRIPTS).items()
        ),
        *(
            Case(f"cnn {name}", "cnn", wrap, **fields)
            for name, (wrap, fields) in (EITHER | FLAT).items()
            if "bf16" not in name
        ),
    )
}
