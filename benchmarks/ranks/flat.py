"""Cases of :mod:`benchmarks.ranks.cases` under ``FullyShardedDataParallel`` (FSDP1)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.ranks.models import Layer, Stage


def fsdp1(model: nn.Module, strategy: str = "FULL_SHARD", each: bool = True, mixed: Any = None, **options: Any) -> Any:
    """Wrap the layers, by a policy, and the model in ``FullyShardedDataParallel``."""
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    if "HYBRID" in strategy:
        options["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    if mixed is not None:
        options["mixed_precision"] = fsdp.MixedPrecision(**mixed)
    if each:
        options["auto_wrap_policy"] = ModuleWrapPolicy({Layer, Stage})
    how = fsdp.ShardingStrategy[strategy]
    return fsdp.FullyShardedDataParallel(model, sharding_strategy=how, device_id=torch.device("cpu"), **options)


def prefetched(model: nn.Module) -> Any:
    from torch.distributed.fsdp import BackwardPrefetch

    return fsdp1(model, backward_prefetch=BackwardPrefetch.BACKWARD_POST, forward_prefetch=True)


def partly_frozen(model: nn.Module, **options: Any) -> Any:
    """Train only norms and biases, as in parameter-efficient fine-tuning."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name or "bias" in name)
    return fsdp1(model, use_orig_params=True, **options)


HALF = {"param_dtype": torch.bfloat16}
HALF_REDUCED_IN_FULL = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
ORIGINAL: dict[str, Any] = {"use_orig_params": True}

FLAT: dict[str, dict[str, Any]] = {
    "fsdp1": {"wrap": fsdp1},
    "fsdp1 orig": {"wrap": partial(fsdp1, **ORIGINAL)},
    "fsdp1 root": {"wrap": partial(fsdp1, each=False)},
    "fsdp1 grad op": {"wrap": partial(fsdp1, strategy="SHARD_GRAD_OP")},
    "fsdp1 grad op orig": {"wrap": partial(fsdp1, strategy="SHARD_GRAD_OP", **ORIGINAL)},
    "fsdp1 none": {"wrap": partial(fsdp1, strategy="NO_SHARD")},
    "fsdp1 none orig": {"wrap": partial(fsdp1, strategy="NO_SHARD", **ORIGINAL)},
    "fsdp1 hybrid": {"wrap": partial(fsdp1, strategy="HYBRID_SHARD"), "worlds": (4,)},
    "fsdp1 hybrid orig": {"wrap": partial(fsdp1, strategy="_HYBRID_SHARD_ZERO2", **ORIGINAL), "worlds": (4,)},
    "fsdp1 bf16": {"wrap": partial(fsdp1, mixed=HALF)},
    "fsdp1 bf16 orig": {"wrap": partial(fsdp1, mixed=HALF, **ORIGINAL)},
    "fsdp1 bf16 reduce fp32": {"wrap": partial(fsdp1, mixed=HALF_REDUCED_IN_FULL, **ORIGINAL)},
    "fsdp1 accumulate": {"wrap": fsdp1, "accumulate": 2},
    "fsdp1 accumulate orig": {"wrap": partial(fsdp1, **ORIGINAL), "accumulate": 2},
    "fsdp1 clip": {"wrap": fsdp1, "clip": True},
    "fsdp1 clip orig": {"wrap": partial(fsdp1, **ORIGINAL), "clip": True},
    "fsdp1 prefetch": {"wrap": prefetched},
    "fsdp1 unlimited": {"wrap": partial(fsdp1, limit_all_gathers=False)},
    "fsdp1 frozen": {"wrap": partly_frozen},
}
