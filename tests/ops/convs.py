"""Random convolutions, their memory as seen by torch's profiler, and the verdict on the rules."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat
from math import ceil, floor, prod
from typing import Any

import torch

from tests.truth.memory_truth import cpu_deltas, highest
from torchsummary_plus.ops.scratch.registry import SCRATCH
from torchsummary_plus.step.workspace import Workspaces

aten = torch.ops.aten

SENTINEL = 7_654_321
"""Bytes that no kernel here would ask for."""

Sizes = int | tuple[int, ...]
"""One number for every axis, or one for each."""


@dataclass(frozen=True)
class Case:
    """A convolution of ``batch`` inputs of ``size``; ``wanted`` are the gradients of input and weights."""

    size: tuple[int, ...]
    channels: tuple[int, int]
    kernel: Sizes = 3
    batch: int = 2
    stride: Sizes = 1
    padding: Sizes = 0
    dilation: Sizes = 1
    groups: int = 1
    bias: bool = False
    transposed: bool = False
    output_padding: Sizes = 0
    dtype: torch.dtype = torch.float32
    wanted: tuple[bool, bool] = (True, True)
    input_last: bool = False
    weight_last: bool = False
    sliced: bool = False
    """Whether the input is a slice of a larger tensor."""
    expanded: bool = False
    """Whether the gradient of the output is one number seen many times, as a sum gives it."""

    def __str__(self) -> str:
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return f"Case({', '.join(f'{field.name}={value!r}' for field, value in values if value != field.default)})"

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        ic, oc = self.channels
        outer, inner = (ic, oc // self.groups) if self.transposed else (oc, ic // self.groups)
        x = torch.randn(self.batch, ic, *self.size[:-1], self.size[-1] * (1 + self.sliced), dtype=self.dtype)
        weight = torch.randn(outer, inner, *self.each(self.kernel), dtype=self.dtype)
        last = torch.channels_last if len(self.size) == 2 else torch.channels_last_3d
        x = x.to(memory_format=last) if self.input_last else x
        weight = weight.to(memory_format=last) if self.weight_last else weight
        return x[..., : self.size[-1]], weight, torch.randn(oc, dtype=self.dtype) if self.bias else None

    def each(self, sizes: Sizes) -> list[int]:
        return [sizes] * len(self.size) if isinstance(sizes, int) else list(sizes)

    @property
    def is_last(self) -> bool:
        return self.input_last or self.weight_last

    @property
    def settings(self) -> tuple[Any, ...]:
        lists = [self.each(value) for value in (self.stride, self.padding, self.dilation)]
        return *lists, self.transposed, self.each(self.output_padding), self.groups

    @property
    def output(self) -> list[int]:
        """The sizes of the output's axes."""
        settings = self.kernel, self.stride, self.padding, self.dilation, self.output_padding
        axes = zip(self.size, *map(self.each, settings))
        if self.transposed:
            return [(i - 1) * s - 2 * p + d * (k - 1) + o + 1 for i, k, s, p, d, o in axes]
        return [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d, _ in axes]


