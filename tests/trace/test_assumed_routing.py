"""Loops over experts on meta: routers distribute tokens evenly, with the sizes of a real balanced pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchsummary_plus import estimate_memory, summary
from torchsummary_plus.trace.kernels import BALANCED

WIDTH, EXPERTS, CHOSEN, TOKENS = 16, 4, 2, 16
Run = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


class Mixture(nn.Module):
    """Experts whose router gives each the same number of tokens, whatever its weights."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH)) for _ in range(EXPERTS)
        )
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        turns = torch.arange(len(tokens), device=x.device)[:, None] * CHOSEN + torch.arange(CHOSEN, device=x.device)
        even = torch.zeros(len(tokens), EXPERTS, device=x.device).scatter(1, turns % EXPERTS, 100.0)
        even = even.scatter(1, turns[:, :1] % EXPERTS, 200.0)
        weights, chosen = (self.gate(tokens) + even).topk(CHOSEN, -1)
        return self.run(self, tokens, weights, chosen).view_as(x)


def nonzero(self: Any, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        token, slot = (chosen == number).nonzero(as_tuple=True)
        out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
    return out


def one_hot(self: Any, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """As transformers' Mixtral: only experts that any token chose."""
    out = torch.zeros_like(x)
    mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
    for number in torch.greater(mask.sum((-1, -2)), 0).nonzero():
        slot, token = torch.where(mask[number].squeeze(0))
        out.index_add_(0, token, self.experts[number](x[token]) * weights[token, slot, None])
    return out


def masks(self: Any, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        mask = (chosen == number).any(-1)
        if mask.any():
            out[mask] += expert(x[mask])
    return out * weights.sum()


def sorted_by_expert(self: Any, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    order = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount(minlength=EXPERTS).tolist()
    done = torch.cat([expert(part) for expert, part in zip(self.experts, x[order // CHOSEN].split(counts))])
    return torch.zeros_like(x).index_add_(0, order // CHOSEN, done * weights.flatten()[order, None])


def by_numpy(self: Any, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """As DeepSeek's own code."""
    counts = chosen.new_zeros(len(chosen), EXPERTS).scatter_(1, chosen, 1).sum(0)
    order = chosen.view(-1).argsort(stable=True)
    parts = x[order // CHOSEN].split(counts.cpu().numpy().tolist())
    done = torch.cat([expert(part) for expert, part in zip(self.experts, parts)])
    back = torch.empty_like(done)
    back[order] = done
    return (back.view(*chosen.shape, -1) * weights[..., None]).sum(1)


RUNS: tuple[Run, ...] = (nonzero, one_hot, masks, sorted_by_expert, by_numpy)


def mixture_on(run: Run, device: str) -> Mixture:
    with torch.device(device):
        return Mixture(run)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_a_loop_over_experts_on_meta_takes_what_it_takes_where_routing_is_balanced(run: Run) -> None:
    options: dict[str, Any] = {"optimizer": "adamw", "loss": "mse", "progress": False}
    expected = (TOKENS, WIDTH), 2
    real, on_meta = (estimate_memory(mixture_on(run, device), *expected, **options) for device in ("cpu", "meta"))
    assert any(BALANCED in assumption for assumption in on_meta.assumptions)
    assert on_meta.peak_bytes == real.peak_bytes
    assert on_meta.peak_range[0] <= real.peak_bytes <= on_meta.peak_range[1]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_a_summary_on_meta_has_the_multiply_adds_of_the_experts_that_tokens_choose(run: Run) -> None:
    real, on_meta = (summary(mixture_on(run, device), (TOKENS, WIDTH), 2, verbose=0) for device in ("cpu", "meta"))
    assert on_meta.total_mult_adds == real.total_mult_adds
    assert on_meta.active_params == real.active_params
    assert [row.mult_adds for row in on_meta.rows] == [row.mult_adds for row in real.rows]
