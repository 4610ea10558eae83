"""Random steps for :mod:`benchmarks.ranks_drawn_cases`, with what users do in a step besides training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from benchmarks.ranks_cases import _alone, _clip

Mark = Callable[[str], None]


class Act(NamedTuple):
    """An action besides training: ``prepare`` returns its state, ``run`` uses it after the backward."""

    run: Callable[[Any, Any, Tensor, Tensor], Any]
    prepare: Callable[[Any], Any] = lambda model: None


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _copies(model: nn.Module) -> list[Tensor]:
    return [_local(parameter.detach()).clone() for parameter in model.parameters()]


@torch.no_grad()
def _average(copies: list[Tensor], model: nn.Module, loss: Tensor, output: Tensor) -> None:
    for average, parameter in zip(copies, model.parameters()):
        average.lerp_(_local(parameter.detach()), 0.1)


def _log_loss(_: None, model: nn.Module, loss: Tensor, output: Tensor) -> float:
    shown = loss.detach().clone()
    dist.all_reduce(shown, op=dist.ReduceOp.AVG)
    return shown.item()


def _gather_outputs(_: None, model: nn.Module, loss: Tensor, output: Tensor) -> Tensor:
    parts = [torch.empty_like(output) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, output.detach().contiguous())
    return torch.cat(parts).argmax(-1)


def _gather_at_once(_: None, model: nn.Module, loss: Tensor, output: Tensor) -> Tensor:
    whole = output.new_empty(dist.get_world_size() * output.shape[0], *output.shape[1:])
    dist.all_gather_into_tensor(whole, output.detach().contiguous())
    return whole.softmax(-1)


def _count(total: Tensor, model: nn.Module, loss: Tensor, output: Tensor) -> None:
    right = (output.argmax(-1) == 1).sum()
    total += right
    dist.all_reduce(total)


def _norms(_: None, model: nn.Module, loss: Tensor, output: Tensor) -> list[float]:
    return [_local(p.grad).norm().item() for p in model.parameters() if p.grad is not None]


def _objects(_: None, model: nn.Module, loss: Tensor, output: Tensor) -> None:
    objects: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, {"rank": dist.get_rank(), "shape": tuple(output.shape)})
    dist.barrier()


def _state(_: None, model: nn.Module, loss: Tensor, output: Tensor) -> Any:
    return model.state_dict()


def _full_state(_: None, model: nn.Module, loss: Tensor, output: Tensor) -> Any:
    from torch.distributed.checkpoint import state_dict

    return state_dict.get_model_state_dict(model, options=state_dict.StateDictOptions(full_state_dict=True))


def _penalty(_: None, model: nn.Module, loss: Tensor, output: Tensor) -> Tensor:
    return torch.stack([_local(p.detach()).float().square().sum() for p in model.parameters()]).sum()


ACTS = {
    "average": Act(_average, _copies),
    "log loss": Act(_log_loss),
    "gather outputs": Act(_gather_outputs),
    "gather at once": Act(_gather_at_once),
    "count": Act(_count, lambda model: torch.zeros((), dtype=torch.long)),
    "norms": Act(_norms),
    "objects": Act(_objects),
    "state": Act(_state),
    "full state": Act(_full_state),
    "penalty": Act(_penalty),
}


@dataclass(frozen=True)
class Step:
    """The options of a step."""

    batch: int
    micro_batches: int
    is_alone: bool
    is_clipped: bool
    is_autocast: bool
    keeps_gradients: bool
    is_evaluated: bool
    clears_first: bool
    acts: tuple[str, ...]

    @classmethod
    def draw(cls, draw: Random) -> Step:
        often, seldom = (lambda: draw.random() < 0.5), (lambda: draw.random() < 0.2)
        return cls(
            batch=draw.choice((1, 3, 4, 8)),
            micro_batches=draw.choice((1, 1, 2, 3)),
            is_alone=often(),
            is_clipped=seldom(),
            is_autocast=seldom(),
            keeps_gradients=seldom(),
            is_evaluated=seldom(),
            clears_first=seldom(),
            acts=tuple(draw.sample(sorted(ACTS), draw.choice((0, 0, 1, 2)))),
        )


def run_step(step: Step, model: Any, inputs: Tensor, targets: Tensor, objects: dict[str, Any], mark: Mark) -> None:
    """Run one step, with its actions."""
    optimizer = objects["optimizer"]
    can_be_alone = step.is_alone and (hasattr(model, "no_sync") or hasattr(model, "set_requires_gradient_sync"))
    mark("forward")
    if step.clears_first:
        optimizer.zero_grad(set_to_none=not step.keeps_gradients)
    if step.is_evaluated:
        with torch.no_grad():
            _loss(step, model.eval(), inputs, targets)
        model.train()
    for number in range(step.micro_batches):
        is_last = number == step.micro_batches - 1
        with nullcontext() if is_last or not can_be_alone else _alone(model):
            mark("forward")
            loss, output = _loss(step, model, inputs, targets)
            mark("backward")
            loss.backward()
    for act in step.acts:
        ACTS[act].run(objects[act], model, loss, output)
    del output
    mark("optimizer")
    if step.is_clipped:
        _clip(model)
    optimizer.step()
    if not step.clears_first:
        optimizer.zero_grad(set_to_none=not step.keeps_gradients)
    mark("end")


def _loss(step: Step, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", torch.bfloat16, enabled=step.is_autocast):
        out = model(inputs)
    return F.cross_entropy(out.flatten(0, -2).float(), targets.flatten()), out
