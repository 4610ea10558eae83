"""User-defined scratch rules: they enter estimates, and mistakes are rejected."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import InputError, estimate_memory, register_scratch
from torchsummary_plus.ops.scratch.registry import SCRATCH

SIDE = 64


@torch.library.custom_op("scratch_test::spun", mutates_args=(), schema="(Tensor x) -> Tensor")
def spun(x: Tensor) -> Tensor:
    return x + 1


@spun.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Spun(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return spun(x)


def estimate(device: str) -> Any:
    return estimate_memory(Spun(), (SIDE,), SIDE, device, mode="eval")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "op", ["scratch_test::spun", torch.ops.scratch_test.spun, torch.ops.scratch_test.spun.default], ids=str
)
def test_a_rule_adds_its_bytes_to_the_peak(device: str, op: Any) -> None:
    before = estimate(device)
    with register_scratch(device, op, source="by hand")(lambda result, x: 3 * x.nbytes):
        after = estimate(device)
    assert after.at_peak["workspace"] == 3 * 4 * SIDE * SIDE
    assert after.peak_bytes == (1 + 1 + 3) * 4 * SIDE * SIDE
    assert not after.unknown and after.peak_range == (after.peak_bytes, after.peak_bytes)
    assert estimate(device).peak_bytes == before.peak_bytes


def test_a_rule_may_say_how_far_it_is_off_or_that_it_does_not_know() -> None:
    with register_scratch("cuda", "scratch_test::spun", source="by hand", band=0.5)(lambda result, x: 2 * x.nbytes):
        told = estimate("cuda")
    assert told.peak_range[0] < told.peak_bytes < told.peak_range[1]
    with register_scratch("cpu", "scratch_test::spun", source="by hand")(lambda result, x: None):
        assert "scratch_test::spun" in dict(estimate("cpu").unknown)


@pytest.mark.parametrize(
    ("device", "ops", "told"),
    [
        ("tpu", ("scratch_test::spun",), "device is 'tpu'; accepted: 'cpu', 'cuda'"),
        ("cpu", ("spun",), "operator is 'spun'; accepted: a packet"),
        ("cpu", (3,), "operator is 3; accepted: a packet"),
        ("cuda", (torch.ops.aten.convolution,), "aten::convolution already has a scratch rule on cuda"),
        ("cpu", ("a::b", "a::b"), "a::b already has a scratch rule on cpu"),
    ],
    ids=str,
)
def test_what_is_no_operator_or_has_a_rule_is_refused(device: str, ops: Any, told: str) -> None:
    before = dict(SCRATCH)
    with pytest.raises(InputError) as caught:
        register_scratch(device, *ops, source="by hand")(lambda result, *args: 0)
    assert told in str(caught.value)
    assert set(SCRATCH) >= set(before) and ("cpu", "a::b") not in SCRATCH
