"""Results read from JSON: what contradicts itself is refused there, and not later by whatever shows it."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from examples.resnet import resnet18
from torchsummary_plus import (
    InputError,
    MemoryEstimate,
    MemTracker,
    ModelSummary,
    TrackReport,
    compare,
    estimate_memory,
    summary,
)

NET = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))


@pytest.fixture(scope="module")
def table() -> ModelSummary:
    return summary(NET, (4,), verbose=0, memory="train")


@pytest.fixture(scope="module")
def step() -> MemoryEstimate:
    return estimate_memory(NET, (4,), optimizer="adam", gpu="H100")


def edited(result: Any, *path: Any, to: Any) -> str:
    """The JSON of a result with one value replaced."""
    data = json.loads(result.to_json())
    inside = data
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = to(inside[path[-1]]) if callable(to) else to
    return json.dumps(data)


EDITS: dict[str, tuple[tuple[tuple[Any, ...], Any], ...]] = {
    "table": (
        (("rows", 2, "parent"), 7), (("rows", 1, "index"), 0), (("rows",), []), (("rows", 1, "num_params"), 21),
        (("row_memory",), lambda memory: memory[1:]), (("flow", "owners"), lambda owners: [99, *owners[1:]]),
        (("flow", "links", "source"), lambda ends: [50 for _ in ends]), (("total_mult_adds",), 1 << 70),
        (("memory", "log", "events", 0, 0), 10**6),
    ),
    "step": (
        (("backend",), "abacus"), (("by_module",), []), (("peak_bytes",), -1), (("log", "module_paths"), ["a"]),
        (("log", "moments", "module"), lambda numbers: [99 for _ in numbers]), (("info", "gpu"), "GPU"),
        (("log", "storages", "band"), lambda bands: [float("nan") for _ in bands]),
        (("log", "calls", "stop"), lambda ends: [10**6 for _ in ends]),
        (("log", "events"), lambda events: [events[0], *events]),
    ),
    "graph": ((("edges", 0, "source"), 99),), "steps": ((("estimates",), []), (("names",), ["a"])),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "to"), [(kind, *edit) for kind, edits in EDITS.items() for edit in edits])
def test_a_result_that_contradicts_itself(
    kind: str, path: Any, to: Any, table: ModelSummary, step: MemoryEstimate
) -> None:
    made: dict[str, Callable[[], Any]] = {
        "table": lambda: table, "step": lambda: step, "graph": lambda: table.graph(),
        "steps": lambda: compare({"a": step, "b": step}),
    }  # fmt: skip
    result = made[kind]()
    with pytest.raises(InputError, match=r"contradicts itself|more than 64 bits|memory is 'GPU'"):
        type(result).from_json(edited(result, *path, to=to))


def test_a_text_that_is_too_deep_or_repeats_a_key(table: ModelSummary) -> None:
    for depth in (300, 100_000):
        with pytest.raises(InputError):
            ModelSummary.from_json("[" * depth)
        nested = '{"items": [' * depth + "null" + '], "names": null}' * depth
        with pytest.raises(InputError, match="nested too deeply"):
            ModelSummary.from_json(edited(table, "inputs", to="NESTED").replace('"NESTED"', nested))
    with pytest.raises(InputError, match="the key 'type' more than once"):
        ModelSummary.from_json('{"type": "ModelSummary", "type": "ModelSummary"}')


def test_what_was_written_is_read(table: ModelSummary, step: MemoryEstimate) -> None:
    """Also an estimate with workspaces of which little is known, such as convolutions of few pixels."""
    convolutions = estimate_memory(resnet18(), (3, 64, 64), 4, gpu="A100 80GB")
    tracker = MemTracker(stream=io.StringIO(), device="cpu")
    kept = torch.zeros(8)
    tracker.track("\ud800")
    for result in (table, step, convolutions, tracker.report()):
        assert type(result).from_json(result.to_json()) == result
    assert kept.numel() and isinstance(tracker.report(), TrackReport)