class RulesAlone(Workspaces):
    """Return the rules' prediction, without running inexact kernels on zeros."""

    def _try_out(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        return None


@dataclass(frozen=True)
class Seen:
    """An operator that ran, and the highest level above its entry that the profiler saw."""

    operator: str
    args: tuple[Any, ...]
    results: tuple[torch.Tensor | None, ...]
    peak_bytes: int

    def predicted(self) -> int:
        """The highest of what its results that are there and its scratch add up to."""
        return max(map(int, self._levels(0)))

    @property
    def range(self) -> tuple[int, int]:
        """The least and the most that it may be, by the rule's error bands."""
        return floor(max(self._levels(-1))), ceil(max(self._levels(1)))

    def _levels(self, sign: int) -> list[float]:
        """The level of each phase, with its scratch at the upper edge (1) or the lower one (-1) of its band."""
        sizes = [tensor.untyped_storage().nbytes() for tensor in self.results if tensor is not None]
        out = self.results if len(self.results) > 1 else self.results[0]
        workspaces = RulesAlone("cpu")
        band = workspaces.band(SCRATCH, self.operator)
        phases = workspaces.scratch(self.operator, self.args, {}, out)
        scratch = [phase.nbytes * (1 + sign * max(band, phase.band)) for phase in phases]
        return [sum(sizes[: phase.results]) + max(0.0, nbytes) for phase, nbytes in zip(phases, scratch)]


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
    operators = [
        Seen(f"aten::{operator.__name__}", args, _wanted(args, result), peak)
        for (operator, args), result, peak in zip(calls, results, peaks, strict=True)
    ]
    return list(zip(operators[: len(forwards)], operators[len(forwards) :]))


def _wanted(args: tuple[Any, ...], result: Any) -> tuple[torch.Tensor | None, ...]:
    """The results that were asked for: oneDNN gives the gradient of the weights along with that of the bias."""
    if not isinstance(result, tuple):
        return (result,)
    return tuple(tensor if wanted else None for tensor, wanted in zip(result, args[-1]))


CHANNELS = (1, 2, 3, 4, 6, 8, 11, 12, 16, 20, 24, 32, 40, 48, 64, 96)
LIMIT = 1 << 19
"""Elements that the input, the output and the patches of a random case have at most, each of them."""


def random_cases(seed: int, dtypes: Sequence[torch.dtype] = (torch.float32, torch.float64)) -> Iterator[Case]:
    """Random convolutions without end, the same for a seed."""
    draw = random.Random(seed)
    while True:
        case = _random_case(draw, dtypes)
        if _is_valid(case):
            yield case


def _random_case(draw: random.Random, dtypes: Sequence[torch.dtype]) -> Case:
    axes = draw.choice((1, 2, 2, 3, 3, 3))
    longest = {1: 200, 2: 40, 3: 16}[axes]
    transposed = draw.random() < 0.3
    groups, channels = _grouped(draw)
    last, weight_last = draw.choice(((False, False), (False, False), (True, True), (True, False), (False, True)))
    stride = _each(draw, axes, (1, 1, 2, 3))
    wanted = draw.choice(((True, True), (True, True), (False, True), (True, False)))
    return Case(
        size=tuple(_each(draw, axes, range(1, longest))), channels=channels,
        kernel=_each(draw, axes, (1, 2, 3, 3, 4, 5, 7)), batch=draw.choice((1, 1, 1, 2, 3, 8, 16)),
        stride=stride, padding=_each(draw, axes, (0, 1, 1, 2, 3)), dilation=_each(draw, axes, (1, 1, 1, 2, 3)),
        groups=groups, bias=draw.random() < 0.5, transposed=transposed,
        output_padding=tuple(draw.randrange(s) for s in stride) if transposed else 0,
        dtype=draw.choice(dtypes), wanted=wanted, input_last=last and axes > 1, weight_last=weight_last and axes > 1,
        sliced=draw.random() < 0.1, expanded=draw.random() < 0.1,
    )  # fmt: skip


def special_cases(seed: int) -> Iterator[Case]:
    """Random convolutions that have kernels of their own: strided 1x1, as large as the input, grouped, transposed."""
    draw = random.Random(seed)
    while True:
        case = _special_case(draw)
        if _is_valid(case):
            yield case


def _special_case(draw: random.Random) -> Case:
    axes, size, last = draw.choice((1, 2, 2)), draw.choice((7, 8, 14, 16, 28, 30)), draw.random() < 0.5
    channels = draw.choice((3, 16, 24, 40, 64, 128)), draw.choice((10, 16, 32, 40, 64, 160))
    groups = draw.choice((2, 4, 8, 16, 32))
    grouped = groups * draw.choice((1, 2, 8, 16)), groups * draw.choice((1, 3, 8, 24))
    wide = draw.choice((3, 5, 7))
    case = draw.choice((
        Case((size,) * axes, channels, 1, stride=draw.choice((2, 3))),
        Case((min(size, 16),) * axes, channels, min(size, 16)),
        Case((1,) * axes, channels, min(size, 16), transposed=True),
        Case((size,) * axes, grouped, 3, padding=2, dilation=draw.choice((1, 2)), groups=groups),
        Case((size,) * axes, (groups, groups), wide, stride=draw.choice((1, 2)), padding=wide // 2, groups=groups),
    ))  # fmt: skip
    return replace(
        case, batch=draw.choice((1, 2, 4, 8)), bias=draw.random() < 0.5, input_last=last and axes > 1,
        weight_last=last and axes > 1, wanted=draw.choice(((True, True), (False, True))),
    )  # fmt: skip


def wide_cases(seed: int) -> Iterator[Case]:
    """Random convolutions along a long axis, with the wide kernels of models of sound."""
    draw = random.Random(seed)
    while True:
        across = draw.choice((9, 11, 13, 14, 15, 16, 17, 19, 20, 21, 25, 31, 41))
        before, size = draw.choice(((), (1,), (5,))), draw.choice((across, 60, 140, 240, 300, 480, 1000, 2400))
        groups = draw.choice((1, 1, 1, 2, 4, 16))
        ic, oc = (groups * draw.choice((1, 2, 4, 16, 20)) for _ in range(2))
        case = Case(
            (*before, size), (ic, oc), (*draw.choice((before and (1,), before)), across), groups=groups,
            batch=draw.choice((1, 2, 4)), stride=(1,) * len(before) + (draw.choice((1, 1, 1, 2, 5)),),
            padding=(0,) * len(before) + (draw.choice((across // 2, across // 2, 0, 3, across - 1)),),
            dilation=(1,) * len(before) + (draw.choice((1, 1, 1, 2)),), bias=draw.random() < 0.5,
            wanted=draw.choice(((True, True), (False, True), (True, False))),
        )  # fmt: skip
        if _is_valid(case):
            yield case


def strided_cases(seed: int) -> Iterator[Case]:
    """Random strided convolutions with large kernels, whose gradient of the input oneDNN computes in blocks."""
    draw = random.Random(seed)
    while True:
        axes = draw.choice((1, 2, 2, 3))
        kernel = _each(draw, axes, {1: (3, 4, 8, 16, 24), 2: (4, 7, 9, 12, 16), 3: (4, 5)}[axes])
        size = _each(draw, axes, {1: range(20, 400), 2: range(2, 30), 3: range(3, 7)}[axes])
        groups = draw.choice((1, 1, 1, 2, 3, 4))
        channels = groups * draw.choice((3, 8, 16, 17, 24, 40)), groups * draw.choice((1, 3, 8, 16, 17, 24, 40, 64))
        case = Case(
            size, channels, kernel, batch=draw.choice((1, 2, 4)), stride=_each(draw, axes, (2, 3)),
            padding=_each(draw, axes, (0, 1, 2)), groups=groups, bias=draw.random() < 0.5,
            transposed=draw.random() < 0.7,
        )  # fmt: skip
        if _is_valid(case):
            yield case


def copied_cases(seed: int) -> Iterator[Case]:
    """Random channels-last convolutions whose input AVX-512's kernels copy first, as of one channel or one column."""
    draw = random.Random(seed)
    while True:
        axes, oc = draw.choice((2, 2, 3)), draw.choice((1, 3, 8, 16))
        size = _each(draw, axes, range(3, 60 if axes == 2 else 16))
        kernel, stride = _each(draw, axes, (1, 2, 3, 5, 7)), _each(draw, axes, (1, 1, 2, 3))
        kind = draw.choice(("one channel", "one channel", "one column", "one patch"))
        ic = 1 if kind == "one channel" else draw.choice((3, 8, 16, 24, 40))
        if kind == "one column":
            size, kernel = (*(1,) * (axes - 2), size[-1], 1), (*(1,) * (axes - 2), kernel[-1], 1)
        elif kind == "one patch":
            size = stride = kernel
        case = Case(
            size, (ic, oc), kernel, batch=draw.choice((1, 2, 8)), stride=stride,
            padding=0 if kind == "one patch" else (*_each(draw, axes - 1, (0, 1, 2)), kind == "one channel"),
            bias=draw.random() < 0.5, input_last=True, weight_last=True,
        )  # fmt: skip
        if _is_valid(case):
            yield case


def _each(draw: random.Random, axes: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """One of the sizes for each axis, mostly the same one."""
    if draw.random() < 0.7:
        return (draw.choice(sizes),) * axes
    return tuple(draw.choice(sizes) for _ in range(axes))


def _grouped(draw: random.Random) -> tuple[int, tuple[int, int]]:
    """Groups, and channels that they divide: one group, some, or one for each channel, times a multiplier."""
    kind = draw.choice(("one", "one", "some", "depthwise", "multiplied"))
    ic, oc = draw.choice(CHANNELS), draw.choice(CHANNELS)
    if kind == "depthwise":
        return ic, (ic, ic)
    if kind == "multiplied":
        return ic, (ic, 2 * ic)
    groups = 1 if kind == "one" else draw.choice((2, 3, 4, 8))
    return groups, (groups * max(1, ic // groups), groups * max(1, oc // groups))


def _may_abort(case: Case) -> bool:
    """Whether oneDNN may write past its memory (``writes_astray``), which ends the process that runs it."""
    axes = zip(*map(case.each, (case.stride, case.dilation, case.kernel)))
    skips = any(stride > dilation * (kernel - 1) + 1 for stride, dilation, kernel in axes)
    return case.is_last and skips and case.channels[case.transposed] == 1


def _is_valid(case: Case) -> bool:
    if min(case.output) < 1 or _may_abort(case):
        return False
    elements = [case.batch * c * prod(size) for c, size in zip(case.channels, (case.size, case.output))]
    patches = max(elements) // case.groups * prod(case.each(case.kernel))
    return max(elements) < LIMIT and patches < 16 * LIMIT and prod(case.channels) < 4096


def verdict(operator: Seen) -> str:
    """How near an operator is predicted: to the byte, within its range, or beyond it."""
    if operator.predicted() == operator.peak_bytes:
        return "exact"
    least, most = operator.range
    return "within" if least <= operator.peak_bytes <= most else "beyond"
