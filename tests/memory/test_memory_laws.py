"""Invariants of every estimate: sums, order, repetition, an unchanged model, and untraced batch sizes."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.parts import of_parts
from tests.truth.memory_truth import storage_bytes, threads_set_to
from tests.truth.releases import from_release
from tests.truth.warm import python
from torchsummary_plus.api.memory import estimate_memory, max_batch_size
from torchsummary_plus.data.errors import ForwardError
from torchsummary_plus.data.memory_records import MemoryLog, StorageSpec
from torchsummary_plus.memory.capacity import at_batch, scales
from torchsummary_plus.results.memory_estimate import MemoryEstimate

ROOT = Path(__file__).parents[2]
DEVICES = ("cpu", "cuda")
OPTIMIZERS = (None, "sgd", "adamw")


def mlp(widths: list[int], norm: bool = True) -> nn.Module:
    layers: list[nn.Module] = []
    for width, out in pairwise(widths):
        inner: list[nn.Module] = [nn.Linear(width, out), nn.GELU(), nn.Dropout(0.1)]
        layers.append(nn.Sequential(*inner, nn.LayerNorm(out)) if norm else nn.Sequential(*inner))
    return nn.Sequential(*layers, nn.Linear(widths[-1], 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp([20, 32, 24]), (20,)),
    "cnn": (cnn, (3, 12, 12)),
}


def estimated(name: str, batch: int = 4, device: str = "cpu", **options: Any) -> MemoryEstimate:
    build, size = MODELS[name]
    return estimate_memory(build(), size, batch, device, **options)


@settings(max_examples=12, deadline=None)
@given(
    widths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    batch=st.integers(1, 9),
    device=st.sampled_from(DEVICES),
    optimizer=st.sampled_from(OPTIMIZERS),
    mode=st.sampled_from(("train", "eval")),
)
def test_parts_add_up_to_the_peak(widths: list[int], batch: int, device: str, optimizer: str | None, mode: str) -> None:
    model = mlp(widths)
    estimate = estimate_memory(model, (widths[0],), batch, device, optimizer=optimizer, mode=mode)
    assert_laws(estimate, model)


def assert_laws(estimate: MemoryEstimate, model: nn.Module) -> None:
    peak = estimate.peak_bytes
    assert sum(estimate.at_peak.values()) == peak
    assert min(estimate.at_peak.values()) >= 0
    assert sum(module.own_bytes for module in estimate.by_module) == peak
    assert all(sum(nbytes for _, nbytes in m.at_peak) == m.own_bytes for m in estimate.by_module)
    assert estimate.by_module[0].inclusive_bytes == peak
    assert estimate.at_peak["inputs"] <= estimate.outside_bytes <= estimate.by_module[0].own_bytes
    assert max(point.total_bytes for point in estimate.timeline) == peak
    assert max(estimate.phase_peaks.values()) == peak
    assert storage_bytes([*model.parameters(), *model.buffers()]) <= estimate.steady_bytes <= peak
    assert peak <= estimate.reserved_bytes <= estimate.device_bytes[0] <= estimate.device_bytes[1]


def in_blocks(nbytes: int) -> int:
    """The most that so many bytes take of CUDA's caching allocator."""
    return -(-nbytes // 512) * 512


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_within_the_error_bands_of_its_rules(name: str, mode: str, device: str) -> None:
    estimate = estimated(name, 64, device, mode=mode, optimizer="adamw")
    low, high = estimate.peak_range
    banded = [ceil(storage.band * storage.nbytes) for storage in estimate.log.storages if storage.band]
    doubted = [doubt.nbytes for doubt in estimate.log.doubts]
    assert bool(doubted) == bool(estimate.unknown)
    reach = sum(map(in_blocks, banded))
    most = estimate.peak_bytes + reach + in_blocks(max(doubted, default=0))
    assert max(0, estimate.peak_bytes - reach) <= low <= estimate.peak_bytes <= high <= most
    answer = {row.path: row.cells[0].value for row in estimate.tables()[0].rows}
    assert estimate.peak_bytes == answer["peak"]
    assert (answer.get("at_least", low), answer.get("at_most", high)) == (low, high)
    assert (name, device) != ("mlp", "cpu") or low == high
    assert low == high or estimate.unknown or any("known to within" in line for line in estimate.assumptions)


CUDA_RULE = from_release("2.11", "the CUDA rule")


@pytest.mark.usefixtures("kept_workspaces")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA_RULE)])
def test_what_opens_the_range_is_named(device: str) -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        out = model(x)
        torch.zeros_like(out).masked_scatter(out > 0, out).sum().backward()
        model.zero_grad()

    x = torch.randn(256, 64)
    estimate = estimate_memory(nn.Linear(64, 64), input_data=x, device=device, train_step=step)
    low, high = estimate.peak_range
    assert low < high
    if device == "cpu":
        assert dict(estimate.unknown) == {"aten::masked_scatter_backward": 2}
    else:
        assert estimate.unknown == ()
        assert "aten::masked_scatter_backward: scratch memory known to within 95%" in estimate.assumptions


