"""Recordings of GPUs: histories replay, and recordings match predictions."""

import json
import os
from pathlib import Path

import pytest
from torch import nn

from benchmarks.cpu.report import percentile
from benchmarks.cuda.configs import configured
from benchmarks.cuda.files import DATA, recording_name
from benchmarks.cuda.history import (
    RELEASED,
    SEGMENT,
    histories_path,
    peaks,
    read_histories,
    reduce_history,
    replay_history,
)
from benchmarks.cuda.libraries import Family
from benchmarks.cuda.truth import compare
from tests.truth.releases import from_release
from torchsummary_plus.live.compat import since
from torchsummary_plus.memory.estimate import ADDRESS_BAND

MIB = 1 << 20
NOOP = sorted(DATA.glob("gpu_truth_noop_*.json"))
"""What the no-op CUDA runtime recorded (benchmarks/nocuda); the others are real cards'."""
OWN = [path for path in NOOP if "_libraries_" not in path.name]
RECORDINGS = sorted(set(DATA.glob("gpu_truth_*.json")) - set(NOOP))
CHECKED = 5
"""Configurations of each recording that the tests predict; ``python -m benchmarks.cuda.truth --compare`` does all."""


def test_a_history_is_reduced_to_sizes_and_order() -> None:
    """An address that is used again is another block; requests to free, snapshots and foreign frees fall away."""
    entries = (
        ("free_completed", 900, 64),
        ("oom", 0, 1 << 40),
        ("segment_alloc", 1000, 2 * MIB),
        ("alloc", 1000, 100),
        ("free_requested", 1000, 100),
        ("free_completed", 1000, 100),
        ("alloc", 1000, 300),
        ("snapshot", 0, 0),
        ("segment_free", 9000, 20 * MIB),
    )
    trace = [{"action": action, "addr": address, "size": size, "stream": 0} for action, address, size in entries]
    reduced = reduce_history({"device_traces": [trace], "segments": []})
    assert reduced == [[SEGMENT, 2 * MIB], [0, 100], [0, 0], [1, 300], [RELEASED, 20 * MIB]]


@pytest.mark.skipif(since("2.14"), reason="recorded on torch 2.11; later releases choose other kernels")
@pytest.mark.usefixtures("kept_workspaces")
@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_bears_the_predictions_out(path: Path) -> None:
    recording = json.loads(path.read_text())
    spread = max(1, len(recording["records"]) // CHECKED)
    errors = compare({**recording, "records": recording["records"][::spread]})
    limits = {"peak_bytes": (0.005, 0.95, 0.03), "reserved_bytes": (0.02, 0.75, 0.08)}
    for key, (median, part, most) in limits.items():  # cuDNN splits some convolutions otherwise with a real GPU
        sizes = [abs(error) for error in errors[key]]
        assert percentile(sizes, 0.5) <= median
        assert percentile(sizes, part) <= most


@pytest.mark.parametrize("path", NOOP, ids=lambda path: path.stem)
def test_the_allocator_model_replays_recorded_histories(path: Path) -> None:
    """A part of them: ``python -m benchmarks.cuda.history`` replays all; tests/memory has a real GPU's."""
    histories = read_histories(histories_path(path))
    assert len(histories) >= CHECKED
    assert set(histories) <= {r["name"] for r in json.loads(path.read_text())["records"] if "error" not in r}
    chosen = sorted(histories)[:: len(histories) // CHECKED]
    assert {name: wrong for name in chosen if (wrong := replay_history(histories[name]))} == {}


def test_the_reserved_bytes_of_a_real_gpu_are_in_the_band_of_its_release() -> None:
    """torch 2.11 reuses memory by addresses, so that some histories do not replay."""
    recordings = sorted(DATA.glob("gpu_truth_nvidia_h100*_torch_2.11.0_*.histories.xz"))
    histories = {name: history for path in recordings for name, history in read_histories(path).items()}
    errors = [abs(predicted - truth) / predicted for predicted, truth in map(peaks, histories.values())]
    assert len(errors) > 200 and max(errors) <= ADDRESS_BAND
    assert sum(error == 0 for error in errors) >= 175 and max(errors) > 0.1


@pytest.mark.parametrize("path", NOOP, ids=lambda path: path.stem)
def test_a_recording_of_the_no_op_runtime_says_so(path: Path) -> None:
    recording = json.loads(path.read_text())
    assert recording["runtime"] == "no-op" and recording_name(recording) == path.name
    assert any("values" in line for line in recording["unknown"])
    known = [(c.name, c.held_out) for c in configured(recording["set"])]
    assert [(r["name"], r["held_out"]) for r in recording["records"]] == known
    assert not {"device_bytes", "outside_bytes"} & set().union(*recording["records"])


EXACT = (
    *("mlp-b2048-amp-adamw", "bert-b32-bf16-eval", "gpt2-b4-fp32-sgd", "t5-b8-fp32-sgd", "llama-b4-fp32-sgd"),
    *("mlp-b256-fp32-adamw", "gpt2-b16-amp-adamw-checkpointed", "t5-b32-bf16-fused", "bert-b8-fp32-adamw"),
)
"""Configurations without convolutions that are predicted to the byte; some of them for each card."""


@pytest.mark.skipif(since("2.14"), reason="recorded on torch 2.13; attention has other kernels and states from 2.14 on")
@pytest.mark.usefixtures("kept_workspaces")
@from_release("2.13", "the release of the recordings: older ones choose other kernels and cached blocks")
@pytest.mark.parametrize("place", range(len(OWN)), ids=[path.stem for path in OWN])
def test_what_is_exact_stays_exact(place: int) -> None:
    recording = json.loads(OWN[place].read_text())
    chosen = [record for record in recording["records"] if record["name"] in EXACT[place % 3 :: 3]]
    errors = compare({**recording, "records": chosen})
    assert errors["peak_bytes"] == [0.0] * 3
    assert max(map(abs, errors["reserved_bytes"])) <= 0.001


@pytest.mark.usefixtures("kept_workspaces")
@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.parametrize("name", ["bert-b32-bf16-eval", "vit-b128-bf16-eval", "lstm-b128-bf16-eval"])
def test_bfloat16_before_ampere_is_exact(name: str) -> None:
    """No fused attention, no cuDNN: the fast path's softmax in place, columns by cuBLAS, recurrent cells one by one."""
    recording = json.loads(next(path for path in OWN if "_t4_" in path.name).read_text())
    errors = compare({**recording, "records": [record for record in recording["records"] if record["name"] == name]})
    assert errors == {"peak_bytes": [0.0], "reserved_bytes": [0.0]}


def test_a_library_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """monai's import sets ``CUBLAS_WORKSPACE_CONFIG``, which would change every later configuration's workspaces."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)

    def build() -> nn.Module:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        return nn.Linear(1, 1)

    assert isinstance(Family("torch", "one", build, {"x": ((1,), 0)}, (1, 2)).make(), nn.Linear)
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
