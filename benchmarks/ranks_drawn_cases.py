"""Random distributed programs by seed, for :mod:`benchmarks.ranks_drawn`.

A program is a model from :mod:`benchmarks.ranks_drawn_models`, a kind of sharding, and a step, each with random
options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from benchmarks.ranks_cases import CASES, Case, PipelineCase, ddp, mesh_of, unwrapped, zero
from benchmarks.ranks_drawn_models import Block, Drawn, DrawnPart, Shape, inputs_of
from benchmarks.ranks_drawn_steps import ACTS, Step, run_step

Wrapped = Callable[[Any], Any]


@dataclass(frozen=True)
class DrawnCase(Case):
    """A random model, wrapped and trained as drawn; ``words`` lists the choices."""

    shape: Any = None
    step: Any = None
    words: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.words} {self.shape} {self.step}"

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        model: nn.Module = self.wrap(Drawn(self.shape))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.objects["optimizer"] = self.optimizer(trained)
        self.objects.update((act, ACTS[act].prepare(model)) for act in self.step.acts)
        return model

    def inputs(self) -> tuple[Tensor, ...]:
        return inputs_of(self.shape, self.step.batch)

    def train(self, model: Any, inputs: Tensor, targets: Tensor, mark: Callable[[str], None] = lambda _: None) -> None:
        run_step(self.step, model, inputs, targets, self.objects, mark)


@dataclass(frozen=True)
class DrawnPipeline(PipelineCase):
    """A random model over the stages of a schedule."""

    shape: Any = None
    batch: int = 4

    def part(self, number: int, stages: int) -> nn.Module:
        return DrawnPart(self.shape, number, stages)

    def inputs(self) -> tuple[Tensor, ...]:
        return inputs_of(self.shape, self.batch)


def some(draw: Random, **choices: tuple[Any, ...]) -> dict[str, Any]:
    """Draw one of each choice, and return those that are not None."""
    drawn = {name: draw.choice(values) for name, values in choices.items()}
    return {name: value for name, value in drawn.items() if value is not None}


def checkpointed(shape: Shape, model: Any) -> Any:
    """Wrap the layers in checkpoints, if the shape says so."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    if shape.checkpoints == "wrapper":
        for number, layer in enumerate(model.layers):
            model.layers[number] = checkpoint_wrapper(layer)
    return model


def drawn_ddp(draw: Random, shape: Shape, words: dict[str, Any]) -> Wrapped:
    options = some(
        draw,
        gradient_as_bucket_view=(None, True),
        static_graph=(None, None, True),
        bucket_cap_mb=(None, 1, 0.05),
        broadcast_buffers=(None, False),
    )
    options |= {"find_unused_parameters": True} if shape.has_unused else {}
    hook = draw.choice(("", "", "", "fp16_compress_hook", "allreduce_hook"))
    words |= {**options, "hook": hook}

    def wrapped(model: Any) -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model = ddp(model, **options)
        if hook:
            model.register_comm_hook(None, getattr(default_hooks, hook))
        return model

    return wrapped


def drawn_fsdp(draw: Random, shape: Shape, words: dict[str, Any]) -> Wrapped:
    """Apply ``fully_shard`` as drawn: to parts of layers, layers, pairs of layers, the head, and the model."""
    options = some(draw, reshard_after_forward=(None, True, False))
    dtypes = some(draw, param_dtype=(None, torch.bfloat16), reduce_dtype=(None, torch.float32, torch.bfloat16))
    groups = draw.choice(("layers", "layers", "parts", "pairs", "root" if shape.is_tied else "head", "root"))
    has_prefetch, by_columns, is_hybrid = (draw.random() < 0.3 for _ in range(3))
    words |= {**options, **dtypes, "groups": groups, "prefetch": has_prefetch, "columns": by_columns}
    words["hybrid"] = is_hybrid

    def wrapped(model: Any, mesh: Any = None) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from torch.distributed.tensor import Shard

        hybrid = is_hybrid and dist.get_world_size() == 4
        mesh = mesh or (mesh_of("replicate", "shard") if hybrid else init_device_mesh("cpu", (dist.get_world_size(),)))
        keywords: dict[str, Any] = {"mesh": mesh, **options}
        keywords |= {"mp_policy": MixedPrecisionPolicy(**dtypes)} if dtypes else {}
        if by_columns:
            size = mesh.shape[-1]
            keywords["shard_placement_fn"] = lambda p: Shard(1) if p.dim() == 2 and p.shape[1] % size == 0 else None
        shard = partial(fully_shard, **keywords)
        for group in grouped(model, groups):
            shard(group)
        layers = [layer for layer in model.layers if groups in ("layers", "parts", "head")]
        for layer, following in pairwise(layers if has_prefetch else []):
            layer.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([layer])
        return shard(model)

    return wrapped


def grouped(model: Any, groups: str) -> list[Any]:
    """Return the modules to shard before the model itself, from the inside out."""
    layers = list(model.layers)
    parts = [part for layer in layers for part in (inner(layer).attention, inner(layer).feed_forward) if part]
    return {
        "layers": layers,
        "parts": [*parts, *layers],
        "pairs": [layers[first : first + 2] for first in range(0, len(layers), 2)],
        "head": [*layers, [model.norm, model.output]],
        "root": [],
    }[groups]


def inner(layer: Any) -> Any:
    return getattr(layer, "_checkpoint_wrapped_module", layer)


