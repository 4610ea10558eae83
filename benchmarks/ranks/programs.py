"""Cases of :mod:`benchmarks.ranks.cases` written as users write them, with explicit communication."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from benchmarks.ranks.models import VOCABULARY, WIDTH, FeedForward

Mark = Callable[[str], None]


class _Copied(torch.autograd.Function):
    """Megatron's f: the identity, whose gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class _Summed(torch.autograd.Function):
    """Megatron's g: the sum, whose gradient is passed on unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Megatron(nn.Module):
    """A feed-forward network, split by columns, then by rows."""

    def __init__(self) -> None:
        super().__init__()
        part = 3 * WIDTH // dist.get_world_size()
        self.w1, self.w3 = (nn.Linear(WIDTH, part, bias=False) for _ in range(2))
        self.w2 = nn.Linear(part, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = _Copied.apply(x)
        out: Tensor = _Summed.apply(self.w2(F.silu(self.w1(x)) * self.w3(x)))
        return out


def megatron(model: nn.Module) -> nn.Module:
    layers: Any = model.layers
    for layer in layers:
        layer.feed_forward = Megatron()
    return model


class _SplitEntropy(torch.autograd.Function):
    """Cross-entropy of logits that are split over ranks by vocabulary, as in Megatron."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        most = logits.max(-1)[0]
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        logits = logits - most.unsqueeze(-1)
        first = dist.get_rank() * logits.shape[-1]
        elsewhere = (targets < first) | (targets >= first + logits.shape[-1])
        inside = (targets - first).masked_fill(elsewhere, 0)
        chosen = logits[torch.arange(len(targets), device=logits.device), inside].clone()
        chosen = chosen.masked_fill(elsewhere, 0.0)
        dist.all_reduce(chosen)
        shares = logits.exp()
        total = shares.sum(-1)
        dist.all_reduce(total)
        shares.div_(total.unsqueeze(-1))
        ctx.save_for_backward(shares, elsewhere, inside)
        return (total.log() - chosen).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        shares, elsewhere, inside = ctx.saved_tensors
        rows = torch.arange(len(inside), device=shares.device)
        shares[rows, inside] -= (~elsewhere).to(shares.dtype)
        return shares * (grad / len(inside)), None


class SplitHead(nn.Module):
    """A Llama whose head is split by vocabulary; it returns its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        model.output = nn.Linear(WIDTH, VOCABULARY // dist.get_world_size(), bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.model(tokens)
        out: Tensor = _SplitEntropy.apply(logits.flatten(0, 1).float(), tokens.flatten())
        return out


def compressed(model: nn.Module, hook: str = "fp16") -> nn.Module:
    """Use DDP with gradients sent in half precision, or as low-rank products."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    wrapped = nn.parallel.DistributedDataParallel(model)
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        wrapped.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))
    return wrapped


class Adapted(nn.Module):
    """A frozen linear layer and its adapter."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 8, bias=False)
        self.up = nn.Linear(8, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapted(model: nn.Module) -> nn.Module:
    """Add adapters to the attention's projections, and freeze everything else."""
    model.requires_grad_(False)
    layers: Any = model.layers
    for layer in layers:
        for name in ("wq", "wk", "wv", "wo"):
            setattr(layer.attention, name, Adapted(getattr(layer.attention, name)))
    return model


def by_hand(model: nn.Module) -> nn.Module:
    """Split weights by rows as distributed tensors without ``parallelize_module``; each product gathers them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def split(_: str, module: nn.Module, __: Any) -> None:
        if isinstance(module, FeedForward):
            for layer, where in ((module.w1, 0), (module.w3, 0), (module.w2, 1)):
                layer.weight = nn.Parameter(distribute_tensor(layer.weight, mesh, [Shard(where)]))

    def replicated(_: nn.Module, inputs: Any, __: Any) -> Any:
        from torch.distributed.tensor import DTensor

        return (DTensor.from_local(inputs[0], mesh, [Replicate()]),)

    def taken(_: nn.Module, output: Any, __: Any) -> Any:
        return output.redistribute(placements=[Replicate()]).to_local()

    layers: Any = model.layers
    for layer in layers:
        distribute_module(layer.feed_forward, mesh, split, replicated, taken)
    return model


def averaged(model: Any, inputs: Tensor, targets: Tensor, objects: dict[str, Any], mark: Mark) -> None:
    """Run a step with an exponential moving average, barriers, objects, its own group, and gathered losses."""
    mark("forward")
    loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
    mark("backward")
    loss.backward()
    mark("optimizer")
    objects["optimizer"].step()
    objects["optimizer"].zero_grad()
    if "average" not in objects:
        objects["average"] = copy.deepcopy(model.module).requires_grad_(False)
        objects["group"] = dist.new_group(list(range(dist.get_world_size())))
    with torch.no_grad():
        for mean, parameter in zip(objects["average"].parameters(), model.module.parameters()):
            mean.lerp_(parameter, 0.1)
    losses = [torch.zeros_like(loss) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss.detach(), group=objects["group"])
    dist.barrier()
    dist.broadcast(losses[0], 0, group=objects["group"])
    mark("end")


def contrasted(model: Any, inputs: Tensor, targets: Tensor, objects: dict[str, Any], mark: Mark) -> None:
    """Run a contrastive step: the embeddings of all ranks are gathered, with their gradients."""
    from torch.distributed.nn.functional import all_gather

    mark("forward")
    first, second = (F.normalize(model(x).mean(1).float(), dim=-1) for x in (inputs, inputs.flip(0)))
    everyone = torch.cat(list(all_gather(second)))
    places = torch.arange(len(first), device=first.device) + dist.get_rank() * len(first)
    loss = F.cross_entropy(first @ everyone.T / 0.1, places)
    mark("backward")
    loss.backward()
    mark("optimizer")
    objects["optimizer"].step()
    objects["optimizer"].zero_grad()
    mark("end")


def accumulated(model: Any, inputs: Tensor, targets: Tensor, objects: dict[str, Any], mark: Mark) -> None:
    """Run micro-batches under ``no_sync``, then sum gradients by hand in one flat buffer, and scale them."""
    parts = list(zip(inputs.chunk(2), targets.chunk(2)))
    for number, (x, y) in enumerate(parts):
        last = number == len(parts) - 1
        with nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync():
            mark("forward")
            loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten()) / len(parts)
            mark("backward")
            loss.backward()
            del loss
    mark("optimizer")
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not hasattr(model, "no_sync"):
        flat = torch._utils._flatten_dense_tensors(gradients)
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for grad, summed in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients)):
            grad.copy_(summed)
        del flat, summed, grad
    del gradients
    objects["optimizer"].step()
    objects["optimizer"].zero_grad()
    mark("end")


def joined(model: Any, inputs: Tensor, targets: Tensor, objects: dict[str, Any], mark: Mark) -> None:
    """Run a step inside ``Join``, as uneven inputs need it."""
    from torch.distributed.algorithms.join import Join

    with Join([model]):
        mark("forward")
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        mark("backward")
        loss.backward()
        mark("optimizer")
        objects["optimizer"].step()
        objects["optimizer"].zero_grad()
        del loss
    mark("end")
