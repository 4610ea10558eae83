"""Peaks of whole steps against closed formulas: stacks of equal layers, and common rules of thumb."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchsummary_plus import estimate_memory, summary

WIDTH, BATCH = 128, 512
WEIGHT = 4 * WIDTH * WIDTH
MAP = 4 * WIDTH * BATCH
LOSS = 2 * 4
"""The loss, and the one that its gradient starts from."""


class Mixed(torch.optim.Optimizer):
    """Adam in mixed precision: a copy of each half-precision parameter in fp32, its momentum and its variance.

    Source: Micikevicius et al. 2018, Mixed Precision Training, arXiv:1710.03740.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"])

    def _update(self, parameter: torch.Tensor, rate: float) -> None:
        state = self.state[parameter]
        if not state:
            state["master"] = parameter.float()
            state["momentum"] = torch.zeros_like(state["master"])
            state["variance"] = torch.zeros_like(state["master"])
        grad = parameter.grad
        state["momentum"].lerp_(grad.float(), 0.1)  # type: ignore[union-attr]
        state["variance"].addcmul_(grad, grad, value=0.001)
        state["master"].addcdiv_(state["momentum"], state["variance"].sqrt().add_(1e-8), value=-rate)
        parameter.copy_(state["master"])


def layers(count: int) -> nn.Sequential:
    """Linear and ReLU, so many times: two maps each, of which only the ReLU's is kept."""
    return nn.Sequential(*(m for _ in range(count) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())))


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return y


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_the_peak_of_an_mlp_stands_where_its_backward_has_come_past_the_last_layer(count: int) -> None:
    """Weights and the last one's gradient; the input, all maps but the last, and the gradients of two maps."""
    estimate = estimate_memory(layers(count), (WIDTH,), BATCH, optimizer="sgd")
    assert estimate.peak_bytes == (count + 1) * WEIGHT + (1 + count - 1 + 2) * MAP + LOSS


@pytest.mark.parametrize(("segments", "depth"), [(2, 2), (4, 2), (4, 4), (6, 3)])
def test_the_peak_of_a_checkpointed_stack_stands_where_its_last_segment_but_one_runs_again(
    segments: int, depth: int
) -> None:
    """The last segment's gradients are there; of the others the inputs, of this one its maps, a gradient, a product.

    ``n`` segments of ``k`` layers keep ``n + k + 1`` maps instead of ``n * k + 2``; and on the CPU the random state
    that each segment begins with.
    """
    model = nn.Sequential(*(Checkpointed(layers(depth)) for _ in range(segments)))
    estimate = estimate_memory(model, (WIDTH,), BATCH, optimizer="sgd")
    maps = 1 + (segments - 2) + depth + 1 + 1
    states = segments * torch.get_rng_state().nbytes
    assert estimate.peak_bytes == (segments + 1) * depth * WEIGHT + maps * MAP + states + LOSS


@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_rules_of_thumb_count_every_map_twice_and_every_gradient_at_once(count: int) -> None:
    """torchsummary's total is the input, all outputs twice, and the parameters; the course adds parameters' gradients.

    The course: parameters + gradients + batch x (first map + 2 x the others). In truth a linear's output is gone when
    its ReLU has run, only two maps have their gradients at one time, and most gradients come when maps have gone.
    """
    model = layers(count)
    table = summary(model, (WIDTH,), BATCH, verbose=0)
    parameters = count * WEIGHT
    torchsummary = table.total_bytes
    course = 2 * parameters + MAP + table.forward_backward_bytes
    assert torchsummary == MAP + 2 * (2 * count) * MAP + parameters
    assert course == torchsummary + parameters
    true = estimate_memory(model, (WIDTH,), BATCH, optimizer="sgd").peak_bytes
    linear_outputs, last_map, gradients = count, 1, 2 * count - 2
    assert course - true == (linear_outputs + last_map + gradients) * MAP + (count - 1) * WEIGHT - LOSS


def test_mixed_precision_adam_holds_sixteen_bytes_a_parameter() -> None:
    """Rajbhandari et al. 2019, ZeRO, arXiv:1910.02054, section 3.1: 2 + 2 + (4 + 4 + 4)."""
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4))).half()
    estimate = estimate_memory(model, (256,), 8, "cuda", optimizer=Mixed)
    states = {
        kind: max(dict(point.live)[kind] for point in estimate.timeline)
        for kind in ("parameters", "gradients", "optimizer_state")
    }
    count = 4 * 256 * 256
    assert states == {"parameters": 2 * count, "gradients": 2 * count, "optimizer_state": 12 * count}


def test_a_pooled_signal_without_gradients_has_no_indices() -> None:
    """``max_pool1d`` on the CPU makes them for a backward alone: in eval the input, and the output."""
    estimate = estimate_memory(nn.MaxPool1d(2), (4, 64), 8, mode="eval")
    assert estimate.peak_bytes == 4 * 8 * 4 * (64 + 32)
