"""How training programs wrap and shard their models, each as its users write it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from benchmarks.ranks.models import FeedForward, Layer, Stage
from benchmarks.ranks.parallel import Adapted, Experts, Megatron, by_bincount

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


def titan(model: Any) -> Any:
    """Apply tensor parallelism, then checkpoints, then ``fully_shard``, in torchtitan's order."""
    mesh = paired("dp", "tp")
    return checkpointed(partial(fsdp, mesh=mesh["dp"]), tensor_parallel(model, mesh["tp"]))


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


def head_parallel(model: Any) -> Any:
    """Split the head by columns; its logits stay split."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    plan = {"output": ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False)}
    return parallelize_module(model, meshed(), plan)


def by_hand(model: Any) -> Any:
    """Split weights by rows as distributed tensors without ``parallelize_module``; each product gathers them."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

    mesh = meshed()

    def split(_: str, module: nn.Module, __: Any) -> None:
        if isinstance(module, FeedForward):
            for layer, where in ((module.w1, 0), (module.w3, 0), (module.w2, 1)):
                layer.weight = nn.Parameter(distribute_tensor(layer.weight, mesh, [Shard(where)]))

    def replicated(_: nn.Module, inputs: Any, __: Any) -> Any:
        return (DTensor.from_local(inputs[0], mesh, [Replicate()]),)

    def taken(_: nn.Module, output: Any, __: Any) -> Any:
        return output.redistribute(placements=[Replicate()]).to_local()

    for layer in model.layers:
        distribute_module(layer.feed_forward, mesh, split, replicated, taken)
    return model


def prefetched(model: Any) -> Any:
    """Apply ``fully_shard``, and prefetch each layer's weights while the previous layer runs."""
    model = fsdp(model)
    for layer, following in pairwise(model.layers):
        layer.set_modules_to_forward_prefetch([following])
    return model


def backward_prefetched(model: Any) -> Any:
    """Prefetch the weights of two layers, in the forward and in the backward."""
    model = fsdp(model)
    layers = list(model.layers)
    for number, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[number + 1 : number + 3])
        layer.set_modules_to_backward_prefetch(layers[max(0, number - 2) : number][::-1])
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


def apart(model: Any) -> Any:
    """Keep experts on their rank, which FSDP is told to ignore, and shard the rest."""
    from torch.distributed.fsdp import fully_shard

    mesh = meshed()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, ignored_params=set(layer.feed_forward.experts.parameters()))
    ignored = {p for layer in model.layers for p in layer.feed_forward.experts.parameters()}
    return fully_shard(model, mesh=mesh, ignored_params=ignored)


def over_parts(kind: Any, model: Any) -> Any:
    """Replace attention by a class that works on a rank's part of the sequence, and use DDP."""
    for layer in model.layers:
        layer.attention.__class__ = kind
    return ddp(model)


def megatron(model: Any) -> Any:
    for layer in model.layers:
        layer.feed_forward = Megatron()
    return model


def adapted(wrap: Wrap, model: Any) -> Any:
    """Add adapters to the attention's projections, and freeze everything else."""
    model.requires_grad_(False)
    for layer in model.layers:
        for name in ("wq", "wk", "wv", "wo"):
            setattr(layer.attention, name, Adapted(getattr(layer.attention, name)))
    return wrap(model)


def restored(model: Any, which: str = "full") -> Any:
    """Shard a model on ``meta``, materialise it on the device, and load a state dict."""
    from torch.distributed.checkpoint import state_dict as states

    whole = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    model = fsdp(model.to("meta"))
    model.to_empty(device="cpu")
    if which == "full":
        options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=False)
        states.set_model_state_dict(model, whole, options=options)
    else:
        model.load_state_dict(states.get_model_state_dict(model))
    return model


def env_main(model: Any) -> Any:
    """Read what ``torchrun`` sets, create a group, and use DDP."""
    rank, local, world = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=rank, world_size=world)
    assert dist.is_available() and local <= rank
    torch.manual_seed(1234 + dist.get_rank())
    model = model.to(torch.device("cpu"))
    dist.barrier()
    return ddp(model, broadcast_buffers=False, find_unused_parameters=False)


def compressed(model: Any, name: str, around: str = "") -> Any:
    """Use DDP with one of torch's hooks, optionally inside another."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    wrapped, hook = ddp(model), getattr(default_hooks, name)
    wrapped.register_comm_hook(None, getattr(default_hooks, around)(hook) if around else hook)
    return wrapped


def low_rank(model: Any) -> Any:
    """Use DDP with gradients sent as low-rank products."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    wrapped = ddp(model)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return wrapped


def local_sgd(model: Any) -> Any:
    """Use DDP without reducing gradients, and average the parameters periodically."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook

    wrapped = ddp(model)
    state = PostLocalSGDState(None, dist.new_subgroups(2)[0], start_localSGD_iter=1)
    wrapped.register_comm_hook(state, post_localSGD_hook)
    return wrapped


def own_hook(model: Any) -> Any:
    """Use DDP with a custom hook."""

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        half = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
        work = dist.all_reduce(half, async_op=True).get_future()
        return work.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    wrapped = ddp(model, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, hook)
    return wrapped


def hooked(model: Any) -> Any:
    """Sum gradients as soon as they are ready, by hooks of the parameters, as Horovod does."""

    def reduce(parameter: Tensor) -> None:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, async_op=True).wait()
        parameter.grad /= dist.get_world_size()

    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
        parameter.register_post_accumulate_grad_hook(reduce)
    return model


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


def averaging(parameters: Any) -> torch.optim.Optimizer:
    """Use ``PostLocalSGDOptimizer`` with periodic averages."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    inner = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    return PostLocalSGDOptimizer(inner, PeriodicModelAverager(period=1, warmup_steps=0))  # type: ignore[no-untyped-call]
