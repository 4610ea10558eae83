"""Distributed training programs on small models, run in real processes and predicted for each rank.

A case is a builder and a training step, as in a script; the step creates its optimizer on its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.ranks.flat import FLAT, fsdp1
from benchmarks.ranks.models import MODELS, Part
from benchmarks.ranks.parallel import ByHeads, Gathered, Ring, by_one_hot, over_parts, with_experts
from benchmarks.ranks.programs import (
    SplitHead,
    accumulated,
    adapted,
    averaged,
    by_hand,
    compressed,
    contrasted,
    joined,
    megatron,
)
from benchmarks.ranks.scripts import SCRIPTS
from benchmarks.ranks.wraps import apart, hsdp_tp

Wrap = Callable[[nn.Module], nn.Module]
BATCH = 4


@dataclass(frozen=True)
class Case:
    """A model, given by name, how it is wrapped and trained, and the world sizes in which it may run."""

    name: str
    model: str
    wrap: Wrap
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
        model = self.wrap(MODELS[self.model].make())
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.objects["optimizer"] = self.optimizer(trained)
        return model

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the inputs of a step, and its targets."""
        return MODELS[self.model].inputs(BATCH)

    def train(self, model: Any, inputs: Tensor, targets: Tensor, mark: Callable[[str], None] = lambda _: None) -> None:
        """Run one step: the micro-batches, then the optimizer."""
        if self.loop is not None:
            self.loop(model, inputs, targets, self.objects, mark)
            return
        for number in range(self.accumulate):
            with _alone(model) if number < self.accumulate - 1 else nullcontext():
                mark("forward")
                loss = self._loss(model, inputs, targets)
                mark("backward")
                loss.backward()
                del loss
        mark("optimizer")
        if self.clip:
            _clip(model)
        self.objects["optimizer"].step()
        self.objects["optimizer"].zero_grad()
        mark("end")

    def _loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        if isinstance(model, SplitHead):
            loss: Tensor = model(inputs)
            return loss
        return F.cross_entropy(model(inputs).flatten(0, -2).float(), targets.flatten())


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


def _clip(model: Any) -> None:
    if hasattr(model, "clip_grad_norm_"):
        model.clip_grad_norm_(1.0)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def ddp(model: nn.Module, **options: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, **options)


def unwrapped(model: nn.Module) -> nn.Module:
    return model


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the layers that are sharded separately."""
    return list(model.layers)  # type: ignore[arg-type]


def fsdp(model: nn.Module, mesh: Any = None, each: bool = True, last: bool | None = None, **options: Any) -> nn.Module:
    """Apply ``fully_shard`` to each layer and to the model."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    options["mesh"] = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in blocks(model) if each else []:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def mixed(reduce: torch.dtype | None = None) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)


def fsdp_mixed(model: nn.Module, reduce: torch.dtype | None = None, **options: Any) -> nn.Module:
    return fsdp(model, mp_policy=mixed(reduce), **options)


