"""How training scripts parallelise their models, each as its users write it, for :mod:`benchmarks.ranks.scripts`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist


def meshed() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),))


def sharded(model: nn.Module, root: dict[str, Any] | None = None, **options: Any) -> Any:
    """Apply ``fully_shard`` to each layer and to the model, as in torch's tutorial."""
    from torch.distributed.fsdp import fully_shard

    layers: Any = model.layers
    for layer in layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options, **(root or {}))


def env_main(model: nn.Module) -> Any:
    """Read what ``torchrun`` sets, create a group, and use DDP."""
    rank, local, world = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=rank, world_size=world)
    assert dist.is_available() and local <= rank
    torch.manual_seed(1234 + dist.get_rank())
    model = model.to(torch.device("cpu"))
    dist.barrier()
    return nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=False)


def restored(model: nn.Module, which: str = "full") -> Any:
    """Shard a model on ``meta``, materialise it on the device, and load a state dict."""
    from torch.distributed.checkpoint import state_dict as states

    whole = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    model = sharded(model.to("meta"), mesh=meshed())
    model.to_empty(device="cpu")
    if which == "full":
        options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=False)
        states.set_model_state_dict(model, whole, options=options)
    else:
        model.load_state_dict(states.get_model_state_dict(model))
    return model


def bunched(model: nn.Module) -> Any:
    """Shard parameters of several modules in one group, ignore some, and shard along the last dimension."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    layers: Any = model.layers
    mesh = meshed()
    for layer in layers:
        fully_shard(layer, mesh=mesh, shard_placement_fn=lambda p: Shard(p.ndim - 1) if p.ndim > 1 else None)
    fully_shard([model.norm, model.output], mesh=mesh)  # type: ignore[list-item]
    ignored = set(model.embedding.parameters())  # type: ignore[union-attr, operator]
    return fully_shard(model, mesh=mesh, ignored_params=ignored)


def backward_prefetched(model: nn.Module) -> Any:
    """Prefetch the weights of two layers, in the forward and in the backward."""
    model = sharded(model, mesh=meshed())
    layers: list[Any] = list(model.layers)  # type: ignore[arg-type]
    for number, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[number + 1 : number + 3])
        layer.set_modules_to_backward_prefetch(layers[max(0, number - 2) : number][::-1])
    return model


def hooked(model: nn.Module) -> nn.Module:
    """Sum gradients as soon as they are ready, by hooks of the parameters, as Horovod does."""

    def reduce(parameter: Tensor) -> None:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, async_op=True).wait()
        parameter.grad /= dist.get_world_size()

    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
        parameter.register_post_accumulate_grad_hook(reduce)
    return model


def local_sgd(model: nn.Module) -> Any:
    """Use DDP without reducing gradients, and average the parameters periodically."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook

    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(
        PostLocalSGDState(None, dist.new_subgroups(2)[0], start_localSGD_iter=1), post_localSGD_hook
    )
    return wrapped


def hook_of(model: nn.Module, name: str, around: str = "") -> Any:
    """Use DDP with one of torch's hooks, optionally inside another."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    wrapped = nn.parallel.DistributedDataParallel(model)
    hook = getattr(default_hooks, name)
    wrapped.register_comm_hook(None, getattr(default_hooks, around)(hook) if around else hook)
    return wrapped


def own_hook(model: nn.Module) -> Any:
    """Use DDP with a custom hook."""

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        half = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
        work = dist.all_reduce(half, async_op=True).get_future()
        return work.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, hook)
    return wrapped


def averaging(parameters: Any) -> torch.optim.Optimizer:
    """Use ``PostLocalSGDOptimizer`` with periodic averages."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    inner = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    return PostLocalSGDOptimizer(inner, PeriodicModelAverager(period=1, warmup_steps=0))  # type: ignore[no-untyped-call]


def hsdp_tp(model: nn.Module, parallel: Callable[..., nn.Module]) -> Any:
    """Replicate shards of tensor parallel layers: HSDP and tensor parallelism on a mesh of three axes."""
    from torch.distributed.device_mesh import init_device_mesh

    names = ("replicate", "shard", "tp")
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 4, 2), mesh_dim_names=names)
    return sharded(parallel(model, mesh["tp"]), mesh=mesh["replicate", "shard"])


def apart(model: nn.Module) -> Any:
    """Keep experts on their rank, which FSDP is told to ignore, and shard the rest."""
    from torch.distributed.fsdp import fully_shard

    layers: Any = model.layers
    mesh = meshed()
    for layer in layers:
        fully_shard(layer, mesh=mesh, ignored_params=set(layer.feed_forward.experts.parameters()))
    ignored = {p for layer in layers for p in layer.feed_forward.experts.parameters()}
    return fully_shard(model, mesh=mesh, ignored_params=ignored)


def head_parallel(model: nn.Module) -> nn.Module:
    """Split the head by columns; its logits stay split."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    plan = {"output": ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False)}
    return parallelize_module(model, meshed(), plan)
