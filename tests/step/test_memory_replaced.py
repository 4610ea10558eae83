"""Steps that replace parameters or layers of the model, as densification and new heads do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.truth.memory_truth import cpu_deltas, highest
from torchsummary_plus import estimate_memory, measure_memory

Step = Callable[[nn.Sequential, torch.Tensor], None]
NBYTES = 4 * (100 * 100 + 100)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))


def backward(model: nn.Module, x: torch.Tensor) -> None:
    model(x).sum().backward()
    model.zero_grad()


def new_weight(model: nn.Sequential, x: torch.Tensor) -> None:
    backward(model, x)
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def new_layer(model: nn.Sequential, x: torch.Tensor) -> None:
    backward(model, x)
    model[1] = nn.Linear(100, 100)


def loaded(model: nn.Sequential, x: torch.Tensor) -> None:
    backward(model, x)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def no_bias(model: nn.Sequential, x: torch.Tensor) -> None:
    backward(model, x)
    model[0].bias = None


def before_its_end(model: nn.Sequential, x: torch.Tensor) -> None:
    backward(model, x)
    model[1] = nn.Linear(100, 100)
    large = torch.ones(300, 300)
    large @ large


def measured(step: Step, make: Callable[[], nn.Sequential] = network) -> int:
    """Return the peak of two steps; the profiler sees only tensors freed that it saw allocated."""

    def run() -> None:
        model, x = make(), torch.ones(3, 100)
        for _ in range(2):
            step(model, x)

    return highest(cpu_deltas(run))[0]


@pytest.mark.parametrize("step", [new_weight, new_layer, loaded, no_bias, before_its_end])
def test_what_a_step_replaces_is_freed(step: Step) -> None:
    model, x = network(), torch.ones(3, 100)
    before = dict(model.named_parameters())
    estimate = estimate_memory(model, input_data=x, train_step=step)
    assert estimate.peak_range == (measured(step),) * 2 and not estimate.assumptions
    assert estimate.peak_bytes == measure_memory(model, input_data=x, train_step=step).peak_bytes
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert [parameter.shape for parameter in model.parameters()] == [p.shape for p in network().parameters()]


def test_a_replaced_layer_that_something_else_holds_stays_counted() -> None:
    former: list[Any] = []

    def step(model: nn.Sequential, x: torch.Tensor) -> None:
        new_layer(model, x)
        former.append(model[1])

    estimates = [estimate_memory(network(), input_data=torch.ones(3, 100), train_step=step, steps=n) for n in (2, 3)]
    assert estimates[1].peak_bytes - estimates[0].peak_bytes == NBYTES
    assert not former


def test_an_optimizer_holds_the_layer_that_left_the_model() -> None:
    optimizers: list[torch.optim.Optimizer] = []

    def trained() -> nn.Sequential:
        model = network()
        optimizers[:] = [torch.optim.SGD(model.parameters())]
        return model

    def step(model: nn.Sequential, x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        model[1] = nn.Linear(100, 100)

    real = measured(step, trained)
    estimate = estimate_memory(trained(), input_data=torch.ones(3, 100), train_step=step)
    assert estimate.peak_bytes == real
    assert not estimate.assumptions


def test_on_a_gpu_replaced_parameters_are_freed() -> None:
    estimates = [
        estimate_memory(network(), (100,), 3, train_step=new_weight, device="cuda", gpu="T4", steps=n) for n in (1, 3)
    ]
    assert estimates[0].peak_bytes == estimates[1].peak_bytes
