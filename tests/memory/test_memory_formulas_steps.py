"""Peaks of whole steps against closed formulas: stacks of equal layers, and common rules of thumb."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.parts import of_parts
from torchsummary_plus import estimate_memory

WIDTH, BATCH = 128, 512
WEIGHT = 4 * WIDTH * WIDTH
MAP = 4 * WIDTH * BATCH
LOSS = 2 * 4
"""The loss, and the one that its gradient starts from."""


def layers(count: int) -> nn.Sequential:
    """Linear and ReLU, so many times: two maps each, of which only the ReLU's is kept."""
    return nn.Sequential(*(m for _ in range(count) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())))


@of_parts(lambda inner: {"inner": inner})
def Checkpointed(self, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
    return y


@pytest.mark.parametrize("count", [2, 5])
def test_the_peak_of_an_mlp_stands_where_its_backward_has_come_past_the_last_layer(count: int) -> None:
    """Weights and the last one's gradient; the input, all maps but the last, and the gradients of two maps."""
    estimate = estimate_memory(layers(count), (WIDTH,), BATCH, optimizer="sgd")
    assert estimate.peak_bytes == (count + 1) * WEIGHT + (1 + count - 1 + 2) * MAP + LOSS


@pytest.mark.parametrize(("segments", "depth"), [(2, 2), (4, 3)])
def test_the_peak_of_a_checkpointed_stack_is_where_its_last_segment_but_one_runs_again(
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


def test_a_pooled_signal_without_gradients_has_no_indices() -> None:
    """``max_pool1d`` on the CPU makes them for a backward alone: in eval the input, and the output."""
    estimate = estimate_memory(nn.MaxPool1d(2), (4, 64), 8, mode="eval")
    assert estimate.peak_bytes == 4 * 8 * 4 * (64 + 32)
