"""Rules that fail, and rules on a release that they were not measured on: the operators are named, with a range."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.parts import of_parts
from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.ops.scratch.registry import SCRATCH
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step import workspace


def failing(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("no such layout")


def estimate() -> MemoryEstimate:
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8))
    return estimate_memory(model, (64,), 32, device="cuda", gpu="A100 80GB", progress=False)


def fail(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCRATCH, ("cuda", operator), replace(SCRATCH["cuda", operator], formula=failing))


@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.parametrize("operator", ["aten::native_layer_norm_backward", "aten::addmm"])
def test_the_operator_of_a_rule_that_fails_is_unknown_and_the_range_open(
    operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = estimate()
    monkeypatch.setattr(workspace.Workspaces, "is_strict", False)
    fail(operator, monkeypatch)
    result = estimate()
    assert operator in dict(result.unknown) and not truth.unknown
    low, high = result.peak_range
    assert low <= truth.peak_bytes <= high and low < high
    assert not any("CPU" in line for line in result.assumptions)


def test_where_rules_are_strict_one_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = "aten::native_layer_norm_backward"
    fail(operator, monkeypatch)
    with pytest.raises(workspace.RuleError, match=f"the rule for {operator} on cuda failed: no such layout"):
        estimate()


@of_parts(lambda: {"cells": nn.ModuleList([nn.GRUCell(16, 16), nn.LSTMCell(16, 16)])})
def Recurrent(self, x: Tensor) -> Tensor:
    h = self.cells[0](x)
    return self.cells[1](h)[0]


class Selecting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        order = x.sort(dim=1).values.cumsum(1)
        near = torch.cdist(order, order).topk(2, dim=1).values
        return F.softmax(near, 1) + order.gather(1, order.argsort(1))[:, :2].std()


MODELS = {
    "recurrent": (Recurrent(), (16,)),
    "selecting": (Selecting(), (16,)),
    "attention": (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (4, 16)),
    "convolution": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(4)), (3, 8, 8)),
    "sequence": (nn.LSTM(8, 8, 2, batch_first=True), (4, 8)),
}


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("name", MODELS)
def test_every_rule_answers_on_another_release(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, size = MODELS[name]
    trained = any(True for _ in model.parameters())
    options = {"optimizer": "adamw"} if trained else {"mode": "eval"}
    here = estimate_memory(model, size, 4, backend, loss="mse" if trained else None, **options)
    monkeypatch.setattr(workspace, "since", lambda release: False)
    there = estimate_memory(model, size, 4, backend, loss="mse" if trained else None, **options)
    assert not any("estimated with the CPU's kernels" in said for said in there.assumptions)
    assert there.peak_range[0] <= here.peak_bytes <= there.peak_range[1]
    assert dict(here.unknown).keys() <= dict(there.unknown).keys()
    assert backend == "cpu" or there.unknown
