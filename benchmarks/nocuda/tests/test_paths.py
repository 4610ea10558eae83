"""The package's code that needs a GPU, on the no-op runtime: measuring, tracking, the installed GPU, models on it.

``python -m benchmarks.nocuda --card H100 -m pytest benchmarks/nocuda/tests``; plain pytest on a machine with a GPU.
"""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.nocuda.runtime import is_active
from torchsummary_plus import MemTracker, compare, estimate_memory, max_batch_size, measure_memory, summary
from torchsummary_plus.memory.gpus import context_bytes


@pytest.fixture(autouse=True)
def _empty_card() -> Iterator[None]:
    """Empty the GPU before and after a test."""
    if not is_active() and not torch.cuda.is_available():
        pytest.skip("the no-op runtime is not active, and there is no GPU")
    _clear()
    yield
    _clear()


def _clear() -> None:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 10))


STEPS: tuple[dict[str, Any], ...] = (
    {"mode": "eval"}, {"optimizer": "sgd", "autocast": torch.float16}, {"optimizer": "adam", "keep_output": True},
    {"optimizer": "adamw", "autocast": torch.bfloat16, "loss": "cross_entropy"}, {"optimizer": "adamw", "steps": 3},
)  # fmt: skip


def options(**changes: Any) -> dict[str, Any]:
    return {"batch_size": 64, "device": "cuda", **changes}


@pytest.mark.parametrize("changes", STEPS, ids=str)
def test_what_is_measured_is_what_is_predicted(changes: dict[str, Any]) -> None:
    gpu = torch.cuda.get_device_name()
    predicted = estimate_memory(perceptron(), (256,), gpu=gpu, progress=False, **options(**changes))
    measured = measure_memory(perceptron().cuda(), (256,), **options(**changes))
    assert (measured.peak_bytes, measured.steady_bytes) == (predicted.peak_bytes, predicted.steady_bytes)
    assert measured.reserved_bytes == predicted.reserved_bytes
    assert not [note for note in measured.assumptions if "allocator's own peak" in note]
    assert "peak" in str(compare(predicted, measured)).lower()


def scaled() -> Callable[..., None]:
    state: dict[str, Any] = {}

    def step(model: nn.Module, x: Tensor) -> None:
        if not state:
            state.update(scaler=torch.amp.GradScaler("cuda"), optimizer=torch.optim.SGD(model.parameters(), 0.1))
        with torch.autocast("cuda", torch.float16):
            loss = model(x).sum()
        state["scaler"].scale(loss).backward()
        state["scaler"].step(state["optimizer"])
        state["scaler"].update()
        state["optimizer"].zero_grad()

    return step


def test_a_users_step_is_measured_and_leaves_the_model() -> None:
    model = perceptron().cuda()
    before = {name: (p.data_ptr(), p.grad) for name, p in model.named_parameters()}
    measured = measure_memory(model, (256,), train_step=scaled(), **options())
    assert measured.peak_bytes > sum(p.nbytes for p in model.parameters())
    assert {name: (p.data_ptr(), p.grad) for name, p in model.named_parameters()} == before


def test_a_history_of_the_users_goes_on() -> None:
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    block = torch.empty(12345, dtype=torch.int8, device="cuda")
    measure_memory(perceptron().cuda(), (256,), **options(mode="eval"))
    (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(enabled=None)
    assert 12345 in [entry["size"] for entry in trace if entry["action"] == "alloc"]
    assert block.is_cuda


def test_a_model_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match="the model is on cpu"):
        measure_memory(perceptron(), (256,), **options())


def test_a_model_on_the_card_is_predicted_for_that_card() -> None:
    model = perceptron().cuda()
    reserved = torch.cuda.memory_allocated()
    estimate = estimate_memory(model, (256,), 64, optimizer="adamw", progress=False)
    named = estimate_memory(perceptron(), (256,), **options(optimizer="adamw", gpu=torch.cuda.get_device_name()))
    assert estimate.backend == "cuda" and estimate.peak_bytes == named.peak_bytes
    assert torch.cuda.memory_allocated() == reserved


def test_a_summary_of_a_model_on_the_card_touches_nothing() -> None:
    model = perceptron().cuda()
    states = torch.cuda.get_rng_state()
    reserved = torch.cuda.memory_allocated()
    report = summary(model, (256,), 8, memory={"optimizer": "sgd"}, verbose=False)
    assert "1,024" in str(report) or "1024" in str(report)
    assert torch.cuda.memory_allocated() == reserved
    assert torch.equal(torch.cuda.get_rng_state(), states)
    assert next(model.parameters()).is_cuda


def test_the_largest_batch_leaves_room_for_the_cards_context() -> None:
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    limit = max_batch_size(perceptron(), (256,), name, optimizer="sgd", progress=False)
    assert limit.context_bytes == context_bytes(capability)[1]
    assert limit.is_proved and limit.batch_size > 1000


def test_the_tracker_follows_a_model_and_its_gradients() -> None:
    tracker = MemTracker(stream=io.StringIO())
    tracker.track("before")
    model = perceptron().cuda()
    with tracker.watch(model):
        model(torch.zeros(64, 256, device="cuda")).sum().backward()
    last = tracker.track("after")
    report = tracker.report()
    tracker.clear_cache()
    tracker.close()
    assert report.device == "cuda:0"
    assert last.memory is not None and last.memory.peak_bytes >= last.memory.allocated_bytes > 0
    assert last.memory.used_bytes >= last.memory.reserved_bytes
    grads = sum(p.nbytes for p in model.parameters())
    assert last.tensor_bytes >= 2 * grads
    assert report.modules


@pytest.mark.skipif(not is_active(), reason="describes the no-op runtime")
def test_a_function_without_an_answer_fails_by_its_name() -> None:
    """It must not return 0: the plan of a Fourier transform has a workspace, whose size is unknown here."""
    with pytest.raises(RuntimeError, match=r"cuFFT|CUFFT"):
        torch.fft.fft(torch.empty(64, 64, device="cuda"))
    refused = pytest.raises(RuntimeError, match="no-op CUDA runtime: cudaStreamBeginCapture")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        pass
