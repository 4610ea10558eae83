"""Training scripts in the styles of different users, for :mod:`benchmarks.ranks.cases`."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from benchmarks.ranks.wraps import (
    averaging,
    backward_prefetched,
    bunched,
    env_main,
    head_parallel,
    hook_of,
    hooked,
    local_sgd,
    meshed,
    own_hook,
    restored,
    sharded,
)

Mark = Callable[[str], None]
Objects = dict[str, Any]


def loss_of(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, -2).float(), targets.flatten())


def finish(objects: Objects, mark: Mark) -> None:
    objects["optimizer"].step()
    objects["optimizer"].zero_grad()
    mark("end")


def nano(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Train as nanoGPT does: micro-batches, the wrapper's flag set by hand, autocast, scaler, clipping, schedule."""
    scaler = objects.setdefault("scaler", torch.amp.GradScaler("cpu", enabled=False))
    number = objects["number"] = objects.get("number", 0) + 1
    for group in objects["optimizer"].param_groups:
        group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * number / 100))
    for micro in range(2):
        model.require_backward_grad_sync = micro == 1
        mark("forward")
        with torch.amp.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, inputs, targets) / 2
        mark("backward")
        scaler.scale(loss).backward()
    mark("optimizer")
    scaler.unscale_(objects["optimizer"])
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(objects["optimizer"])
    scaler.update()
    objects["optimizer"].zero_grad(set_to_none=True)
    if dist.get_rank() == 0:
        objects["logged"] = loss.item() * 2
    mark("end")


class Lit:
    """A trainer with hooks and logged values, as in Lightning."""

    def __init__(self, model: Any, objects: Objects) -> None:
        self.model, self.objects = model, objects
        self.logged: dict[str, Tensor] = {}

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = loss_of(self.model, *batch)
        self.log("train_loss", loss)
        return loss

    def log(self, name: str, value: Tensor) -> None:
        reduced = value.detach().clone()
        dist.all_reduce(reduced)
        self.logged[name] = reduced / dist.get_world_size()

    def closure(self, batch: tuple[Tensor, Tensor], mark: Mark) -> Tensor:
        mark("forward")
        loss = self.training_step(batch)
        self.objects["optimizer"].zero_grad()
        mark("backward")
        loss.backward()
        mark("optimizer")
        return loss


def lightning(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Step the optimizer with a closure, and gather each rank's loss as an object."""
    lit = objects.setdefault("lit", Lit(model, objects))
    objects["optimizer"].step(partial(lit.closure, (inputs, targets), mark))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {"rank": dist.get_rank(), "loss": 1.0})
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    mark("end")


