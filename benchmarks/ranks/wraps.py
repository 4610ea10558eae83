"""How training programs wrap and shard their models, each as its users write it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from benchmarks.ranks.models import Layer, Stage
from benchmarks.ranks.parallel import Experts, by_bincount

Wrap = Callable[[Any], Any]
ddp = nn.parallel.DistributedDataParallel


def unwrapped(model: Any) -> Any:
    return model


def meshed(*sizes: int, names: tuple[str, ...] | None = None) -> Any:
    """Return a mesh on the CPU: by default of one axis with all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", sizes or (dist.get_world_size(),), mesh_dim_names=names)


def paired(*names: str) -> Any:
    """Return a mesh of two axes, the second of which has two ranks."""
    return meshed(dist.get_world_size() // 2, 2, names=names)


def fsdp(model: Any, each: bool = True, **options: Any) -> Any:
    """Apply ``fully_shard`` to each layer and to the model, by default over all ranks."""
    from torch.distributed.fsdp import fully_shard

    options = {**({} if "mesh" in options else {"mesh": meshed()}), **options}
    for layer in model.layers if each else []:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def mixed(reduce: torch.dtype | None = None) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)


def fsdp_mixed(model: Any, reduce: torch.dtype | None = None) -> Any:
    return fsdp(model, mp_policy=mixed(reduce))


def hsdp(model: Any, reduce: torch.dtype | None = None) -> Any:
    return fsdp(model, mesh=paired("replicate", "shard"), **({} if reduce is None else {"mp_policy": mixed(reduce)}))


def checkpointed(wrap: Wrap, model: Any, **options: Any) -> Any:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for number, layer in enumerate(model.layers):
        model.layers[number] = checkpoint_wrapper(layer, preserve_rng_state=False, **options)
    return wrap(model)


def products_kept(wrap: Wrap, model: Any) -> Any:
    """Checkpoint each layer except for its matrix products, by a policy."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(_: Any, func: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        is_product = func is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    return checkpointed(wrap, model, context_fn=partial(create_selective_checkpoint_contexts, policy))


def tensor_parallel(model: Any, mesh: Any = None) -> Any:
    """Shard the layers of a Llama with tensor parallelism, as in torch's tutorial."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = mesh or meshed()
    for layer in model.layers:
        plan = {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
        plan |= {"attention.wo": RowwiseParallel(), "feed_forward.w2": RowwiseParallel()}
        plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")}
        parallelize_module(layer, mesh, plan)
    return model


def fsdp_and_tp(model: Any) -> Any:
    mesh = paired("dp", "tp")
    return fsdp(tensor_parallel(model, mesh["tp"]), mesh=mesh["dp"])


def hsdp_and_tp(model: Any) -> Any:
    """Replicate shards of tensor parallel layers: HSDP and tensor parallelism on a mesh of three axes."""
    mesh = meshed(2, dist.get_world_size() // 4, 2, names=("replicate", "shard", "tp"))
    return fsdp(tensor_parallel(model, mesh["tp"]), mesh=mesh["replicate", "shard"])


def sequence_parallel(model: Any) -> Any:
    """Shard with tensor parallelism, and split the activations between the products along the sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    mesh, split, whole = meshed(), Shard(1), Replicate()
    plan: dict[str, Any] = {"attention_norm": tp.SequenceParallel(), "ffn_norm": tp.SequenceParallel()}
    for name in ("attention", "feed_forward"):
        plan[name] = tp.PrepareModuleInput(input_layouts=(split,), desired_input_layouts=(whole,))
    for name in ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3"):
        plan[name] = tp.ColwiseParallel()
    for name in ("attention.wo", "feed_forward.w2"):
        plan[name] = tp.RowwiseParallel(output_layouts=split)
    for layer in model.layers:
        tp.parallelize_module(layer, mesh, plan)
    outer = {
        "embedding": tp.RowwiseParallel(input_layouts=whole, output_layouts=split),
        "norm": tp.SequenceParallel(),
        "output": tp.ColwiseParallel(input_layouts=split, output_layouts=whole),
    }
    return tp.parallelize_module(model, mesh, outer)


def prefetched(model: Any) -> Any:
    """Apply ``fully_shard``, and prefetch each layer's weights while the previous layer runs."""
    model = fsdp(model)
    for layer, following in pairwise(model.layers):
        layer.set_modules_to_forward_prefetch([following])
    return model


def bunched(model: Any) -> Any:
    """Shard parameters of several modules in one group, ignore some, and shard along the last dimension."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    mesh = meshed()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, shard_placement_fn=lambda p: Shard(p.ndim - 1) if p.ndim > 1 else None)
    fully_shard([model.norm, model.output], mesh=mesh)
    return fully_shard(model, mesh=mesh, ignored_params=set(model.embedding.parameters()))


def with_experts(wrap: Wrap, model: Any, count: Any = by_bincount) -> Any:
    """Replace each layer's feed-forward network with experts."""
    for layer in model.layers:
        layer.feed_forward = Experts(count)
    return wrap(model)


def over_parts(kind: Any, model: Any) -> Any:
    """Replace attention by a class that works on a rank's part of the sequence, and use DDP."""
    for layer in model.layers:
        layer.attention.__class__ = kind
    return ddp(model)


def compressed(model: Any, name: str) -> Any:
    """Use DDP with one of torch's hooks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    wrapped = ddp(model)
    wrapped.register_comm_hook(None, getattr(default_hooks, name))
    return wrapped


def fsdp1(model: Any, strategy: str = "FULL_SHARD", each: bool = True, mixed: Any = None, **options: Any) -> Any:
    """Wrap the layers, by a policy, and the model in ``FullyShardedDataParallel``."""
    from torch.distributed import fsdp
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    if "HYBRID" in strategy:
        options["device_mesh"] = meshed(2, 2, names=("replicate", "shard"))
    if mixed is not None:
        options["mixed_precision"] = fsdp.MixedPrecision(**mixed)
    if each:
        options["auto_wrap_policy"] = ModuleWrapPolicy({Layer, Stage})
    how = fsdp.ShardingStrategy[strategy]
    return fsdp.FullyShardedDataParallel(model, sharding_strategy=how, device_id=torch.device("cpu"), **options)


def fsdp1_prefetched(model: Any) -> Any:
    from torch.distributed.fsdp import BackwardPrefetch

    return fsdp1(model, backward_prefetch=BackwardPrefetch.BACKWARD_POST, forward_prefetch=True)


def partly_frozen(model: Any) -> Any:
    """Train only norms and biases, as in parameter-efficient fine-tuning."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name or "bias" in name)
    return fsdp1(model, use_orig_params=True)


def zero(parameters: Any) -> torch.optim.Optimizer:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-3)
