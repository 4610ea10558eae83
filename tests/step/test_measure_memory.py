"""Measured against predicted steps: the same data, byte for byte, by kind, phase and module."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from examples.gpt2 import GPT2, SMALL
from examples.resnet import resnet18
from tests.parts import of_parts
from tests.truth.memory_truth import measure
from tests.truth.snapshot import snapshot
from torchsummary_plus import (
    ForwardError,
    InputError,
    MemoryEstimate,
    StepComparison,
    StepError,
    compare,
    estimate_memory,
    measure_memory,
)
from torchsummary_plus.data.memory_records import KINDS
from torchsummary_plus.watch.profiled import without_notes

pytestmark = pytest.mark.usefixtures("threads")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(self.embedding(ids))
        return self.head(y)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10)), (64,)),
    "resnet18": (resnet18, (3, 64, 64)),
    "tied": (Tied, (12,)),
    "checkpointed": (Checkpointed, (64,)),
    "gpt2": (lambda: GPT2(replace(SMALL, vocabulary=100, context=32, width=48, depth=2, heads=4)), (16,)),
}
WAYS: dict[str, dict[str, Any]] = {
    "eval": {"mode": "eval"},
    "adamw": {"optimizer": "adamw"},
    "kept": {"optimizer": "sgd", "keep_output": True, "steps": 3},
}


def kinds(estimate: MemoryEstimate) -> dict[str, int]:
    """The bytes at the peak by kind; what passes inside a kernel is of one kind, results that are under way with it."""
    passing = ("temporaries", "workspace", "gradients")
    lasting = {kind: nbytes for kind, nbytes in estimate.at_peak.items() if kind not in passing}
    return {**lasting, "passing": sum(estimate.at_peak[kind] for kind in passing)}


def figures_by_module(estimate: MemoryEstimate) -> dict[str, int]:
    """What each module holds at the peak and adds to the step."""
    figures = {f"{module.path} at the peak": module.own_bytes for module in estimate.by_module}
    for module in estimate.by_module:
        for field in fields(module.own):
            figures[f"{module.path} {field.name}"] = getattr(module.own, field.name)
            figures[f"{module.path} {field.name} inclusive"] = getattr(module.inclusive, field.name)
    return figures


def saved(estimate: MemoryEstimate) -> dict[str, int | None]:
    """What each call keeps, and what is live when it ends."""
    calls = list(enumerate(estimate.by_call))
    return {f"{n} {path} saved": memory.saved_bytes for n, (path, memory) in calls} | {
        f"{n} {path} live": memory.peak_bytes for n, (path, memory) in calls
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_measured_is_what_is_predicted(name: str, way: str) -> None:
    make, size = MODELS[name]
    model = make()
    predicted, measured = (call(model, size, 3, **WAYS[way]) for call in (estimate_memory, measure_memory))
    assert measured.peak_bytes == predicted.peak_bytes
    assert measured.steady_bytes == predicted.steady_bytes
    assert measured.phase_peaks == predicted.phase_peaks
    assert kinds(measured) == kinds(predicted)
    assert figures_by_module(measured) == figures_by_module(predicted)
    assert saved(measured) == saved(predicted)
    where = (measured.peak_phase, measured.peak_location, measured.peak_operator)
    assert where == (predicted.peak_phase, predicted.peak_location, predicted.peak_operator.partition(".")[0])
    assert sum(measured.at_peak.values()) == measured.peak_bytes
    assert sum(module.own_bytes for module in measured.by_module) == measured.peak_bytes


@of_parts(lambda in_threads: {"branches": nn.ModuleList(nn.Linear(32, 64) for _ in range(2)), "in_threads": in_threads})
def Threaded(self, x: torch.Tensor) -> torch.Tensor:
    """Two branches, each in a thread of its own or one after the other."""
    if not self.in_threads:
        return torch.cat([branch(x) for branch in self.branches], 1)
    with ThreadPoolExecutor(1) as executor:
        return torch.cat(list(executor.map(lambda branch: branch(x), self.branches)), 1)


def test_layers_that_run_in_threads_are_named_because_the_profiler_sees_none_of_them() -> None:
    request: dict[str, Any] = {"input_size": (32,), "batch_size": 16, "mode": "eval"}
    predicted = estimate_memory(Threaded(True), **request)
    measured, whole = (measure_memory(Threaded(in_threads), **request) for in_threads in (True, False))
    assert measured.peak_bytes < whole.peak_bytes <= predicted.peak_bytes
    assert any(line.startswith("branches.0, branches.1: called in threads") for line in measured.assumptions)
    assert not any("threads" in line for line in whole.assumptions)


def test_the_model_is_untouched() -> None:
    model = resnet18()
    model.layer1.eval()
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    before = snapshot(model)
    measure_memory(model, (3, 64, 64), 2, optimizer="sgd")
    assert snapshot(model) == before
    with pytest.raises(ForwardError):
        measure_memory(model, (4, 64, 64), 2)
    assert snapshot(model) == before


def test_errors_name_the_layer_the_phase_and_the_cure() -> None:
    make, size = MODELS["mlp"]
    with pytest.raises(ForwardError, match=r"0 \(Linear\)"):
        measure_memory(make(), (65,), 2)
    with pytest.raises(StepError, match="loss"):
        measure_memory(make(), size, 2, loss=lambda output: output.no_such_thing)
    with pytest.raises(InputError, match=r"the model is on cpu, not on cuda:0; move it with model\.to\('cuda:0'\)"):
        measure_memory(make(), size, 2, device="cuda")
    with torch.device("meta"):
        model = make()
    with pytest.raises(InputError, match="has tensors on meta"):
        measure_memory(model, size, 2)


def test_predicted_and_measured_side_by_side() -> None:
    make, size = MODELS["mlp"]
    model = make()
    predicted, measured = (call(model, size, 32, optimizer="adamw") for call in (estimate_memory, measure_memory))
    both = compare(predicted, measured)
    assert both.names == ("predicted", "measured")
    (table,) = both.tables()
    rows = {row.path: [cell.value for cell in row.cells] for row in table.rows}
    assert rows["peak_bytes"] == [predicted.peak_bytes, measured.peak_bytes, 0]
    assert sum(values[0] for path, values in rows.items() if path.removeprefix("peak_")[:-6] in KINDS) == (
        predicted.peak_bytes
    )
    assert rows["optimizer_peak_bytes"][0] == predicted.phase_peaks["optimizer"]
    step = "Training step: Sequential, batch 32, AdamW, float32, loss: the output's sum, on the CPU"
    assert f"predicted: {step}; peak in the" in str(both) and f"measured: {step}, measured; peak in the" in str(both)
    assert "reserved_bytes" not in rows
    assert StepComparison.from_json(both.to_json()) == both


def test_stderr_gets_what_is_written_to_it_but_no_notes_of_the_profiler(capfd: pytest.CaptureFixture[str]) -> None:
    class Loud(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            os.write(2, b"from the model\n")
            return super().forward(x)

    measure_memory(Loud(4, 4), (4,))
    assert set(capfd.readouterr().err.splitlines()) == {"from the model"}
    with without_notes():
        os.write(2, b"USDT: a note\nand a warning\n")
    assert capfd.readouterr().err == "and a warning\n"


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 6, 8, 16)[..., ::2],
        torch.randn(4, 1, 8, 8).expand(4, 6, 8, 8),
        torch.randn(8, 8, 6, 4).permute(3, 2, 1, 0),
    ],
    ids=["every second column", "expanded", "reversed axes"],
)
def test_an_inputs_copy_has_its_strides_and_storage(x: torch.Tensor) -> None:
    model = nn.Sequential(nn.GroupNorm(2, 6), nn.Conv2d(6, 8, 3))
    for mode in ("train", "eval"):
        truth = measure(model, (x,), mode)
        assert measure_memory(model, input_data=x, mode=mode).peak_bytes == truth
        assert estimate_memory(model, input_data=x, mode=mode).peak_bytes == truth


def test_what_cannot_be_compared_is_an_error() -> None:
    make, size = MODELS["mlp"]
    estimate = estimate_memory(make(), size)
    with pytest.raises(InputError, match="accepted: only estimates, or only models"):
        compare(estimate, make())  # type: ignore[call-overload]
    with pytest.raises(InputError, match="only one estimate was given; accepted: 2 or more"):
        compare(estimate)
