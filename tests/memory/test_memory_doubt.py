"""If an estimate names an operator without a rule, its range is wider and contains the peak; the oracle of peaks."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.truth.memory_truth import cpu_deltas, highest, measure
from tests.truth.releases import from_release
from torchsummary_plus import measure_memory
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.errors import UnsupportedError
from torchsummary_plus.data.memory_records import LEAST_DOUBT
from torchsummary_plus.memory import estimate as estimates
from torchsummary_plus.memory.attribution import replay
from torchsummary_plus.ops.scratch.registry import SCRATCH, UNMODELLED, Alloc, AtMost, Rule
from torchsummary_plus.step import real_steps
from torchsummary_plus.step.workspace import LARGEST_LASTING, WITH_VECTORS

pytestmark = pytest.mark.usefixtures("threads")


class Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], object], side: int) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(side, side) + side * torch.eye(side))

    def forward(self, x: Tensor) -> object:
        return self.function(self.weight + x)


WITHOUT_A_RULE: dict[str, Callable[[Tensor], object]] = {
    "linalg_lstsq": lambda x: torch.linalg.lstsq(x, x[:, :3]),
    "linalg_eig": torch.linalg.eig,
    "cholesky_solve": lambda x: torch.cholesky_solve(x[:, :3], x.tril()),
    "ormqr": lambda x: torch.ormqr(x, x[0], x[:, :3]),
    "linalg_ldl_solve": lambda x: torch.linalg.ldl_solve(x, torch.arange(1, len(x) + 1, dtype=torch.int32), x[:, :3]),
    "mvlgamma_": lambda x: (x.abs() + 9).mvlgamma_(3),
}


@pytest.mark.parametrize("name", WITHOUT_A_RULE)
def test_rare_operators_are_tried(name: str) -> None:
    model, x = Applied(WITHOUT_A_RULE[name], 60), torch.ones(1)
    estimate = estimate_memory(model, input_data=x, mode="eval", steps=1)
    assert {name for name, _ in estimate.unknown} <= WITH_VECTORS
    assert estimate.peak_bytes == measure(model, (x,), "eval", steps=1)


OF_ROWS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SparseAdam": torch.optim.SparseAdam,
    "Adagrad": torch.optim.Adagrad,
    "SGD": torch.optim.SGD,
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
}
"""Optimizers that take sparse gradients."""


@pytest.mark.parametrize("optimizer", OF_ROWS.values(), ids=OF_ROWS)
def test_sparse_gradients_are_measured_or_the_truth_is_in_the_range(
    optimizer: Callable[..., torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.arange(256) % 100
    for kind, padding in itertools.product((nn.Embedding, nn.EmbeddingBag), (None, 1)):
        model = kind(100, 32, sparse=True, padding_idx=padding)
        options: dict[str, Any] = {"input_data": ids.view(-1, 4), "optimizer": optimizer, "loss": torch.sum}
        truth = measure(model, (ids.view(-1, 4),), "train", optimizer=optimizer)
        assert estimate_memory(model, **options).peak_bytes == truth
        monkeypatch.setattr(real_steps, "MOST_BYTES", 0)
        estimate = estimate_memory(model, **options)
        monkeypatch.undo()
        low, high = estimate.peak_range
        assert estimate.unknown
        assert low <= truth <= high


def early(x: Tensor) -> Tensor:
    return (x[:1, :1].cos() + x) @ x


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=from_release("2.11", "the release that CUDA rules were measured on"))]
)
@pytest.mark.parametrize("name", ["aten::cos", "aten::mm"])
def test_the_range_is_open_whichever_rule_is_missing(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Applied(early, 40), torch.ones(1)
    sure = estimate_memory(model, input_data=x, device=device)
    monkeypatch.delitem(SCRATCH, (device, name), raising=False)
    monkeypatch.setitem(UNMODELLED, device, frozenset({name}))
    estimate = estimate_memory(model, input_data=x, device=device)
    low, high = estimate.peak_range
    assert (sure.unknown, dict(estimate.unknown).keys()) == ((), {name})
    assert low <= estimate.peak_bytes <= high - LEAST_DOUBT
    assert len(estimate.log.doubts) == sum(count for _, count in estimate.unknown)
    assert all(doubt.nbytes >= LEAST_DOUBT for doubt in estimate.log.doubts)


@from_release("2.11", "the release that CUDA rules were measured on")
def test_an_operator_that_no_table_knows_is_named_on_cuda() -> None:
    """As one of a later release would be."""
    named = estimate_memory(Applied(torch.pdist, 40), input_data=torch.ones(1), mode="eval", device="cuda")
    assert dict(named.unknown) == {"aten::_pdist_forward": 2}


@pytest.mark.usefixtures("kept_workspaces")
@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.parametrize("is_late", [False, True])
def test_an_operator_without_a_rule_may_keep_cublas_workspace(is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the forward's thread, unless something before it has."""

    def forward(x: Tensor) -> Tensor:
        x = x @ x if is_late else x
        return (x[:1, :1].cos() + x).repeat(300, 300)

    monkeypatch.setitem(UNMODELLED, "cuda", frozenset({"aten::cos"}))
    estimate = estimate_memory(Applied(forward, 40), input_data=torch.ones(1), device="cuda", mode="eval")
    assert dict(estimate.unknown).keys() == {"aten::cos"}
    assert (estimate.peak_range[1] >= estimate.peak_bytes + LARGEST_LASTING) == (not is_late)


