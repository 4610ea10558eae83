"""cuDNN's workspaces where torch ships cuDNN, and how torch uses them.

benchmarks/data/cudnn_answers.json.xz holds what the real cuDNN answered.
"""

import ctypes
import subprocess
import sys
from dataclasses import replace
from threading import Lock

import pytest
import torch
from torch import nn

from benchmarks.cuda.cudnn_table import ANSWERS, NUMBERS, columns, name_of, question_of, read
from tests.ops.asking import has_cudnn
from tests.truth.releases import from_release
from torchsummary_plus import InputError, estimate_memory
from torchsummary_plus.data.memory_records import MemoryLog, Moment, StorageSpec
from torchsummary_plus.live.cuda_calls import capability_of
from torchsummary_plus.memory.estimate import log_fits
from torchsummary_plus.memory.gpus import context_range
from torchsummary_plus.ops.scratch.cuda.cudnn import backend, queries
from torchsummary_plus.ops.scratch.cuda.cudnn.backend import (
    DOWN_CONVERT,
    INSTANT,
    NONDETERMINISTIC,
    TENSOR_CORE,
    CudnnError,
    Kind,
    Question,
    cudnn_library,
)
from torchsummary_plus.ops.scratch.cuda.cudnn.queries import known_cards, plans, refused_notes, requested, settings

RECORDED = read(ANSWERS)


def asked(question: Question, card: str, tensor_cores: bool = True) -> tuple[int, ...]:
    refused = refused_notes(tensor_cores)
    return plans(question, known_cards()[card], refused, ask=queries.workspaces_of_worker)


needs_cudnn = pytest.mark.skipif(not has_cudnn(), reason="torch brings no cuDNN that can be asked")


@needs_cudnn
def test_cudnn_answers_as_it_was_recorded() -> None:
    """Recorded with all of its engines."""
    if cudnn_library().cudnnGetVersion() != RECORDED["cudnn"]:
        pytest.skip("another version of cuDNN than the recording's")
    checked = 0
    for conv, row in RECORDED["answers"][:40]:
        for answer, (card, numbers, last, kind) in list(zip(row, columns()))[::17]:
            dtype, tensor_cores = NUMBERS[numbers]
            question = question_of(conv, dtype, last, kind)
            if answer is not None:
                assert asked(question, card, tensor_cores)[0] == answer, name_of(card, numbers, last, kind)
                checked += 1
    assert checked > 50


ONE_BY_ONE = Question(
    *(Kind.FORWARD, "float32", False, (128, 256, 56, 56), (64, 256, 1, 1), (128, 64, 56, 56)), (0, 0), (1, 1), (1, 1)
)


@needs_cudnn
@pytest.mark.skipif(capability_of(0) is not None, reason="a driver is here")
def test_engines_that_need_a_driver_are_offered_in_a_process_with_stand_ins() -> None:
    """A matrix product, which takes nothing; it comes first, and is missing in a process without a driver."""
    assert asked(ONE_BY_ONE, "t4", tensor_cores=False) == (0,)
    assert plans(ONE_BY_ONE, known_cards()["t4"], refused_notes(tensor_cores=False))[0] > 0


def test_the_workers_code_needs_no_torch() -> None:
    """Importing torch there would load CUDA's real libraries beside the stand-ins, which ends the subprocess."""
    code = "import sys, runpy; sys.modules['torch'] = None; runpy.run_path(sys.argv[1])"
    subprocess.run([sys.executable, "-I", "-c", code, backend.__file__], check=True)


@needs_cudnn
def test_the_worker_ends_with_an_error_and_not_with_the_process() -> None:
    impossible = replace(ONE_BY_ONE, dtype="float64", w=(64, 255, 1, 1))
    with pytest.raises(CudnnError):
        asked(impossible, "h100")
    assert asked(ONE_BY_ONE, "h100")


@needs_cudnn
@pytest.mark.skipif(capability_of(0) is not None, reason="a driver is here")
def test_without_a_driver_and_a_subprocess_cudnn_is_not_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process it would offer fewer engines."""
    monkeypatch.setattr(queries, "worker_of", lambda *_: None)
    found = estimate_memory(nn.Conv2d(64, 64, 3), (64, 56, 56), 4, gpu="T4", mode="eval", progress=False)
    assert any("on Linux alone" in said for said in found.assumptions)
    with pytest.raises(InputError, match="on Linux alone"):
        estimate_memory(nn.Conv2d(3, 8, 3), (3, 8, 8), 1, gpu="T4", cudnn="ask", progress=False)


ECHO = """
import json, sys
for number, line in enumerate(sys.stdin):
    print(json.dumps({"workspaces": [number, json.loads(line)[2]]}), flush=True)
