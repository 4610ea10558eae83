"""Operators called by themselves allocate what their rules say."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from benchmarks.nocuda.tests.single_calls import allocated_by_rule, changes

aten = torch.ops.aten
SIZE = (8, 64, 56, 56)
LAYOUTS = {
    "contiguous": lambda x: x,
    "channels-last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "sliced": lambda x: torch.cat((x, x), 3)[..., ::2],
}


@pytest.mark.parametrize("shapes", [((96, 96), (96, 96, 96), (96, 96)), ((50, 7), (12, 7, 10), (50, 10))])
def test_a_bilinear_form_allocates_what_its_rule_says(shapes: tuple[tuple[int, ...], ...]) -> None:
    """By the products of a slice, which those of the next repeat."""
    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    args = [torch.ones(shape) for shape in shapes]
    axes = [1, 3], [0], [1, 2], [2, 3]
    truth = changes(partial(aten._trilinear.default, *(tensor.cuda() for tensor in args), *axes))
    ruled = allocated_by_rule(aten._trilinear.default, (*(tensor.to("meta") for tensor in args), *axes))
    assert len(ruled) > 2 and [size for size in truth if size > 0][: len(ruled)] == ruled


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
