"""Single operators on a GPU: predictions against the requests recorded on the no-op runtime."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.cuda.calls import BOUNDED, calls, compare, predicted, sequence
from benchmarks.cuda.files import DATA
from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.live.compat import since

RECORDINGS = sorted(DATA.glob("gpu_calls_noop_*.json"))
EXACT = {
    "normalised": 0.5,
    "rows_call": 0.75,
    **dict.fromkeys(("attention", "image_call", "looked_up", "loss_call"), 1.0),
}
"""The least share of a kind's calls whose peak is predicted to the byte; how much some select depends on values."""
EVERY = 4
"""Of the calls, one in so many is predicted here; ``python -m benchmarks.cuda.calls --compare`` does all."""


def test_the_order_in_which_memory_is_freed_makes_no_difference() -> None:
    assert sequence([5, 3, -3, -5, 2]) == sequence([5, 3, -5, -3, 2]) == [5, 3, -5, -3, 2]


as_recorded = pytest.mark.skipif(
    not since("2.13") or since("2.14"), reason="this torch chooses among attention kernels in another way than 2.13"
)


def recorded_kinds() -> Iterator[Any]:
    """Yield each recording's records of each kind; GPUs other than the A100 have only those that depend on the GPU."""
    for path in RECORDINGS:
        recording = json.loads(path.read_text())
        for kind in EXACT:
            records = [record for record in recording["records"] if record["name"].startswith(f"{kind}(")]
            if records:
                by_name = {**recording, "records": records[::EVERY]}
                marks = as_recorded if kind == "attention" else ()
                yield pytest.param(by_name, kind, id=f"{path.stem}-{kind}", marks=marks)


@pytest.mark.parametrize(("recording", "kind"), recorded_kinds())
def test_single_calls_allocate_what_the_judge_recorded(recording: dict[str, Any], kind: str) -> None:
    errors = compare(recording)[kind]
    assert sum(error == 0 for error in errors) >= EXACT[kind] * len(errors)


REAL = json.loads((DATA / "gpu_calls_nvidia_h100_80gb_hbm3_torch_2.11.0.json").read_text())
OUTER = "product(rows=1, inner=1024, columns=1, batch=3, form=turned, dtype=fp32)"
"""A batch of outer products, for which torch has a Triton kernel from 2.13 on."""


@from_release("2.11", "the kernels of the recorded release")
@pytest.mark.usefixtures("kept_workspaces")
def test_a_real_gpu_allocated_what_is_predicted_or_in_its_range() -> None:
    """An H100 with torch 2.11; later releases choose another kernel for attention with some dropouts."""
    known = {call.name: call for call in calls()}
    records = [record for record in REAL["records"] if "error" not in record and record["name"] != OUTER]
    records = [r for r in records if not r["name"].startswith("attention") or not since("2.12")]
    exact = 0
    for record in records:
        call = known[record["name"]]
        options = {"input_data": call.inputs("meta"), "device": "cuda", "gpu": REAL["gpu"], "steps": 1}
        estimate = estimate_memory(call.build(), progress=False, **options)
        low, high = estimate.peak_range
        assert low <= record["peak_bytes"] <= high, record["name"]
        exact += estimate.peak_bytes == record["peak_bytes"] or bool(BOUNDED & dict(estimate.unknown).keys())
        assert estimate.peak_bytes == record["peak_bytes"] or dict(estimate.unknown), record["name"]
    assert exact >= 0.96 * len(records) >= 150


@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.usefixtures("kept_workspaces")
def test_operators_with_only_a_bound_are_named_and_a_real_gpu_allocated_no_more() -> None:
    """An H200 with torch 2.11: also what cuSOLVER, cuBLAS and cuFFT ask for, which no rule says."""
    recording = json.loads((DATA / "gpu_calls_nvidia_h200_torch_2.11.0.json").read_text())
    known = {call.name: call for call in calls()}
    for record in recording["records"][::EVERY]:
        prediction = predicted(known[record["name"]], recording["gpu"])
        low, high = prediction["range"]
        assert BOUNDED & prediction["unknown"].keys(), record["name"]
        assert low <= record["peak_bytes"] <= high, record["name"]
