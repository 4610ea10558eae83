"""The table used without cuDNN, on held-out recordings."""

import json
import statistics
from math import prod
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.cuda.cudnn_table import (
    ANSWERS,
    CARDS,
    NUMBERS,
    OLD_ANSWERS,
    OLD_CARDS,
    TRIALS,
    columns,
    errors,
    question_of,
    read,
    within_trials,
)
from tests.ops.asking import has_cudnn
from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.data.units import MIB
from torchsummary_plus.ops.scratch.cuda.cudnn.queries import known_cards
from torchsummary_plus.ops.scratch.cuda.cudnn.table import COPIES, PARTS, SMALL, TABLE, guess, tensor_bytes, transforms

RECORDED = read(ANSWERS)
RECORDINGS = ((RECORDED, CARDS), (read(OLD_ANSWERS), OLD_CARDS))


@pytest.mark.parametrize(("recorded", "cards"), RECORDINGS, ids=["current", "volta"])
def test_the_table_holds_convolutions_that_it_was_not_fitted_to(recorded: Any, cards: tuple[str, ...]) -> None:
    assert len(recorded["answers"]) == 4800
    items = list(errors(recorded["answers"][1::8], cards))
    offs = sorted(off for _, off, _ in items)
    assert len(items) > 10_000 and statistics.median(offs) < 0.001
    assert sum(holds for _, _, holds in items) / len(items) > 0.98
    assert offs[len(offs) * 3 // 4] < 0.02
    assert offs[len(offs) * 9 // 10] < 0.5


@pytest.mark.parametrize(("recorded", "cards"), RECORDINGS, ids=["current", "volta"])
def test_nearly_all_small_convolutions_take_at_most_parts_or_transforms(recorded: Any, cards: tuple[str, ...]) -> None:
    chosen, within = recorded["answers"][::6], []
    for (card, numbers, last, kind), *answers in zip(columns(cards), *(row for _, row in chosen)):
        dtype, tensor_cores = NUMBERS[numbers]
        for (conv, _), answer in zip(chosen, answers):
            question = question_of(conv, dtype, last, kind)
            whole = sum(tensor_bytes(question, 1))
            if answer is None or whole >= SMALL:
                continue
            most = max(PARTS * whole, transforms(question))
            result = guess(question, known_cards()[card].capability, tensor_cores)
            assert 0 <= result.low <= result.nbytes <= result.high <= max(most, result.nbytes + COPIES * whole)
            within.append(answer <= most)
    assert len(within) > 1_000 and sum(within) / len(within) > 0.998


def test_every_recorded_workspace_of_trials_is_within_the_bound() -> None:
    bounded = list(within_trials(read(TRIALS)["answers"]))
    assert len(bounded) > 4_000 and all(bounded)


@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.parametrize("gpu", ["A100 80GB", "T4"])
def test_without_cudnn_the_range_holds_what_benchmark_tries(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest workspace of a strided convolution's plans, on either GPU, is of Fourier transforms."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    (x, w, *_, padding, stride, _), largest = max(
        (
            (conv, max(filter(None, row)))
            for conv, row in read(TRIALS)["answers"]
            if len(conv[0]) == 4 and conv[4][0] > 1
        ),
        key=lambda known: known[1] / prod(known[0][0]),
    )
    model = nn.Conv2d(x[1], w[0], w[2:], stride, padding, groups=x[1] // w[1], bias=False)
    estimate = estimate_memory(model, x[1:], x[0], gpu=gpu, cudnn="rule", progress=False)
    assert estimate.peak_bytes < largest < estimate.peak_range[1]
    card = next(card for name, card in known_cards().items() if name == gpu.split()[0].lower())
    assert estimate.peak_range[1] < 2 * card.memory_mib * MIB


def test_the_table_is_small() -> None:
    assert TABLE.stat().st_size < 450_000
    assert json.loads(TABLE.read_text())["cudnn"] == RECORDED["cudnn"]


@from_release("2.11", "the release that CUDA rules were measured on")
def test_an_estimate_by_the_table_says_so_by_a_range() -> None:
    model = nn.Conv2d(64, 64, 3, padding=1)
    estimate = estimate_memory(model, (64, 56, 56), 8, gpu="A100 80GB", cudnn="rule", progress=False)
    assert dict(estimate.unknown) == {"aten::convolution": 2, "aten::convolution_backward": 2}
    low, high = estimate.peak_range
    assert low < estimate.peak_bytes < high
    assert 'cuDNN workspaces estimated from a table of recorded answers: cudnn="rule"' in estimate.assumptions


@pytest.mark.skipif(has_cudnn(), reason="torch brings a cuDNN that can be asked")
def test_an_estimate_by_the_table_says_who_could_ask_cudnn() -> None:
    estimate = estimate_memory(nn.Conv2d(3, 8, 3), (3, 8, 8), 1, gpu="A100 80GB", progress=False)
    who = "(9.8 and later can)" if torch.backends.cuda.is_built() else "(a CUDA build can be queried without a GPU)"
    assert any(who in said for said in estimate.assumptions)
    assert estimate.peak_range[0] < estimate.peak_range[1]
