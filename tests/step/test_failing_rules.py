"""If a rule for CUDA fails, the estimate names the operator and widens its range; tests get an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.ops.scratch.registry import LASTING, SCRATCH, Rule
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step.workspace import RuleError, Workspaces


def failing(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("no such layout")


def estimate() -> MemoryEstimate:
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8))
    return estimate_memory(model, (64,), 32, gpu="A100 80GB", progress=False)


Fail = Callable[[dict[tuple[str, str], Rule], str], None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    def make(rules: dict[tuple[str, str], Rule], operator: str) -> None:
        monkeypatch.setitem(rules, ("cuda", operator), replace(rules["cuda", operator], formula=failing))

    return make


@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.parametrize(
    ("rules", "operator"), [(SCRATCH, "aten::native_layer_norm_backward"), (LASTING, "aten::addmm")]
)
def test_its_operator_is_unknown_and_the_range_open(
    rules: dict[tuple[str, str], Rule], operator: str, fail: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = estimate()
    monkeypatch.setattr(Workspaces, "is_strict", False)
    fail(rules, operator)
    found = estimate()
    assert operator in dict(found.unknown) and not truth.unknown
    low, high = found.peak_range
    assert low <= truth.peak_bytes <= high and low < high
    assert not any("those of the CPU" in said for said in found.assumptions)


def test_tests_get_an_error(fail: Fail) -> None:
    fail(SCRATCH, "aten::native_layer_norm_backward")
    with pytest.raises(RuleError, match="the rule for aten::native_layer_norm_backward on CUDA failed: no such layout"):
        estimate()
