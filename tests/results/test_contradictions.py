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
    ModelGraph,
    ModelSummary,
    StepComparison,
    TrackReport,
    compare,
    estimate_memory,
    graph,
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


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("rows", 2, "parent"), 7, "row 2 is not where its parent and depth say"),
        (("rows", 1, "index"), 0, "row 1 is not where"),
        (("rows",), [], "it has no rows"),
        (("rows", 1, "finished"), None, "row 1 has the end"),
        (("rows", 1, "num_params"), 21, "its rows add up to others"),
        (("rows", 1, "mult_adds"), -1, "a count of row 1 is negative"),
        (("rows", 1, "inputs", "shape"), [-1, 4], "no tensor has the shape"),
        (("row_memory",), lambda memory: memory[1:], "the memory is not that of its rows"),
        (("flow", "owners"), lambda owners: [99, *owners[1:]], "a step belongs to no call"),
        (("flow", "links", "source"), lambda ends: [50 for _ in ends], "a link is not from a step to a later one"),
        (("param_bytes",), -1, "a count or size is negative"),
        (("total_mult_adds",), 1 << 70, "has more than 64 bits"),
        (("memory", "log", "events", 0, 0), 10**6, "an event has an unknown moment or storage"),
    ],
)
def test_a_summary_that_contradicts_itself(table: ModelSummary, path: Any, to: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        ModelSummary.from_json(edited(table, *path, to=to))


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("at_peak",), {"unheard_of": 1}, "unknown kinds of memory"),
        (("backend",), "abacus", "it is of no known device"),
        (("by_module",), [], "its modules are not those of its log"),
        (("peak_bytes",), -1, "it has a negative size"),
        (("log", "module_paths"), ["a"], "it has no moments or no root"),
        (
            ("log", "module_paths"),
            lambda paths: [paths[0], "1.0", "1", *paths[3:]],
            "a module is listed before the one",
        ),
        (("log", "moments", "module"), lambda numbers: [99 for _ in numbers], "is of an unknown module"),
        (("log", "storages", "kind"), lambda kinds: ["x" for _ in kinds], "a storage has no known kind"),
        (("log", "storages", "band"), lambda bands: [float("nan") for _ in bands], "or an impossible error band"),
        (("log", "calls", "stop"), lambda ends: [10**6 for _ in ends], "a call is in no module, or ends before"),
        (("log", "calls", "outputs"), lambda all_: [[10**6] for _ in all_], "a call returns an unknown storage"),
        (("log", "events"), lambda events: [events[0], *events], "is allocated while it is live"),
    ],
)
def test_an_estimate_that_contradicts_itself(step: MemoryEstimate, path: Any, to: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        MemoryEstimate.from_json(edited(step, *path, to=to))


def test_graphs_and_comparisons_that_contradict_themselves(step: MemoryEstimate) -> None:
    drawing, steps = graph(NET, (4,)), compare({"a": step, "b": step})
    cases: list[tuple[Any, Callable[[str], Any], tuple[Any, ...], Any, str]] = [
        (drawing, ModelGraph.from_json, ("nodes", 1, "parent"), 99, "before the group that it is in"),
        (drawing, ModelGraph.from_json, ("nodes", 1, "kind"), "knot", "'knot' is no kind of node"),
        (drawing, ModelGraph.from_json, ("edges", 0, "source"), 99, "an edge ends at no node"),
        (steps, StepComparison.from_json, ("names",), ["a"], "each step has one name"),
    ]
    for result, read, path, to, said in cases:
        with pytest.raises(InputError, match=said):
            read(edited(result, *path, to=to))


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
