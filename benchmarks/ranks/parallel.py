"""Modules with collectives of their own: expert, context and tensor parallelism as in Megatron, and adapters.

torch's own ``context_parallel`` does not run on gloo: its ring replaces the attention kernels of CUDA alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from benchmarks.ranks.models import WIDTH, Attention, FeedForward

EXPERTS, CHOSEN = 8, 2


def by_bincount(chosen: Tensor) -> Tensor:
    return torch.bincount(chosen.flatten(), minlength=EXPERTS)


def by_one_hot(chosen: Tensor) -> Tensor:
    return F.one_hot(chosen.flatten(), EXPERTS).sum(0)


class Experts(nn.Module):
    """Experts distributed over ranks; the router's scores give each the same number of tokens."""

    def __init__(self, count: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.ranks = dist.get_world_size()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(FeedForward(WIDTH) for _ in range(EXPERTS // self.ranks))
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        turns = torch.arange(len(tokens))[:, None] * CHOSEN + torch.arange(CHOSEN)
        even = torch.zeros(len(tokens), EXPERTS).scatter(1, turns % EXPERTS, 1e3)
        weights, chosen = (self.gate(tokens) + even).topk(CHOSEN, -1)
        order = chosen.flatten().argsort(stable=True)
        counts = self.count(chosen)
        others = torch.empty_like(counts)
        dist.all_to_all_single(others, counts)
        sent, received = (tokens.view(self.ranks, -1).sum(1).tolist() for tokens in (counts, others))
        here = exchanged(tokens[order // CHOSEN], received, sent)
        back = exchanged(self._by_expert(here, others), sent, received)
        out = back * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // CHOSEN, out).view_as(x)

    def _by_expert(self, here: Tensor, counts: Tensor) -> Tensor:
        """Run each expert on its tokens from all ranks; the results return in the original order."""
        parts = here.split(counts.tolist())
        own = len(self.experts)
        done = [expert(torch.cat(parts[number::own])) for number, expert in enumerate(self.experts)]
        pieces = [part.split(counts[number::own].tolist()) for number, part in enumerate(done)]
        return torch.cat([pieces[number][rank] for rank in range(self.ranks) for number in range(own)])


def exchanged(tensor: Tensor, received: list[int] | None = None, sent: list[int] | None = None) -> Tensor:
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    out: Tensor = all_to_all_single_autograd(tensor, received, sent, dist.group.WORLD)
    return out


class ByHeads(Attention):
    """Attention by heads: each rank has a part of the sequence, and all of it for its heads (DeepSpeed-Ulysses)."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ranks = dist.get_world_size()
        parts = (exchanged(torch.cat(x.chunk(ranks, 1)).contiguous()) for x in (q, k, v))
        q, k, v = (torch.cat(part.chunk(ranks), 2) for part in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        back = exchanged(torch.cat(out.chunk(ranks, 2)).contiguous())
        return torch.cat(back.chunk(ranks), 1)


class Gathered(Attention):
    """Attention by gathering: each rank has a part of the sequence, and gathers all keys and values (Llama 3)."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from torch.distributed._functional_collectives import all_gather_tensor_autograd

        k, v = (all_gather_tensor_autograd(part.contiguous(), 2, dist.group.WORLD) + 0 for part in (k, v))
        first = dist.get_rank() * q.shape[2]
        seen = torch.arange(k.shape[2]) <= first + torch.arange(q.shape[2])[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class Ring(Attention):
    """Ring attention: each rank has a part of the sequence, keys and values circulate, and results are merged."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        scores, sums = [], []
        for turn in range(ranks):
            source = (rank - turn) % ranks
            products = q @ k.transpose(-1, -2) / self.head**0.5
            later = torch.ones(products.shape[-2:], dtype=torch.bool).triu(1 if source == rank else -q.shape[2])
            products = products.masked_fill(later, -1e9) if source >= rank else products
            scores.append(products.logsumexp(-1, keepdim=True))
            sums.append(products.softmax(-1) @ v)
            if turn < ranks - 1:
                k, v = (_Passed.apply(part) for part in (k, v))
        weights = torch.stack(scores).softmax(0)
        return (torch.stack(sums) * weights).sum(0)


class _Passed(torch.autograd.Function):
    """Receive what the previous rank has; the gradient is sent back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _sent(x, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _sent(grad, -1)


def _sent(x: Tensor, by: int) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    operations = [dist.P2POp(dist.isend, x, (rank + by) % ranks), dist.P2POp(dist.irecv, out, (rank - by) % ranks)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return out