def mesh_of(*names: str) -> Any:
    """Return a mesh of two axes, the second of which has two ranks."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=names)


def hsdp(model: nn.Module, **options: Any) -> nn.Module:
    return fsdp(model, mesh_of("replicate", "shard"), **options)


def checkpointed(wrap: Wrap, model: nn.Module) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    layers: Any = model.layers
    for number, layer in enumerate(layers):
        layers[number] = checkpoint_wrapper(layer, preserve_rng_state=False)
    return wrap(model)


def tensor_parallel(model: nn.Module, mesh: Any = None) -> nn.Module:
    """Shard the layers of a Llama with tensor parallelism, as in torch's tutorial."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in blocks(model):
        plan = {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
        plan |= {"attention.wo": RowwiseParallel(), "feed_forward.w2": RowwiseParallel()}
        plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")}
        parallelize_module(layer, mesh, plan)
    return model


def fsdp_and_tp(model: nn.Module, **options: Any) -> nn.Module:
    mesh = mesh_of("dp", "tp")
    return fsdp(tensor_parallel(model, mesh["tp"]), mesh["dp"], **options)


def sequence_parallel(model: nn.Module) -> nn.Module:
    """Shard with tensor parallelism, and split the activations between the products along the sequence."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    split, whole = Shard(1), Replicate()
    plan: dict[str, Any] = {"attention_norm": tp.SequenceParallel(), "ffn_norm": tp.SequenceParallel()}
    for name in ("attention", "feed_forward"):
        plan[name] = tp.PrepareModuleInput(input_layouts=(split,), desired_input_layouts=(whole,))
    for name in ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3"):
        plan[name] = tp.ColwiseParallel()
    for name in ("attention.wo", "feed_forward.w2"):
        plan[name] = tp.RowwiseParallel(output_layouts=split)
    for layer in blocks(model):
        tp.parallelize_module(layer, mesh, plan)
    outer = {
        "embedding": tp.RowwiseParallel(input_layouts=whole, output_layouts=split),
        "norm": tp.SequenceParallel(),
        "output": tp.ColwiseParallel(input_layouts=split, output_layouts=whole),
    }
    return tp.parallelize_module(model, mesh, outer)


def products_kept(wrap: Wrap, model: nn.Module) -> nn.Module:
    """Checkpoint each layer except for its matrix products, by a policy."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(_: Any, func: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        is_product = func is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    layers: Any = model.layers
    for number, layer in enumerate(layers):
        contexts = partial(create_selective_checkpoint_contexts, policy)
        layers[number] = checkpoint_wrapper(layer, context_fn=contexts, preserve_rng_state=False)
    return wrap(model)


def prefetched(model: nn.Module) -> nn.Module:
    """Apply ``fully_shard``, and prefetch each layer's weights while the previous layer runs."""
    model = fsdp(model)
    layers: Any = blocks(model)
    for layer, following in pairwise(layers):
        layer.set_modules_to_forward_prefetch([following])
    return model


@dataclass(frozen=True)
class PipelineCase(Case):
    """Build a Llama with one layer per stage, in a schedule given by its name in ``torch.distributed.pipelining``."""

    schedule: str = "Schedule1F1B"
    stages_each: int = 1
    is_sharded: bool = False
    """Whether half of the ranks are stages, each sharded over two."""
    micro_batches: int = BATCH

    def part(self, number: int, stages: int) -> nn.Module:
        return Part(number, stages)

    def build(self) -> nn.Module:
        from torch import distributed as dist
        from torch.distributed import pipelining

        torch.manual_seed(0)
        group, rank, ranks = None, dist.get_rank(), dist.get_world_size()
        mesh = mesh_of("stage", "shard") if self.is_sharded else None
        if mesh is not None:
            group, rank, ranks = mesh.get_group("stage"), mesh.get_local_rank("stage"), ranks // 2
        numbers = [rank + ranks * turn for turn in range(self.stages_each)]
        modules = [self.part(number, ranks * self.stages_each) for number in numbers]
        if mesh is not None:
            modules = [fsdp(module, mesh["shard"], reshard_after_forward=False) for module in modules]
        device = torch.device("cpu")
        stages = [
            pipelining.PipelineStage(module, number, ranks * self.stages_each, device, group=group)
            for number, module in zip(numbers, modules)
        ]
        make = getattr(pipelining, self.schedule)
        argument = stages if "stages" in signature(make).parameters else stages[0]
        self.objects["schedule"] = make(argument, self.micro_batches, loss_fn=_loss_of)
        self.objects["ends"] = [stage.is_first for stage in stages], [stage.is_last for stage in stages]
        model = nn.ModuleList(modules)
        self.objects["optimizer"] = self.optimizer(model.parameters())
        return model

    def train(self, model: Any, inputs: Tensor, targets: Tensor, mark: Callable[[str], None] = lambda _: None) -> None:
        mark("forward")
        first, last = map(any, self.objects["ends"])
        self.objects["schedule"].step(*([inputs] if first else []), **({"target": targets} if last else {}))
        mark("optimizer")
        self.objects["optimizer"].step()
        self.objects["optimizer"].zero_grad()
        mark("end")


def _loss_of(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2), targets.flatten())


def zero(parameters: Any) -> torch.optim.Optimizer:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-3)


