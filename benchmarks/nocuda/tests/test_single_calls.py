"""Operators called by themselves allocate what their rules say."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from benchmarks.nocuda.tests.single_calls import allocated_by_rule, changes
from tests.truth.releases import from_release

aten = torch.ops.aten
SIZE = (8, 64, 56, 56)
LAYOUTS = {
    "contiguous": lambda x: x,
    "channels-last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "sliced": lambda x: torch.cat((x, x), 3)[..., ::2],
}


@pytest.mark.parametrize(("layout", "training", "has_weight"), product(LAYOUTS, (True, False), (True, False)))
def test_a_batch_norm_called_by_itself_allocates_what_its_rule_says(
    layout: str, training: bool, has_weight: bool
) -> None:
    """``_native_batch_norm_legit``, to which the decompositions of others lead."""
    x, channel = LAYOUTS[layout](torch.ones(SIZE)), torch.ones(64)
    weight = channel if has_weight else None
    calls = [(aten._native_batch_norm_legit.default, x, weight, weight, channel, channel, training, 0.1, 1e-5)]
    calls += [(aten._native_batch_norm_legit.no_stats, x, weight, weight, True, 0.1, 1e-5)]
    calls += [(aten._native_batch_norm_legit_no_training.default, x, weight, weight, channel, channel, 0.1, 1e-5)]
    for operator, *args in calls:
        placed = [arg.cuda() if isinstance(arg, Tensor) else arg for arg in args]
        truth = [size for size in changes(partial(operator, *placed)) if size > 0]
        fakes = tuple(arg.to("meta") if isinstance(arg, Tensor) else arg for arg in args)
        assert sorted(truth) == sorted(allocated_by_rule(operator, fakes)), operator


@pytest.mark.parametrize("axes", [4, 5])
@pytest.mark.parametrize("step", [1, 2])
def test_pooled_volumes_allocate_what_their_rule_says(axes: int, step: int) -> None:
    """A batch is copied unless it is contiguous; a single volume is read in place."""
    x = torch.ones((2, 3, 32, 32, 32 * step)[-axes:])[..., ::step]
    truth = changes(partial(aten._adaptive_avg_pool3d.default, x.cuda(), [2, 2, 2]))
    ruled = allocated_by_rule(aten._adaptive_avg_pool3d.default, (x.to("meta"), [2, 2, 2]))
    assert [size for size in truth if size > 0] == ruled


DTYPES = (*(torch.float32, torch.float16, torch.bfloat16, torch.float64), *(torch.int64, torch.int32, torch.uint8))
LENGTHS = (1, 5, 100, 399, 400, 800, 1000, 3000, 5000, 8000, 9999, 10_000, 20_000, 50_257, 300_000)
SLICES = (1, 2, 8, 20, 21, 40, 41, 80, 81, 199, 200, 799, 800, 4000, 4001, 6000)
ROWS = {
    "rows": lambda slices, length, dtype: (torch.empty(slices, length, dtype=dtype, device="meta"), 1),
    "columns": lambda slices, length, dtype: (torch.empty(length, slices, dtype=dtype, device="meta"), 0),
    "turned": lambda slices, length, dtype: (torch.empty(length, slices, dtype=dtype, device="meta").mT, 1),
    "sliced": lambda slices, length, dtype: (torch.empty(slices, 2 * length, dtype=dtype, device="meta")[:, ::2], 1),
}


@pytest.mark.parametrize("layout", ROWS)
def test_the_largest_elements_of_slices_are_found_in_what_the_rule_says(layout: str) -> None:
    """By one block for a slice, or by several, and sorted apart if they are many."""
    rng = random.Random(layout)
    searched = 0
    while searched < 40:
        length, slices = rng.choice(LENGTHS), rng.choice(SLICES)
        if length * slices > 3e7:
            continue
        x, dim = ROWS[layout](slices, length, rng.choice(DTYPES))
        k = min(length, rng.choice((1, 2, 5, 50, 3000, 4097, 7000)))
        args = k, dim, rng.random() < 0.5, rng.random() < 0.8
        placed = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")
        truth = [size for size in changes(partial(aten.topk.default, placed, *args)) if size > 0]
        assert truth == allocated_by_rule(aten.topk.default, (x, *args)), (x.shape, x.stride(), x.dtype, args)
        searched += len(truth) > 3


@pytest.mark.parametrize(("rows", "samples"), [(1, 3), (1, 1), (300, 6), (8, 5)])
def test_draws_without_replacement_hold_at_most_what_the_rule_says(rows: int, samples: int) -> None:
    """The largest of exponentials; their sums and checks, which are freed before, are left out."""
    weights = torch.ones(rows, 50_257)
    ruled = allocated_by_rule(aten.multinomial.default, (weights.to("meta"), samples))
    own = torch.Generator("cuda")  # On torch 2.11, an earlier test's graph capture leaves the default one unusable.
    drawn = partial(aten.multinomial.default, generator=own)
    sizes = changes(partial(drawn, weights.cuda(), samples))
    live, most = 0, 0
    for size in sizes:
        live += size
        most = max(most, live)
    freed = ruled[-1] if ruled[-1] == ruled[-2] else 0  # The first of the two equal storages of sums by key.
    assert most == sum(ruled) - freed


@from_release("2.13", "a search for both extremes at once")
@pytest.mark.parametrize("count", [1000, 100_000, 3_000_000])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("bounds", [(), (0.0, 1.0)])
def test_a_histogram_looks_for_its_range(count: int, step: int, bounds: tuple[float, ...]) -> None:
    x, fake = (torch.empty_strided((count,), (step,), device=device) for device in ("cuda", "meta"))
    truth = [size for size in changes(partial(aten.histc.default, x, 64, *bounds)) if size > 0]
    ruled = allocated_by_rule(aten.histc.default, (fake, 64, *bounds), out=torch.empty(64, device="meta"))
    assert truth == ruled


@pytest.mark.parametrize("size", [(1000,), (1_000_000,), (1, 500_000), (30, 1000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_draws_with_replacement_sum_the_weights(size: tuple[int, ...], dtype: torch.dtype) -> None:
    weights = torch.ones(size, dtype=dtype)
    drawn = partial(aten.multinomial.default, generator=torch.Generator("cuda"))
    truth = [change for change in changes(partial(drawn, weights.cuda(), 7, True)) if change > 0]
    assert truth == allocated_by_rule(aten.multinomial.default, (weights.to("meta"), 7, True))


def lying(layout: str, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor on ``meta``: row-major, turned or sliced."""
    if layout == "turned":
        return torch.empty(*reversed(size), dtype=dtype, device="meta").permute(*range(len(size) - 1, -1, -1))
    wide = (*size[:-1], size[-1] * (2 if layout == "sliced" else 1))
    return torch.empty(wide, dtype=dtype, device="meta")[..., : size[-1]]


