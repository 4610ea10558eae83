"""Training steps of distributed programs, in the styles of different users, each with its own collectives."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

Mark = Callable[[str], None]
Objects = dict[str, Any]


def loss_of(model: Any, inputs: Tensor, targets: Tensor, parts: int = 1) -> Tensor:
    """Return the loss, divided by the number of micro-batches."""
    loss = F.cross_entropy(model(inputs).flatten(0, -2).float(), targets.flatten())
    return loss / parts if parts > 1 else loss


def differentiated(mark: Mark, make: Callable[[], Tensor]) -> Tensor:
    """Run the forward that makes a loss, and its backward, and return the loss."""
    mark("forward")
    loss = make()
    mark("backward")
    loss.backward()
    return loss


def updated(objects: Objects) -> None:
    objects["optimizer"].step()
    objects["optimizer"].zero_grad()


def averaged(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Run a step with an exponential moving average, barriers, objects, its own group, and gathered losses."""
    loss = differentiated(mark, partial(loss_of, model, inputs, targets))
    mark("optimizer")
    updated(objects)
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


def contrasted(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
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
    updated(objects)


def accumulated(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Run micro-batches under ``no_sync``, then sum gradients by hand in one flat buffer, and scale them."""
    parts = list(zip(inputs.chunk(2), targets.chunk(2)))
    for number, (x, y) in enumerate(parts):
        last = number == len(parts) - 1
        with nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync():
            differentiated(mark, partial(loss_of, model, x, y, len(parts)))
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
    updated(objects)


def joined(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Run a step inside ``Join``, as uneven inputs need it."""
    from torch.distributed.algorithms.join import Join

    with Join([model]):
        differentiated(mark, partial(loss_of, model, inputs, targets))
        mark("optimizer")
        updated(objects)


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
            loss = loss_of(model, inputs, targets, 2)
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
    objects["optimizer"].step(lambda: lit.closure((inputs, targets), mark))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {"rank": dist.get_rank(), "loss": 1.0})
    dist.monitored_barrier(timeout=timedelta(seconds=30))


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
    sampler.set_epoch(0)
    model.train()
    for x, y in torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler):
        differentiated(mark, partial(loss_of, model, x, y))
        mark("optimizer")
        updated(objects)


def tuned(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Use FSDP2's options: weights kept over micro-batches and gathered by hand, another divisor of gradients."""
    model.set_requires_all_reduce(True)
    model.set_gradient_divide_factor(float(dist.get_world_size()))  # gloo supports no other factor
    for last in (False, True):
        model.set_is_last_backward(last)
        model.set_requires_gradient_sync(last)
        model.set_reshard_after_backward(last)
        model.unshard(async_op=True).wait()
        differentiated(mark, partial(loss_of, model, inputs, targets))
    mark("optimizer")
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    objects["norm"] = norm.full_tensor().item() if hasattr(norm, "full_tensor") else float(norm)
    updated(objects)


def by_pairs(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark, batched: bool = False) -> None:
    """Gossip: average each rank's weights with those of its neighbour, by sends."""
    differentiated(mark, partial(loss_of, model, inputs, targets))
    mark("optimizer")
    updated(objects)
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
    updated(objects)


def by_shards(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Hand-written ZeRO: reduce-scatter flat gradients, step a shard, and gather the weights into one tensor."""
    world, rank = dist.get_world_size(), dist.get_rank()
    parameters = list(model.parameters())
    differentiated(mark, partial(loss_of, model, inputs, targets))
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


def gathered_objects(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Use the other collectives of scripts: reduce, gather, scatter, lists, objects, separate groups."""
    world, rank = dist.get_world_size(), dist.get_rank()
    value = differentiated(mark, partial(loss_of, model, inputs, targets)).detach()
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
    updated(objects)


def split_loss(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Split logits over ranks, and compute the loss on the parts."""
    from torch.distributed.tensor.parallel import loss_parallel

    with loss_parallel():
        differentiated(mark, lambda: F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()))
    mark("optimizer")
    updated(objects)


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
