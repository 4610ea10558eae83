"""If a rule fails, the estimate names the operator and widens its range; tests get an error."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.ops.scratch.registry import SCRATCH, Rule
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step.workspace import RuleError, Workspaces


def failing(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("no such layout")


def estimate(device: str) -> MemoryEstimate:
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8))
    gpu = "A100 80GB" if device == "cuda" else None
    return estimate_memory(model, (64,), 32, device=device, gpu=gpu, progress=False)


Fail = Callable[[dict[tuple[str, str], Rule], str, str], None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    def make(rules: dict[tuple[str, str], Rule], device: str, operator: str) -> None:
        monkeypatch.setitem(rules, (device, operator), replace(rules[device, operator], formula=failing))

    return make


@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.parametrize(
    ("rules", "device", "operator"),
    [(SCRATCH, "cuda", "aten::native_layer_norm_backward"), (SCRATCH, "cuda", "aten::addmm")],
)
def test_its_operator_is_unknown_and_the_range_open(
    rules: dict[tuple[str, str], Rule], device: str, operator: str, fail: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = estimate(device)
    monkeypatch.setattr(Workspaces, "is_strict", False)
    fail(rules, device, operator)
    result = estimate(device)
    assert operator in dict(result.unknown) and not truth.unknown
    low, high = result.peak_range
    assert low <= truth.peak_bytes <= high and low < high
    assert not any("CPU" in line for line in result.assumptions)


def test_tests_get_an_error(fail: Fail) -> None:
    operator = "aten::native_layer_norm_backward"
    fail(SCRATCH, "cuda", operator)
    with pytest.raises(RuleError, match=f"the rule for {operator} on cuda failed: no such layout"):
        estimate("cuda")
