"""Steps that keep tensors outside their model."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from torchsummary_plus.live.packed import graph_constants

ROWS, WIDTH = 128, 64

Step = Callable[..., Any]

SHIFTS = torch.randn(2 * ROWS, WIDTH)
ONES = torch.ones(ROWS, WIDTH)
COUNT = 0


def squared(y: Tensor) -> Tensor:
    return y.float().pow(2).mean()


def target_network(model: nn.Module) -> tuple[Step, Any]:
    target, optimizer = copy.deepcopy(model), torch.optim.Adam(model.parameters())

    def step(model: nn.Module, x: Tensor) -> None:
        with torch.no_grad():
            wanted = target(x)
        optimizer.zero_grad()
        squared(model(x) - wanted).backward()
        optimizer.step()
        for mine, own in zip(model.parameters(), target.parameters()):
            own.data.lerp_(mine.data, 0.01)

    return step, (target, optimizer)


def teacher(model: nn.Module) -> tuple[Step, Any]:
    wise = copy.deepcopy(model).eval().requires_grad_(False)

    def step(model: nn.Module, x: Tensor) -> None:
        squared(model(x) - wise(x)).backward()
        model.zero_grad()

    return step, wise


def beside(wise: Any, *kept: Tensor) -> tuple[Step, Any]:
    """A step whose loss compares the model with another one, which keeps tensors besides its own."""

    def step(model: nn.Module, x: Tensor) -> None:
        with torch.no_grad():
            wanted = wise(x)
        squared(model(x) - wanted).backward()
        model.zero_grad()

    return step, (wise, *kept)


def scripted_teacher(model: nn.Module) -> tuple[Step, Any]:
    return beside(torch.jit.script(copy.deepcopy(model).eval()))


def frozen_teacher(model: nn.Module) -> tuple[Step, Any]:
    return beside(torch.jit.freeze(torch.jit.script(copy.deepcopy(model).eval())))


def traced_teacher(model: nn.Module) -> tuple[Step, Any]:
    return beside(torch.jit.trace(copy.deepcopy(model).eval(), ONES), ONES)


def master_weights(model: nn.Module) -> tuple[Step, Any]:
    pairs = tuple((p, nn.Parameter(p.detach().float())) for p in model.bfloat16().parameters())
    optimizer = torch.optim.Adam([master for _, master in pairs])

    def step(model: nn.Module, x: Tensor) -> None:
        squared(model(x.bfloat16())).backward()
        for parameter, master in pairs:
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        optimizer.zero_grad()
        for parameter, master in pairs:
            parameter.data.copy_(master.data)

    return step, (pairs, optimizer)


def averages(model: nn.Module) -> tuple[Step, Any]:
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(model: nn.Module, x: Tensor) -> None:
        squared(model(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(model)
        for name, parameter in model.named_parameters():
            average[name].mul_(0.9).add_(parameter.detach(), alpha=0.1)

    return step, (average, averaged, optimizer)


def replay_buffer(model: nn.Module) -> tuple[Step, Any]:
    buffer, place = torch.randn(1024, WIDTH), torch.zeros(1, dtype=torch.long)

    def step(model: nn.Module, x: Tensor) -> None:
        chosen = buffer[torch.randint(0, 1024, (32,))]
        buffer[: x.shape[0]] = x
        place.add_(1)
        squared(model(chosen)).backward()
        model.zero_grad()

    return step, (buffer, place)


@dataclasses.dataclass(frozen=True)
class State:
    weight: Tensor


def in_containers(model: nn.Module) -> tuple[Step, Any]:
    state, late = State(torch.randn(WIDTH, WIDTH)), torch.randn(300, WIDTH)

    def step(first: Tensor, model: nn.Module, x: Tensor, by: Tensor = ONES, *, late: Tensor) -> None:
        squared(model(x @ state.weight @ first) * by + late.mean()).backward()
        model.zero_grad()

    first = torch.randn(WIDTH, WIDTH)
    return functools.partial(step, first, late=late), (state, late, first, step.__defaults__)


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model, self.optimizer = model, torch.optim.Adam(model.parameters())
        self.noise, self.losses, self.done = torch.randn(200, WIDTH), [torch.zeros(())], 0
        self.last: Tensor | None = None

    def step(self, model: nn.Module, x: Tensor) -> None:
        loss = squared(self.model(x)) + self.noise.mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.detach())
        self.done, self.last = self.done + 1, loss.detach()


def bound_method(model: nn.Module) -> tuple[Step, Any]:
    trainer = Trainer(model)
    return trainer.step, (trainer.noise, trainer.losses, trainer.optimizer)


def globals_and_cells(model: nn.Module) -> tuple[Step, Any]:
    before: Tensor | None = None

    def step(model: nn.Module, x: Tensor) -> None:
        global COUNT
        nonlocal before
        COUNT += 1
        y = model(x) + SHIFTS[:ROWS]
        squared(y if before is None else y - before).backward()
        before = y.detach()
        model.zero_grad()

    return step, SHIFTS


def started_optimizer(model: nn.Module) -> tuple[Step, Any]:
    optimizer, parameters = torch.optim.Adam(model.parameters()), list(model.parameters())

    def step(model: nn.Module, x: Tensor) -> None:
        for parameter, gradient in zip(parameters, torch.autograd.grad(squared(model(x)), parameters)):
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()

    step(model, torch.randn(ROWS, WIDTH))
    return step, optimizer


def flat_gradients(model: nn.Module) -> tuple[Step, Any]:
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    for parameter, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
        parameter.grad = part.view_as(parameter)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(model: nn.Module, x: Tensor) -> None:
        flat.zero_()
        squared(model(x)).backward()
        optimizer.step()

    return step, flat


def flat_parameters(model: nn.Module) -> tuple[Step, Any]:
    flat = torch.zeros(sum(p.numel() for p in model.parameters()) + 1000)
    sizes = [p.numel() for p in model.parameters()]
    for parameter, part in zip(model.parameters(), flat[:-1000].split(sizes)):
        part.copy_(parameter.detach().flatten())
        parameter.data = part.view_as(parameter)

    def step(model: nn.Module, x: Tensor) -> None:
        squared(model(x)).backward()
        model.zero_grad()
        flat.mul_(0.9)

    return step, flat


def views_of_one(model: nn.Module) -> tuple[Step, Any]:
    base = torch.randn(2 * ROWS, WIDTH)
    first, second = base[:ROWS], base.view(2, ROWS, WIDTH)[1]

    def step(model: nn.Module, x: Tensor) -> None:
        y = model(x * first) + second
        squared(y).backward()
        model.zero_grad()
        first.mul_(0.9)
        base[3:40] = 0
        second.add_(y.detach())

    return step, (base, first, second)


def soft_prompt(model: nn.Module) -> tuple[Step, Any]:
    prompt = torch.randn(ROWS, WIDTH, requires_grad=True)
    optimizer = torch.optim.Adam([prompt])
    model.requires_grad_(False)

    def step(model: nn.Module, x: Tensor) -> None:
        squared(model(x + prompt)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, (prompt, optimizer)


def own_accumulation(model: nn.Module) -> tuple[Step, Any]:
    sums = {parameter: torch.zeros_like(parameter) for parameter in model.parameters()}

    def step(model: nn.Module, x: Tensor) -> None:
        for part in x.chunk(4):
            squared(model(part)).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                sums[parameter] += parameter.grad
                parameter.grad = None
        for parameter in model.parameters():
            parameter.data.add_(sums[parameter], alpha=-0.1)
            sums[parameter].zero_()

    return step, sums


STEPS: dict[str, Callable[[nn.Module], tuple[Step, Any]]] = {
    function.__name__: function
    for function in (
        *(target_network, teacher, master_weights, averages, replay_buffer, in_containers, bound_method),
        *(globals_and_cells, started_optimizer, flat_gradients, flat_parameters, views_of_one, soft_prompt),
        *(own_accumulation, scripted_teacher, frozen_teacher, traced_teacher),
    )
}


def tensors_held(value: Any) -> list[Tensor]:
    """The tensors of what a step holds, with the gradients of leaves."""
    if isinstance(value, Tensor):
        return [value, *(tensors_held(value.grad) if value.is_leaf and value.grad is not None else [])]
    if isinstance(value, nn.Module):
        return tensors_held([*value.parameters(), *value.buffers(), *graph_constants(value)])
    if isinstance(value, torch.optim.Optimizer):
        return tensors_held([value.param_groups, list(value.state.values())])
    if isinstance(value, dict):
        return tensors_held([*value.keys(), *value.values()])
    if dataclasses.is_dataclass(value):
        return tensors_held(list(vars(value).values()))
    return [tensor for item in value for tensor in tensors_held(item)] if isinstance(value, (list, tuple)) else []
