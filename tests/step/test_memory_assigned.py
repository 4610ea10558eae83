"""Real tensors assigned to ``data`` in a step: weights, biases and inputs, small and large."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory, measure_memory

WIDTH = 64


def trained(model: nn.Module, x: Tensor) -> None:
    F.mse_loss(model(x), torch.zeros_like(x)).backward()
    model.zero_grad()


def emptied_and_put_back(model: Any, x: Tensor) -> None:
    """As FSDP1 keeps a parameter whose shard is on other ranks."""
    weight, data = model.weight, model.weight.data
    weight.data = torch.empty(0)
    weight.detach().clone()
    assert weight.view(-1).shape == (0,)
    weight.data = data
    trained(model, x)


def made_anew(model: Any, x: Tensor) -> None:
    model.weight.data = torch.full((WIDTH, WIDTH), 0.1)
    trained(model, x)


def small(model: Any, x: Tensor) -> None:
    model.bias.data = torch.zeros(WIDTH)
    model.bias.data = model.bias.detach().clone() + 1
    (F.mse_loss(model(x), torch.zeros_like(x)) + model.bias[2:4].sum()).backward()
    model.zero_grad()


def an_input(model: Any, x: Tensor) -> None:
    x.data = torch.zeros(2, WIDTH)
    trained(model, x[:1])


@pytest.mark.parametrize("step", [emptied_and_put_back, made_anew, small, an_input])
def test_what_is_assigned_is_booked_as_measured(step: Any) -> None:
    estimates = [
        call(nn.Linear(WIDTH, WIDTH), (WIDTH,), 4, train_step=step) for call in (estimate_memory, measure_memory)
    ]
    assert estimates[0].peak_bytes == estimates[1].peak_bytes
    assert not estimates[0].unknown and not estimates[0].assumptions


def by_hand(model: Any, x: Tensor) -> None:
    trained(model, x)
    F.mse_loss(model(x), torch.zeros_like(x)).backward()
    for weight in model.parameters():
        weight.data = weight.data - 0.1 * weight.grad
    model.zero_grad()
    trained(model, x)


def an_attack(model: Any, x: Tensor) -> None:
    shift = torch.zeros_like(x, requires_grad=True)
    for _ in range(2):
        F.mse_loss(model(x + shift), torch.ones_like(x)).backward()
        shift.data = shift.data + shift.grad.sign()
        shift.grad = None
    model.zero_grad()


@pytest.mark.usefixtures("kept_workspaces")
@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.parametrize("step", [by_hand, an_attack])
def test_leaves_of_a_step_have_gradients_on_a_card(step: Any) -> None:
    """Also on a CUDA build without a GPU, whose engine asks for the stream of a leaf that was assigned or created."""
    estimate = estimate_memory(nn.Linear(WIDTH, WIDTH), (WIDTH,), 4, train_step=step, device="cuda")
    plain = estimate_memory(nn.Linear(WIDTH, WIDTH), (WIDTH,), 4, train_step=trained, device="cuda")
    assert estimate.peak_bytes > plain.peak_bytes
    assert not estimate.unknown and not estimate.assumptions
