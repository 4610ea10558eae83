"""Distributed training programs on small models, run by real processes and predicted for each rank.

A case is a builder and a training step, as in a script; the step creates its optimizer on its first call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.ranks_models import MODELS

Wrap = Callable[[nn.Module], nn.Module]
BATCH = 4


@dataclass(frozen=True)
class Case:
    """A model by its name, what wraps it, and how it is trained; in a world of any of ``worlds``."""

    name: str
    model: str
    wrap: Wrap
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW
    accumulate: int = 1
    clip: bool = False
    worlds: tuple[int, ...] = (2, 4)
    held: dict[str, Any] = field(default_factory=dict)
    """What the loop holds: its optimizer."""

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.wrap(MODELS[self.model].make())
        self.held["optimizer"] = self.optimizer(model.parameters())
        return model

    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs of a step, and its targets."""
        return MODELS[self.model].inputs(BATCH)

    def train(self, model: Any, inputs: Tensor, targets: Tensor, mark: Callable[[str], None] = lambda _: None) -> None:
        """One step: so many micro-batches, and the optimizer."""
        for number in range(self.accumulate):
            is_last = number == self.accumulate - 1
            if self.accumulate > 1:
                _sync(model, is_last)
            mark("forward")
            loss = self._loss(model, inputs, targets)
            mark("backward")
            loss.backward()
            del loss
        mark("optimizer")
        if self.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.held["optimizer"].step()
        self.held["optimizer"].zero_grad()
        mark("end")

    def _loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs).flatten(0, -2).float(), targets.flatten())


def _sync(model: Any, is_last: bool) -> None:
    """Whether the gradients of the next backward go to other ranks: those of the last micro-batch do."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model.require_backward_grad_sync = is_last  # What ``no_sync()`` sets.
    else:
        model.set_requires_gradient_sync(is_last)


def ddp(model: nn.Module, **options: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, **options)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The layers that are sharded one by one."""
    return list(model.layers)  # type: ignore[arg-type]


def fsdp(model: nn.Module, mesh: Any = None, each: bool = True, last: bool | None = None, **options: Any) -> nn.Module:
    """``fully_shard`` on each layer and on the model."""
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
    """A mesh of two axes, the second of two ranks."""
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
    """The layers of a Llama over ranks, as torch's tutorial has it."""
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
    "fsdp tp": {"wrap": fsdp_and_tp, "worlds": (4,)},
    "fsdp tied": {"wrap": fsdp, "model": "tied"},
}

CASES = {
    case.name: case
    for case in (
        *(Case(f"llama {name}", **{"model": "llama", **given}) for name, given in (_EITHER | _LLAMA).items()),
        *(Case(f"cnn {name}", "cnn", **given) for name, given in _EITHER.items() if "bf16" not in name),
    )
}