def keep(outs: list[Any], call: Callable[[], Any]) -> None:
    """Add a call's result to a list."""
    outs.append(call())


@pytest.mark.parametrize("layout", ["row-major", "turned", "sliced"])
@pytest.mark.parametrize("kind", ["argmax", "_safe_softmax"])
def test_rules_hold_for_any_layout(kind: str, layout: str) -> None:
    rng = random.Random(f"{kind} {layout}")
    for _ in range(30):
        size = rng.choice(((30, 1000), (200, 300), (700, 900), (4, 5, 6, 1000), (3, 5)))
        dtype = rng.choice(DTYPES[:4] if kind == "_safe_softmax" else DTYPES)
        x = lying(layout, size, dtype)
        operator, *args = {
            "argmax": (aten.argmax.default, rng.choice((None, 0, -1))),
            "_safe_softmax": (aten._safe_softmax.default, rng.choice((0, -1))),
        }[kind]
        placed = torch.empty_strided(x.shape, x.stride(), dtype=dtype, device="cuda")
        outs: list[Any] = []
        call = partial(keep, outs, partial(operator, placed, *args))
        truth = [change for change in changes(call) if change > 0]
        out = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), outs[0])
        ruled = allocated_by_rule(operator, (x, *args), out=out)
        assert truth == ruled, (x.shape, x.stride(), dtype, args)