def test_a_bound_comes_on_top_of_known_scratch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel holds both at once, although a bound is recorded once the known part is freed."""
    known, bound = 1 << 20, 1 << 16
    rule = Rule(lambda *_: AtMost(bound, (Alloc(known),)))
    monkeypatch.setitem(SCRATCH, ("cpu", "aten::relu"), rule)
    estimate = estimate_memory(nn.ReLU(), (256,), 4, mode="eval", progress=False)
    assert estimate.peak_range == (estimate.peak_bytes, estimate.peak_bytes + bound)


def test_the_range_holds_the_peak_for_any_scratch_memory_within_its_bands() -> None:
    """Scratch memory of another size makes the allocator choose other blocks, whose rests count as allocated."""
    wide = (nn.Conv2d(32, 64, 1), nn.ReLU6(), nn.Conv2d(64, 32, 1))
    blocks = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU6(), *wide) for _ in range(4)]
    model = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU6(), *blocks)
    options: dict[str, Any] = {"gpu": "A100 80GB", "optimizer": "sgd", "cudnn": "rule", "progress": False}
    estimate = estimate_memory(model, (3, 180, 180), 16, **options)
    log, dice, peaks = estimate.log, random.Random(0), []
    for _ in range(30):
        sizes = [ceil(s.nbytes * (1 + max(-1, s.band * dice.uniform(-1, 1)))) if s.band else 0 for s in log.storages]
        events = tuple((moment, n, nbytes and (sizes[n] or nbytes)) for moment, n, nbytes in log.events)
        peaks.append(replay(replace(log, events=events), "cuda", estimate.options).peak_bytes)
    low, high = estimate.peak_range
    assert low <= min(peaks) < estimate.peak_bytes < max(peaks) <= high


@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.parametrize(("by_age", "allocator"), [(True, ""), (False, ""), (False, "expandable_segments:True")])
def test_reserved_bytes_have_a_range_where_addresses_decide(
    by_age: bool, allocator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "BY_AGE", by_age)
    step = estimate_memory(nn.Linear(8, 8), (8,), 2, "cuda", allocator=allocator)
    band = 0 if by_age or allocator else round(estimates.ADDRESS_BAND * step.reserved_bytes)
    assert step.reserved_range == (step.reserved_bytes - band, step.reserved_bytes + band)
    assert step.peak_range == (step.peak_bytes, step.peak_bytes)


def test_the_oracle_sees_every_allocation_and_free() -> None:
    def run() -> None:
        a = torch.empty(1000, dtype=torch.uint8)
        b = torch.empty(500, dtype=torch.uint8)
        del a
        c = torch.empty(200, dtype=torch.uint8)
        del b, c

    deltas = cpu_deltas(run)
    assert deltas == [1000, 500, -1000, 200, -500, -200]
    assert highest(deltas) == 1500


def test_settings_of_the_cuda_allocator_in_the_environment_are_not_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    predicted = estimate_memory(nn.Linear(8, 8), (8,), 4, "cpu", progress=False)
    assert predicted.peak_bytes == measure_memory(nn.Linear(8, 8), (8,), 4, "cpu").peak_bytes
    with pytest.raises(UnsupportedError, match="PYTORCH_CUDA_ALLOC_CONF is set"):
        estimate_memory(nn.Linear(8, 8), (8,), 4, "cuda", progress=False)
