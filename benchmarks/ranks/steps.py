"""Training steps of distributed programs, in the styles of different users, each with its own collectives."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor
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


def by_pairs(model: Any, inputs: Tensor, targets: Tensor, objects: Objects, mark: Mark) -> None:
    """Gossip: average each rank's weights with those of its neighbour, by sends."""
    differentiated(mark, partial(loss_of, model, inputs, targets))
    mark("optimizer")
    updated(objects)
    other = dist.get_rank() ^ 1
    with torch.no_grad():
        for parameter in model.parameters():
            theirs = torch.empty_like(parameter)
            sends = [dist.P2POp(dist.isend, parameter.data, other), dist.P2POp(dist.irecv, theirs, other)]
            works = dist.batch_isend_irecv(sends)
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