"""


def test_a_subprocess_answers_until_it_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, command = subprocess.PIPE, [sys.executable, "-c", ECHO]
    echo, ask = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True), queries.workspaces_of_worker
    monkeypatch.setattr(queries, "worker_of", lambda *_: (echo, Lock()))
    try:
        assert [[*ask(ONE_BY_ONE, "", mode, frozenset())] for mode in (2, 1)] == [[0, 2], [1, 1]]
    finally:
        echo.kill()
        echo.wait()
    with pytest.raises(CudnnError, match="exited"):
        ask(ONE_BY_ONE, "", 0, frozenset())


@pytest.mark.skipif(not backend.is_possible(), reason="no ELF for this platform")
def test_a_shared_library_without_code_calls_python() -> None:
    answer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda number: number + 1)
    backend.load("libof_a_test.so.7", {"one_more": answer, "as_well": answer})
    result = ctypes.CDLL("libof_a_test.so.7")
    assert result.one_more(41) == 42 and result.as_well(1) == 2


@needs_cudnn
@from_release("2.11", "the release that CUDA rules were measured on")
def test_what_was_asked_is_exact_and_needs_no_cuda() -> None:
    model = nn.Conv2d(64, 64, 3, padding=1)
    estimate = estimate_memory(model, (64, 56, 56), 8, gpu="A100 80GB", cudnn="ask", progress=False)
    assert not estimate.unknown and estimate.peak_range == (estimate.peak_bytes, estimate.peak_bytes)
    assert not torch.cuda.is_initialized()
    near = estimate_memory(model, (64, 56, 56), 8, gpu="RTX 3080 10GB", cudnn="ask", progress=False)
    assert any("RTX 3080 10GB with the properties of a NVIDIA GeForce RTX 3090" in said for said in near.assumptions)


@pytest.mark.skipif(has_cudnn(), reason="torch brings a cuDNN that can be asked")
def test_cudnn_that_must_be_asked_and_is_not_there_is_an_error() -> None:
    why = r"cuDNN [\d.]+ cannot be queried" if torch.backends.cuda.is_built() else "this torch is a CPU build"
    with pytest.raises(InputError, match=f"cudnn is 'ask', but {why}"):
        estimate_memory(nn.Conv2d(3, 8, 3), (3, 8, 8), 1, gpu="A100 80GB", cudnn="ask", progress=False)


def test_engines_that_torch_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """``filterEngineConfigs`` drops engines that round down or are not deterministic, and tensor cores without TF32."""
    assert settings("float32") == ({DOWN_CONVERT}, False, INSTANT)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert settings("float32")[0] == {DOWN_CONVERT, TENSOR_CORE}
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    assert settings("float16")[0] == {DOWN_CONVERT, NONDETERMINISTIC}


def test_a_smaller_plan_is_taken_where_there_is_no_memory() -> None:
    """As ``try_configs`` continues when an allocation fails; a plan that is not smaller would fail too."""
    assert requested((64, 96, 16, 0)) == (64, 16, 0) and requested((0,)) == (0,)
    context = context_range(1 << 40)[1]
    for lesser, fits in (((), False), ((90 << 20,), False), ((90 << 20, 4 << 20), True), ((0,), True)):
        storages = (StorageSpec(100 << 20, None, 0), StorageSpec(100 << 20, "workspace", 0, lesser))
        events = ((0, 0, 100 << 20), (0, 1, 100 << 20), (0, 1, 0))
        log = MemoryLog((Moment("", -1, "forward", 0),), events, storages, ("",))
        options = estimate_memory(nn.ReLU(), (1,), 1, "cuda", mode="eval", progress=False).options
        assert log_fits(log, "cuda", options, (120 << 20) + context) is fits


@pytest.mark.parametrize(("lesser", "fits"), [(12, False), (13, True)])
def test_a_convolution_begins_with_the_plan_that_ran_before(lesser: int, fits: bool) -> None:
    """As ``run_single_conv`` does: only another convolution tries its largest plan, whose failure empties the cache."""
    small = {1: (12 << 20,), 4: (lesser << 20,)}
    sizes = [size << 20 for size in (30, 100, 10, 60, 100, 10, 55)]
    storages = tuple(StorageSpec(size, None, 0, small.get(n, ())) for n, size in enumerate(sizes))
    order = (0, 1, -1, 2, 3, -3, 4, -4, 5, 6)
    events = tuple((0, abs(n), sizes[n] if n >= 0 else 0) for n in order)
    log = MemoryLog((Moment("", -1, "forward", 0),), events, storages, ("",))
    options = estimate_memory(nn.ReLU(), (1,), 1, "cuda", mode="eval", progress=False).options
    context = context_range(1 << 40)[1]
    assert log_fits(log, "cuda", options, (120 << 20) + context) is fits
