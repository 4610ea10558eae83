"""Scratch of convolutions on the CPU: every rule against what torch's profiler sees while one operator runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_truth import cpu_deltas, highest, threads_set_to

from torchsummary_plus.tracing.processor import has_avx512
from torchsummary_plus.tracing.workspace import Workspaces

ROOT = Path(__file__).parents[1]
aten = torch.ops.aten


SENTINEL = 7_654_321
"""Bytes that no kernel here would ask for."""


@dataclass(frozen=True)
class Case:
    """A convolution of ``batch`` inputs of ``size``; ``wanted`` are the gradients of input, weights and bias."""

    size: tuple[int, ...]
    channels: tuple[int, int]
    kernel: int = 3
    batch: int = 2
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    bias: bool = False
    transposed: bool = False
    output_padding: int = 0
    dtype: torch.dtype = torch.float32
    wanted: tuple[bool, bool] = (True, True)
    input_last: bool = False
    weight_last: bool = False
    expanded: bool = False
    """Whether the gradient of the output is one number seen many times, as a sum gives it."""

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        ic, oc = self.channels
        outer, inner = (ic, oc // self.groups) if self.transposed else (oc, ic // self.groups)
        x = torch.randn(self.batch, ic, *self.size, dtype=self.dtype)
        weight = torch.randn(outer, inner, *([self.kernel] * len(self.size)), dtype=self.dtype)
        last = torch.channels_last if len(self.size) == 2 else torch.channels_last_3d
        x = x.to(memory_format=last) if self.input_last else x
        weight = weight.to(memory_format=last) if self.weight_last else weight
        return x, weight, torch.randn(oc, dtype=self.dtype) if self.bias else None

    @property
    def settings(self) -> tuple[Any, ...]:
        axes = len(self.size)
        lists = [[value] * axes for value in (self.stride, self.padding, self.dilation)]
        return *lists, self.transposed, [self.output_padding] * axes, self.groups


@dataclass(frozen=True)
class Seen:
    """An operator that ran, and the highest level above its entry that the profiler saw."""

    operator: str
    args: tuple[Any, ...]
    results: tuple[torch.Tensor | None, ...]
    peak_bytes: int

    def predicted(self) -> int:
        """The highest of what its results that are there and its scratch add up to."""
        sizes = [tensor.numel() * tensor.element_size() for tensor in self.results if tensor is not None]
        out = self.results if len(self.results) > 1 else self.results[0]
        phases = Workspaces("cpu").scratch(self.operator, self.args, {}, out)
        return max(sum(sizes[: phase.results]) + phase.nbytes for phase in phases)


def seen(cases: Collection[Case]) -> list[tuple[Seen, Seen]]:
    """Forward and backward of each case, under one profiler; an allocation of a size of its own stands between two."""
    forwards = [(*case.tensors(), *case.settings) for case in cases]
    backwards = []
    for case, (x, weight, bias, *settings) in zip(cases, forwards):
        y = aten.convolution(x, weight, bias, *settings)
        grad = torch.ones((), dtype=case.dtype).expand(y.shape) if case.expanded else torch.randn_like(y)
        sizes = None if bias is None else [len(bias)]
        backwards.append((grad, x, weight, sizes, *settings, [*case.wanted, bias is not None]))
    calls = [*zip(repeat(aten.convolution), forwards), *zip(repeat(aten.convolution_backward), backwards)]
    results: list[Any] = []

    def run() -> None:
        for operator, args in calls:
            results.append(operator(*args))
            torch.empty(SENTINEL, dtype=torch.uint8)

    deltas = cpu_deltas(run)
    stops = [place for place, nbytes in enumerate(deltas) if nbytes == SENTINEL]
    peaks = [highest(deltas[start:stop])[0] for start, stop in zip([0, *(stop + 2 for stop in stops)], stops)]
    found = [
        Seen(f"aten::{operator.__name__}", args, result if isinstance(result, tuple) else (result,), peak)
        for (operator, args), result, peak in zip(calls, results, peaks, strict=True)
    ]
    return list(zip(found[: len(forwards)], found[len(forwards) :]))


def assert_exact(pair: tuple[Seen, Seen]) -> None:
    assert [one.predicted() for one in pair] == [one.peak_bytes for one in pair]


LAST = {"input_last": True, "weight_last": True}

CASES = {
    "3x3": Case((9, 9), (24, 40), padding=1, bias=True),
    "few-channels": Case((9, 9), (3, 20), bias=True),
    "eleven-channels": Case((9, 9), (11, 20)),
    "7x7-stride-2": Case((14, 14), (3, 16), 7, stride=2, padding=3),
    "stride-2": Case((8, 8), (48, 24), stride=2, padding=1, bias=True),
    "odd-width-stride-2": Case((9, 9), (16, 32), stride=2, padding=1),
    "1x1-stride-2": Case((8, 8), (24, 40), 1, stride=2, bias=True),
    "1x1-one-thread": Case((8, 8), (24, 40), 1, bias=True),
    "1x1-batch-16": Case((4, 4), (24, 40), 1, batch=16, bias=True),
    "1x1-stride-2-odd": Case((7, 7), (24, 40), 1, stride=2),
    "dilated": Case((12, 12), (16, 24), padding=2, dilation=2, bias=True),
    "dilated-stride-2": Case((12, 12), (16, 24), padding=2, dilation=2, stride=2),
    "padding-as-wide-as-the-kernel": Case((6, 6), (20, 32), 5, stride=2, padding=4, dilation=2),
    "11x11-stride-4": Case((20, 20), (3, 16), 11, stride=4, padding=2, bias=True),
    "groups-of-16": Case((8, 8), (64, 64), padding=1, groups=4),
    "groups-of-4": Case((8, 8), (32, 32), padding=1, groups=8),
    "groups-of-6": Case((8, 8), (24, 24), padding=1, groups=4),
    "grouped-stride-2": Case((8, 8), (64, 64), padding=1, groups=4, stride=2),
    "depthwise": Case((8, 8), (40, 40), padding=1, groups=40, bias=True),
    "depthwise-5x5-stride-2": Case((8, 8), (24, 24), 5, padding=2, groups=24, stride=2),
    "depthwise-3d": Case((4, 4, 4), (16, 16), padding=1, groups=16, bias=True),
    "1d": Case((30,), (8, 24), padding=1, bias=True),
    "1d-stride-2": Case((30,), (20, 24), 4, stride=2),
    "3d": Case((5, 5, 5), (8, 24), padding=1, bias=True),
    "3d-stride-2": Case((6, 6, 6), (20, 24), stride=2, padding=1),
    "transposed": Case((6, 6), (16, 24), padding=1, transposed=True, bias=True),
    "transposed-stride-2": Case((6, 6), (32, 8), 2, stride=2, transposed=True, bias=True),
    "transposed-output-padding": Case((5, 5), (16, 24), stride=2, padding=1, output_padding=1, transposed=True),
    "transposed-depthwise": Case((6, 6), (16, 16), 2, stride=2, groups=16, transposed=True),
    "transposed-3d": Case((4, 4, 4), (8, 8), 2, stride=2, transposed=True, bias=True),
    "one-small-image": Case((6, 6), (8, 16), padding=1, batch=1, bias=True),
    "float64": Case((6, 6), (8, 16), padding=1, bias=True, dtype=torch.float64),
    "float64-groups": Case((6, 6), (8, 16), padding=1, groups=2, bias=True, dtype=torch.float64),
    "float64-dilated": Case((8, 8), (8, 16), dilation=2, bias=True, dtype=torch.float64),
    "float64-3d": Case((4, 4, 4), (8, 16), padding=1, dtype=torch.float64),
    "float64-3d-groups": Case((4, 4, 4), (8, 16), 1, groups=2, dtype=torch.float64),
    "float64-transposed": Case((6, 6), (8, 16), 2, stride=2, transposed=True, dtype=torch.float64),
    "float64-transposed-3d": Case((4, 4, 4), (8, 16), 2, stride=2, transposed=True, dtype=torch.float64),
    "no-gradient-of-the-input": Case((8, 8), (24, 24), padding=1, wanted=(False, True)),
    "no-gradient-of-the-weights": Case((8, 8), (24, 24), padding=1, wanted=(True, False)),
    "expanded-gradient": Case((8, 8), (24, 24), padding=1, expanded=True),
    "expanded-gradient-of-1x1": Case((8, 8), (24, 24), 1, expanded=True),
    "last": Case((8, 8), (32, 32), padding=1, bias=True, **LAST),
    "last-stride-2": Case((8, 8), (32, 32), stride=2, padding=1, **LAST),
    "last-few-channels": Case((9, 9), (3, 32), bias=True, **LAST),
    "last-1x1": Case((8, 8), (32, 32), 1, batch=16, bias=True, **LAST),
    "last-1x1-stride-2": Case((8, 8), (32, 32), 1, stride=2, **LAST),
    "last-1x1-one-thread": Case((8, 8), (24, 40), 1, **LAST),
    "last-depthwise": Case((8, 8), (40, 40), padding=1, groups=40, bias=True, **LAST),
    "last-depthwise-5x5": Case((8, 8), (32, 32), 5, padding=2, groups=32, bias=True, **LAST),
    "last-groups-of-4": Case((8, 8), (32, 32), padding=1, groups=8, **LAST),
    "last-dilated": Case((8, 8), (32, 32), padding=2, dilation=2, **LAST),
    "last-transposed": Case((6, 6), (32, 32), padding=1, bias=True, transposed=True, **LAST),
    "last-transposed-stride-2": Case((6, 6), (32, 32), 2, stride=2, bias=True, transposed=True, **LAST),
    "last-3d": Case((4, 4, 4), (16, 32), padding=1, bias=True, **LAST),
    "last-input-only": Case((8, 8), (32, 32), padding=1, input_last=True),
    "last-weights-only": Case((8, 8), (32, 32), padding=1, weight_last=True),
    "last-expanded-gradient": Case((8, 8), (32, 32), padding=1, expanded=True, **LAST),
}


BATCHES = [(name, batch) for name in ("3x3", "stride-2", "depthwise", "transposed-stride-2") for batch in (1, 3, 17)]
SHARED = (
    "3x3", "few-channels", "7x7-stride-2", "1x1-one-thread", "1x1-stride-2", "depthwise", "1d", "3d", "groups-of-16",
    "groups-of-6", "transposed", "last", "last-depthwise", "last-1x1-stride-2",
)  # fmt: skip


@pytest.fixture(scope="module")
def measured() -> dict[str, tuple[Seen, Seen]]:
    with threads_set_to(1):
        return dict(zip(CASES, seen(CASES.values())))


@pytest.mark.parametrize("name", CASES)
def test_an_operator_takes_what_the_profiler_sees(name: str, measured: dict[str, tuple[Seen, Seen]]) -> None:
    with threads_set_to(1):
        assert_exact(measured[name])


def test_it_does_so_for_any_batch() -> None:
    with threads_set_to(1):
        for pair in seen([replace(CASES[name], batch=batch) for name, batch in BATCHES]):
            assert_exact(pair)


@pytest.mark.parametrize("count", [2, 5])
def test_threads_take_their_own(count: int) -> None:
    with threads_set_to(count):
        for pair in seen([CASES[name] for name in SHARED]):
            assert_exact(pair)


def test_the_narrower_instruction_set() -> None:
    """The same cases with what a machine without AVX-512 has, in a process of its own: oneDNN asks once."""
    if not has_avx512():
        pytest.skip("this is such a machine")
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", "profiler_sees"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