_EITHER: dict[str, dict[str, Any]] = {
    "ddp": {"wrap": ddp},
    "ddp view": {"wrap": partial(ddp, gradient_as_bucket_view=True)},
    "ddp static": {"wrap": partial(ddp, static_graph=True)},
    "ddp small buckets": {"wrap": partial(ddp, bucket_cap_mb=1)},
    "ddp unused": {"wrap": partial(ddp, find_unused_parameters=True)},
    "ddp accumulate": {"wrap": ddp, "accumulate": 2},
    "ddp clip": {"wrap": ddp, "clip": True},
    "zero": {"wrap": ddp, "optimizer": zero},
    "fsdp": {"wrap": fsdp},
    "fsdp root": {"wrap": partial(fsdp, each=False)},
    "fsdp keep": {"wrap": partial(fsdp, reshard_after_forward=False)},
    "fsdp bf16": {"wrap": fsdp_mixed},
    "fsdp bf16 reduce fp32": {"wrap": partial(fsdp_mixed, reduce=torch.float32)},
    "fsdp accumulate": {"wrap": fsdp, "accumulate": 2},
    "fsdp bf16 accumulate": {"wrap": partial(fsdp_mixed, reduce=torch.float32), "accumulate": 2},
    "fsdp clip": {"wrap": fsdp, "clip": True},
    "fsdp checkpoint": {"wrap": partial(checkpointed, fsdp)},
    "ddp checkpoint": {"wrap": partial(checkpointed, ddp)},
    "fsdp sgd": {"wrap": fsdp, "optimizer": partial(torch.optim.SGD, lr=1e-3, momentum=0.9)},
    "fsdp int": {"wrap": partial(fsdp, reshard_after_forward=2), "worlds": (4,)},
    "hsdp": {"wrap": hsdp, "worlds": (4,)},
    "hsdp bf16": {"wrap": partial(hsdp, mp_policy=mixed(torch.float32)), "worlds": (4,)},
}
_LLAMA: dict[str, dict[str, Any]] = {
    "tp": {"wrap": tensor_parallel, "worlds": (2,)},
    "sp": {"wrap": sequence_parallel, "worlds": (2, 4)},
    "fsdp selective": {"wrap": partial(products_kept, fsdp)},
    "fsdp prefetch": {"wrap": prefetched},
    "fsdp tp": {"wrap": fsdp_and_tp, "worlds": (4,)},
    "fsdp tied": {"wrap": fsdp, "model": "tied"},
    "fsdp1 checkpoint": {"wrap": partial(checkpointed, fsdp1)},
    "fsdp1 checkpoint orig": {"wrap": partial(checkpointed, partial(fsdp1, use_orig_params=True))},
    "fsdp1 tied": {"wrap": fsdp1, "model": "tied"},
    "fsdp1 tied orig": {"wrap": partial(fsdp1, use_orig_params=True), "model": "tied"},
    "experts": {"wrap": partial(with_experts, unwrapped)},
    "experts fsdp": {"wrap": partial(with_experts, fsdp)},
    "experts apart": {"wrap": partial(with_experts, apart)},
    "hsdp tp": {"wrap": partial(hsdp_tp, parallel=tensor_parallel), "worlds": (4,)},
    "experts one-hot": {"wrap": partial(with_experts, unwrapped, count=by_one_hot)},
    "ring": {"wrap": partial(over_parts, Ring, ddp)},
    "gathered": {"wrap": partial(over_parts, Gathered, ddp)},
    "by heads": {"wrap": partial(over_parts, ByHeads, ddp)},
}


def titan(model: nn.Module) -> nn.Module:
    """Apply tensor parallelism, then checkpoints, then ``fully_shard``, in torchtitan's order."""
    mesh = mesh_of("dp", "tp")
    return checkpointed(partial(fsdp, mesh=mesh["dp"]), tensor_parallel(model, mesh["tp"]))


_PROGRAMS: dict[str, dict[str, Any]] = {
    "megatron": {"wrap": megatron},
    "split vocabulary": {"wrap": SplitHead},
    "ddp fp16": {"wrap": partial(compressed, hook="fp16")},
    "ddp powersgd": {"wrap": partial(compressed, hook="powersgd")},
    "fsdp lora": {"wrap": lambda model: fsdp(adapted(model))},
    "fsdp1 lora orig": {"wrap": lambda model: fsdp1(adapted(model), use_orig_params=True)},
    "ddp lora": {"wrap": lambda model: ddp(adapted(model))},
    "dtensors": {"wrap": by_hand},
    "ddp average": {"wrap": ddp, "loop": averaged},
    "ddp contrast": {"wrap": ddp, "loop": contrasted},
    "zero accumulate": {"wrap": ddp, "optimizer": zero, "loop": accumulated},
    "flat sums": {"wrap": unwrapped, "loop": accumulated},
    "ddp join": {"wrap": ddp, "loop": joined},
    "ddp checkpoint static": {"wrap": partial(checkpointed, partial(ddp, static_graph=True))},
    "fsdp tp checkpoint": {"wrap": titan, "worlds": (4,)},
    "zero overlap": {"wrap": partial(ddp, gradient_as_bucket_view=True), "optimizer": zero},
}

_PIPELINES: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "gpipe": {"schedule": "ScheduleGPipe"},
    "interleaved": {"schedule": "ScheduleInterleaved1F1B", "stages_each": 2},
    "1f1b fsdp": {"is_sharded": True, "worlds": (4,)},
}

_OF_LLAMA = _EITHER | _LLAMA | FLAT | _PROGRAMS
CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *(PipelineCase(f"pipeline {name}", "llama", fsdp, **options) for name, options in _PIPELINES.items()),
        *(
            Case(f"llama {name}", **{"model": "llama", **options})
            for name, options in (_EITHER | _LLAMA | FLAT | _PROGRAMS | SCRIPTS).items()
        ),
        *(Case(f"cnn {name}", "cnn", **options) for name, options in (_EITHER | FLAT).items() if "bf16" not in name),
    )
}