def drawn_fsdp1(draw: Random, shape: Shape, words: dict[str, Any]) -> Wrapped:
    strategy = draw.choice(("FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"))
    options = some(draw, use_orig_params=(None, True), forward_prefetch=(None, True), limit_all_gathers=(None, False))
    options |= {"use_orig_params": True} if shape.frozen else {}
    dtypes = some(draw, param_dtype=(None, torch.bfloat16), reduce_dtype=(None, torch.float32))
    each = draw.random() < 0.8
    words |= {"strategy": strategy, **options, **dtypes, "each": each}

    def wrapped(model: Any) -> Any:
        from torch.distributed import fsdp
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        keywords: dict[str, Any] = {**options, "device_id": torch.device("cpu")}
        keywords |= {"mixed_precision": fsdp.MixedPrecision(**dtypes)} if dtypes else {}
        keywords |= {"auto_wrap_policy": ModuleWrapPolicy({Block})} if each else {}
        how = fsdp.ShardingStrategy[strategy]
        return fsdp.FullyShardedDataParallel(model, sharding_strategy=how, **keywords)

    return wrapped


def drawn_parallel(draw: Random, shape: Shape, words: dict[str, Any]) -> Wrapped:
    """Apply tensor parallelism over two ranks, and ``fully_shard`` over the pairs."""
    parts = draw.choice((("attention", "feed_forward"), ("attention",), ("feed_forward",)))
    over_head, shards = draw.random() < 0.4, draw.random() < 0.7
    words |= {"parts": parts, "over head": over_head, "shards": shards}
    shard = drawn_fsdp(draw, shape, words)

    def wrapped(model: Any) -> Any:
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor import parallel as tp

        mesh = mesh_of("data", "tensor")
        names = {"attention": ("wq", "wk", "wv", "wo"), "feed_forward": ("w1", "w3", "w2")}
        for layer in map(inner, model.layers):
            plan = {
                f"{part}.{name}": tp.RowwiseParallel() if name in ("wo", "w2") else tp.ColwiseParallel()
                for part in parts
                for name in names[part]
                if getattr(getattr(layer, part), name, None) is not None
            }
            tp.parallelize_module(layer, mesh["tensor"], plan)
        if over_head:
            plan = {"output": tp.ColwiseParallel(output_layouts=Replicate())}
            tp.parallelize_module(model, mesh["tensor"], plan)
        return shard(model, mesh["data"]) if shards and dist.get_world_size() == 4 else model

    return wrapped


WAYS = {
    "ddp": drawn_ddp,
    "zero": drawn_ddp,
    "fsdp": drawn_fsdp,
    "fsdp1": drawn_fsdp1,
    "parallel": drawn_parallel,
}
OPTIMIZERS: dict[str, Any] = {
    "adamw": torch.optim.AdamW,
    "adamw one by one": partial(torch.optim.AdamW, foreach=False),
    "adam amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "sgd": partial(torch.optim.SGD, lr=1e-3),
    "sgd momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9, nesterov=True),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "nadam": torch.optim.NAdam,
}
EVERY = (*WAYS, "fsdp", "pipeline")
ONE_EACH = ("Schedule1F1B", "ScheduleGPipe")
SCHEDULES = (*ONE_EACH, "ScheduleInterleaved1F1B", "ScheduleLoopedBFS", "ScheduleInterleavedZeroBubble")


def drawn_pipeline(draw: Random, name: str) -> Case:
    """Build a schedule over stages of one layer each; in a world of four, each stage may be sharded over two ranks."""
    schedule = draw.choice(SCHEDULES)
    each = 1 if schedule in ONE_EACH else draw.choice((2, 3))
    shape = replace(Shape.draw(draw), frozen="", has_unused=False, checkpoints="", has_buffer=False)
    micro_batches = draw.choice((4, 8))
    return DrawnPipeline(
        name,
        "llama",
        unwrapped,
        optimizer=OPTIMIZERS[draw.choice(list(OPTIMIZERS))],
        schedule=schedule,
        stages_each=each,
        is_sharded=draw.random() < 0.3,
        micro_batches=micro_batches,
        shape=shape,
        batch=micro_batches * draw.choice((1, 2)),
    )


def drawn_case(seed: int, number: int, ways: tuple[str, ...]) -> Case:
    """Return a program by seed and number; it is the same on every call."""
    draw = Random(f"{seed}:{number}")
    way = draw.choice(ways)
    name = " ".join((f"drawn {seed}:{number}", *(() if ways == EVERY else ways)))
    if way == "pipeline":
        return drawn_pipeline(draw, name)
    shape, words = Shape.draw(draw), {}
    if way == "parallel":
        shape = replace(shape, hidden=2 * shape.width)
    shards = WAYS[way](draw, shape, words)
    optimizer = draw.choice(list(OPTIMIZERS))
    words = {"way": way, **words, "optimizer": optimizer}
    return DrawnCase(
        name,
        "llama",
        wrap=lambda model: shards(checkpointed(shape, model)),
        optimizer=zero if way == "zero" else OPTIMIZERS[optimizer],
        shape=shape,
        step=Step.draw(draw),
        words=words,
    )


def case_of(name: str) -> Case:
    """Return a case by name: one of the list, or a random one."""
    if not name.startswith("drawn "):
        return CASES[name]
    place, *ways = name.removeprefix("drawn ").split()
    seed, number = map(int, place.split(":"))
    return drawn_case(seed, number, tuple(ways) or EVERY)