FIRST = """
import torch
from torch import Tensor, nn
from torchsummary_plus.api.memory import estimate_memory
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU())
first, second = (estimate_memory(model, (64,), 32) for _ in range(2))
raise SystemExit(0 if first.log == second.log else 3)
"""


def test_the_first_estimate_of_a_process_equals_the_second() -> None:
    done = subprocess.run([*python(), "-c", FIRST], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode in (0, 3), done.stderr.decode()
    assert done.returncode == 0


@pytest.mark.parametrize(("device", "mode"), [("cpu", "train"), ("cuda", "train"), ("cpu", "eval")])
@pytest.mark.parametrize("name", MODELS)
def test_two_traces_give_every_batch_event_for_event(name: str, mode: str, device: str) -> None:
    """With other sizes than weights' for activations: the CPU's scratch blocks are told apart by their sizes."""
    three, five = (estimated(name, batch, device, mode=mode, optimizer="adamw").log for batch in (3, 5))
    assert scales(three, five)
    for batch in (7, 9):
        traced = estimated(name, batch, device, mode=mode, optimizer="adamw").log
        scaled = at_batch({3: three, 5: five}, batch)
        assert scaled.mult_adds == traced.mult_adds
        assert of_tensors(scaled) == of_tensors(traced)
        if of_kernels(scaled) == of_kernels(traced):
            assert replace(scaled, doubts=()) == replace(traced, doubts=())
            assert [doubt.event for doubt in scaled.doubts] == [doubt.event for doubt in traced.doubts]
        else:
            assert (name, device) == ("cnn", "cuda")


def of_tensors(log: MemoryLog) -> list[tuple[int, int]]:
    """The events without kernels' scratch memory: cuDNN may choose another kernel for another batch."""
    return [(moment, nbytes) for moment, storage, nbytes in log.events if log.storages[storage].kind != "workspace"]


def of_kernels(log: MemoryLog) -> list[StorageSpec]:
    return [storage for storage in log.storages if storage.kind == "workspace"]


@pytest.mark.parametrize("name", MODELS)
def test_the_largest_batch_fits_and_the_next_does_not(name: str) -> None:
    build, size = MODELS[name]
    memory = 5_000_000
    with threads_set_to(1):  # With more, the sums for gradients of convolutions depend on the batch, too.
        limit = max_batch_size(build(), size, memory, device="cpu", optimizer="sgd")
        assert limit.is_proved
        assert len(limit.traced) <= 4
        assert limit.batch_size > 1
        for batch, peak, fits in (
            (limit.batch_size, limit.peak_bytes, True),
            (limit.batch_size + 1, limit.next_peak_bytes, False),
        ):
            traced = estimated(name, batch, optimizer="sgd")
            assert (traced.peak_bytes, traced.fits(memory)) == (peak, fits)


def test_the_largest_batch_on_a_card_fits_and_the_next_does_not() -> None:
    context = estimated("mlp", device="cuda")
    memory = context.device_bytes[1] - context.reserved_bytes + (256 << 20)
    limit = max_batch_size(mlp([512, 1024, 512]), (512,), memory, optimizer="adamw")
    for batch, fits in ((limit.batch_size, True), (limit.batch_size + 1, False)):
        traced = estimate_memory(mlp([512, 1024, 512]), (512,), batch, "cuda", optimizer="adamw")
        assert traced.fits(memory) == fits


def test_a_model_that_needs_two_values_is_too_large_at_a_batch_of_two() -> None:
    normed = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    peak = estimate_memory(normed, (64,), 2, "cpu").peak_bytes
    limit = max_batch_size(normed, (64,), peak - 100, device="cpu")
    assert (limit.batch_size, limit.peak_bytes, limit.next_peak_bytes) == (0, 0, peak)
    assert limit.missing_bytes == 100 and limit.is_proved and "none, a batch of 2 needs" in str(limit)
    assert max_batch_size(normed, (64,), peak, device="cpu").batch_size == 2
    with pytest.raises(ForwardError):
        max_batch_size(nn.Linear(32, 64), (64,), peak, device="cpu")


@of_parts(lambda: {"inner": nn.Linear(3, 3)})
def Chosen(self, x: torch.Tensor) -> torch.Tensor:
    return self.inner(x[x.sum(1) > 0])


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_of_a_billion_samples_is_estimated_without_one_of_them(device: str) -> None:
    batch = 1 << 30
    for model, size, dtype, nbytes in (
        (nn.Linear(3, 3), (3,), None, 12),
        (nn.Embedding(5, 3), (100,), torch.long, 800),
        (Chosen(), (3,), None, 12),
    ):
        estimate = estimate_memory(model, size, batch, device, dtype, optimizer="adamw", autocast="bfloat16")
        assert estimate.at_peak["inputs"] == nbytes * batch
        assert [line for line in estimate.assumptions if "its maximum size" in line] or not isinstance(model, Chosen)