class Numbers(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """A dataset with this many batches of samples."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return 4 * dist.get_world_size()

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index % len(self.inputs)], self.targets[index % len(self.targets)]


def sampled(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Run an epoch of a ``DataLoader`` with a ``DistributedSampler``."""
    data = Numbers(inputs, targets)
    sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
    loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
    sampler.set_epoch(0)
    model.train()
    for x, y in loader:
        mark("forward")
        loss = loss_of(model, x, y)
        mark("backward")
        loss.backward()
        mark("optimizer")
        objects["optimizer"].step()
        objects["optimizer"].zero_grad()
    mark("end")


def tuned(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Use FSDP2's options: weights kept over micro-batches and gathered by hand, another divisor of gradients."""
    model.set_requires_all_reduce(True)
    model.set_gradient_divide_factor(float(dist.get_world_size()))  # gloo supports no other factor
    for last in (False, True):
        model.set_is_last_backward(last)
        model.set_requires_gradient_sync(last)
        model.set_reshard_after_backward(last)
        handle = model.unshard(async_op=True)
        handle.wait()
        mark("forward")
        loss = loss_of(model, inputs, targets)
        mark("backward")
        loss.backward()
        del loss
    mark("optimizer")
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    objects["norm"] = norm.full_tensor().item() if hasattr(norm, "full_tensor") else float(norm)
    finish(objects, mark)


def by_pairs(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark, batched: bool = False) -> None:
    """Gossip: average each rank's weights with those of its neighbour, by sends."""
    mark("forward")
    loss = loss_of(model, inputs, targets)
    mark("backward")
    loss.backward()
    mark("optimizer")
    objects["optimizer"].step()
    objects["optimizer"].zero_grad()
    other = dist.get_rank() ^ 1
    with torch.no_grad():
        for parameter in model.parameters():
            theirs = torch.empty_like(parameter)
            if batched:
                sends = [dist.P2POp(dist.isend, parameter.data, other), dist.P2POp(dist.irecv, theirs, other)]
                works = dist.batch_isend_irecv(sends)
            else:
                works = [dist.isend(parameter.data, other), dist.irecv(theirs, other)]
            for work in works:
                work.wait()
            parameter.add_(theirs).mul_(0.5)
        del theirs, works
    mark("end")


def in_turn(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Run the embedding on even ranks and the layers on odd ones, sending activations and gradients."""
    rank = dist.get_rank()
    mark("forward")
    if rank % 2 == 0:
        x = model.embedding(inputs)
        dist.send(x.detach(), rank + 1)
        gradient = torch.empty_like(x)
        mark("backward")
        dist.recv(gradient, rank + 1)
        x.backward(gradient)
        del x, gradient
    else:
        x = torch.empty(*inputs.shape, model.embedding.embedding_dim)
        dist.recv(x, rank - 1)
        x.requires_grad_()
        y = x
        for layer in model.layers:
            y = layer(y)
        loss = F.cross_entropy(model.output(model.norm(y)).flatten(0, -2), targets.flatten())
        mark("backward")
        loss.backward()
        dist.send(x.grad, rank - 1)
        del x, y, loss
    mark("optimizer")
    finish(objects, mark)


def by_shards(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Hand-written ZeRO: reduce-scatter flat gradients, step a shard, and gather the weights into one tensor."""
    world, rank = dist.get_world_size(), dist.get_rank()
    parameters = list(model.parameters())
    mark("forward")
    loss = loss_of(model, inputs, targets)
    mark("backward")
    loss.backward()
    del loss
    mark("optimizer")
    with torch.no_grad():
        flat = torch.cat([p.grad.flatten() for p in parameters])
        padding = -flat.numel() % world
        flat = F.pad(flat, (0, padding))
        shard = flat.new_empty(flat.numel() // world)
        dist.reduce_scatter_tensor(shard, flat, op=dist.ReduceOp.SUM)
        moment = objects.setdefault("moment", torch.zeros_like(shard))
        moment.lerp_(shard, 0.1)
        weights = F.pad(torch.cat([p.flatten() for p in parameters]), (0, padding))
        own = weights.chunk(world)[rank].sub(moment, alpha=1e-3)
        dist.all_gather_into_tensor(weights, own)
        pieces = weights.split([*(p.numel() for p in parameters), padding])
        for p, new in zip(parameters, pieces):
            p.copy_(new.view_as(p))
            p.grad = None
        del flat, shard, weights, own, pieces, new, p
    mark("end")


def gathered_objects(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Use the other collectives of scripts: reduce, gather, scatter, lists, objects, separate groups."""
    world, rank = dist.get_world_size(), dist.get_rank()
    mark("forward")
    loss = loss_of(model, inputs, targets)
    mark("backward")
    loss.backward()
    value = loss.detach()
    del loss
    mark("optimizer")
    dist.reduce(value, 0, op=dist.ReduceOp.MAX)
    parts = [torch.zeros_like(value) for _ in range(world)] if rank == 0 else None
    dist.gather(value, parts, dst=0)
    dist.scatter(value, parts, src=0)
    settings = [{"lr": 1e-3}] if rank == 0 else [None]
    dist.broadcast_object_list(settings, src=0)
    everyone = [None] * world if rank == 0 else None
    dist.gather_object(rank, everyone, dst=0)
    if "groups" not in objects:
        objects["groups"] = dist.new_subgroups(2)
    dist.all_reduce(value, group=objects["groups"][0])
    pieces = list(torch.zeros(world, 8).unbind())
    dist.reduce_scatter(torch.zeros(8), pieces)
    dist.all_to_all(pieces, [torch.ones(8) for _ in range(world)]) if dist.get_backend() != "gloo" else None
    finish(objects, mark)


def split_loss(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Split logits over ranks, and compute the loss on the parts."""
    from torch.distributed.tensor.parallel import loss_parallel

    with loss_parallel():
        mark("forward")
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        mark("backward")
        loss.backward()
    del loss
    mark("optimizer")
    finish(objects, mark)


def checked(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Stop the loop by a flag that every rank must set, and check that gradients are finite."""
    mark("forward")
    loss = loss_of(model, inputs, targets)
    stop = torch.tensor([0], dtype=torch.int32)
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    mark("backward")
    loss.backward()
    mark("optimizer")
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    dist.all_reduce(norm)
    if not torch.isfinite(loss):
        raise ValueError("the loss is not finite")
    nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
    if stop.item() == 0:
        objects["optimizer"].step()
    objects["optimizer"].zero_grad()
    mark("end")


AVERAGED = {"optimizer": averaging}
SCRIPTS: dict[str, dict[str, Any]] = {
    "nano": {"wrap": nn.parallel.DistributedDataParallel, "loop": nano},
    "lightning": {"wrap": nn.parallel.DistributedDataParallel, "loop": lightning},
    "lightning fsdp": {"wrap": lambda model: sharded(model, mesh=meshed()), "loop": lightning},
    "sampler": {"wrap": nn.parallel.DistributedDataParallel, "loop": sampled},
    "torchrun": {"wrap": env_main},
    "full states": {"wrap": restored},
    "sharded states": {"wrap": partial(restored, which="sharded")},
    "bunched": {"wrap": bunched},
    "prefetch both": {"wrap": backward_prefetched},
    "fsdp switches": {"wrap": lambda model: sharded(model, mesh=meshed()), "loop": tuned},
    "fsdp fused": {
        "wrap": lambda model: sharded(model, mesh=meshed()),
        "optimizer": partial(torch.optim.AdamW, fused=True),
        "clip": True,
    },
    "fsdp foreach": {
        "wrap": lambda model: sharded(model, mesh=meshed()),
        "optimizer": partial(torch.optim.AdamW, foreach=True),
        "clip": True,
    },
    "fsdp plain": {"wrap": sharded, "optimizer": partial(torch.optim.AdamW, foreach=False)},
    "ddp fused": {"wrap": nn.parallel.DistributedDataParallel, "optimizer": partial(torch.optim.AdamW, fused=True)},
    "hooks": {"wrap": hooked},
    "gossip": {"wrap": lambda model: model, "loop": by_pairs},
    "gossip batched": {"wrap": lambda model: model, "loop": partial(by_pairs, batched=True)},
    "two stages": {"wrap": lambda model: model, "loop": in_turn},
    "zero by hand": {"wrap": lambda model: model, "loop": by_shards},
    "collectives": {"wrap": nn.parallel.DistributedDataParallel, "loop": gathered_objects},
    "local sgd": {"wrap": local_sgd},
    "ddp allreduce hook": {"wrap": partial(hook_of, name="allreduce_hook")},
    "ddp wrapped hook": {"wrap": partial(hook_of, name="allreduce_hook", around="fp16_compress_wrapper")},
    "ddp own hook": {"wrap": own_hook},
    "averaging": {"wrap": nn.parallel.DistributedDataParallel, **AVERAGED},
    "loss parallel": {"wrap": head_parallel, "loop": split_loss},
    "checked": {"wrap": nn.parallel.DistributedDataParallel, "loop": checked},
}
