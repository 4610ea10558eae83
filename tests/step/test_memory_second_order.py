"""Gradients of gradients on a GPU, whose engine numbers their nodes in a thread of its own."""

import torch
from torch import Tensor, nn

from tests.truth.releases import from_release
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.memory_records import SECOND_ORDER
from torchsummary_plus.memory.estimate import OF_AUTOGRAD, ORDER_BAND


def penalised(model: nn.Module, x: Tensor, creates: bool) -> None:
    x = x.detach().requires_grad_()
    loss = model(x).tanh().sum()
    (slope,) = torch.autograd.grad(loss, x, create_graph=creates, retain_graph=True)
    (loss + slope.square().sum()).backward()


@from_release("2.11", "the release that CUDA rules were measured on")
def test_the_order_of_gradients_of_gradients_is_open_on_a_gpu() -> None:
    for device, creates, is_open in (("cuda", False, False), ("cuda", True, True), ("cpu", True, False)):

        def step(model: nn.Module, x: Tensor, creates: bool = creates) -> None:
            penalised(model, x, creates)

        estimate = estimate_memory(nn.Linear(4, 4), (4,), 2, device, train_step=step)
        assert (SECOND_ORDER in dict(estimate.unknown)) == is_open
        by_order = round(ORDER_BAND * sum(estimate.at_peak.get(kind, 0) for kind in OF_AUTOGRAD)) if is_open else 0
        low, high = estimate.peak_range
        assert estimate.peak_bytes - low >= by_order and high - estimate.peak_bytes >= by_order
        assert bool(by_order) == is_open == (high > estimate.peak_bytes)
