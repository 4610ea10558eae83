"""Scratch memory of convolutions on the CPU: each rule against torch's profiler."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import nn

from tests.ops.convs import (
    Case,
    Seen,
    copied_cases,
    random_cases,
    seen,
    special_cases,
    strided_cases,
    verdict,
    wide_cases,
)
from tests.truth.memory_truth import threads_set_to
from torchsummary_plus import estimate_memory, measure_memory
from torchsummary_plus.live.versions import since
from torchsummary_plus.ops.processor import has_avx512


def assert_exact(pair: tuple[Seen, Seen]) -> None:
    assert [operator.predicted() for operator in pair] == [operator.peak_bytes for operator in pair]


def assert_within(pair: tuple[Seen, Seen]) -> None:
    """To the byte, but only within the range where an older oneDNN has other kernels for groups in channels-last."""
    if has_avx512() or since("2.8"):
        assert_exact(pair)
    assert "beyond" not in map(verdict, pair)


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
    "patches-in-blocks": Case((56, 56), (32, 8), padding=1, groups=4),
    "patches-of-long-kernels": Case((96,), (24, 40), 32, padding=16),
    "patches-of-few-channels": Case((20, 20), (6, 4), 7, padding=3, groups=2, bias=True),
    "longest-kernel-unrolled": Case((60,), (16, 16), 13, padding=6),
    "too-long-to-unroll": Case((60,), (16, 16), 14, stride=2, padding=7),
    "1x1-batch-16": Case((4, 4), (24, 40), 1, batch=16, bias=True),
    "few-positions-stride-3": Case((30,), (32, 16), 1, stride=3, bias=True),
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
    "transposed-one-voxel": Case((1, 1, 1), (40, 24), 7, stride=3, padding=3, transposed=True, bias=True),
    "transposed-to-one-channel": Case((6, 6, 6), (48, 1), 4, stride=(1, 3, 1), padding=1, transposed=True, bias=True),
    "transposed-groups-of-16-uneven": Case((134,), (64, 64), stride=2, groups=4, transposed=True),
    "transposed-long-row-of-whole-strides": Case((254,), (16, 128), stride=3, groups=2, transposed=True, bias=True),
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
    "one-deep-image": Case((6, 20, 20), (8, 16), padding=1, batch=1, bias=True),
    "one-wide-image": Case((20, 20, 200), (8, 8), padding=1, batch=1, bias=True),
    "one-deep-image-dilated": Case((10, 10, 10), (8, 16), padding=2, dilation=2, batch=1, bias=True),
    "one-deep-image-transposed": Case((6, 6, 6), (16, 8), 2, stride=2, batch=1, transposed=True, bias=True),
    "one-deep-image-shrinks": Case((8, 8, 8), (32, 2), padding=2, batch=1, transposed=True),
    "one-deep-image-last": Case((6, 10, 10), (8, 16), padding=1, batch=1, input_last=True, weight_last=True),
    "float64-last": Case((6, 6), (8, 16), padding=1, bias=True, dtype=torch.float64, input_last=True),
    "float64-last-groups": Case((6, 6), (8, 16), padding=1, groups=4, dtype=torch.float64, input_last=True),
    "float64-last-transposed": Case((6, 6), (8, 4), 2, stride=2, transposed=True, dtype=torch.float64, input_last=True),
    "bias-alone": Case((8, 8), (24, 24), padding=1, bias=True, wanted=(False, False)),
    "groups-of-4-with-bias": Case((8, 8), (32, 32), padding=1, groups=8, bias=True),
    "transposed-uneven": Case((5, 5), (16, 12), stride=3, padding=1, output_padding=2, transposed=True, bias=True),
    "four-channels": Case((20, 20), (4, 6), padding=1),
    "last-depthwise-3d": Case((4, 4, 4), (16, 16), padding=1, groups=16, input_last=True, weight_last=True),
    "last-transposed-groups": Case((6, 6), (32, 32), padding=1, groups=2, transposed=True, input_last=True),
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
    "wide-kernel-over-one-column": Case((16,), (24, 32), 16),
    "transposed-too-long-to-unroll": Case((16,), (24, 24), 16, batch=8, transposed=True),
    "one-voxel-stride-2": Case((3, 3, 3), (4, 8), stride=2),
    "one-voxel-stride-2-groups": Case((3, 4, 4), (16, 40), stride=2, groups=2),
    "one-voxel-expanded-gradient": Case((3, 3, 3), (8, 20), stride=2, expanded=True),
    "one-voxel-depthwise": Case((3, 3, 3), (20, 20), groups=20),
    "last-expanded-gradient": Case((8, 8), (32, 32), padding=1, expanded=True, **LAST),
}


BATCHES = [(name, batch) for name in ("3x3", "stride-2", "depthwise", "transposed-stride-2") for batch in (1, 3, 17)]
SHARED = (
    "3x3", "few-channels", "7x7-stride-2", "1x1-one-thread", "1x1-stride-2", "depthwise", "1d", "3d", "groups-of-16",
    "groups-of-6", "four-channels", "one-deep-image", "transposed", "last", "last-depthwise", "last-1x1-stride-2",
    "wide-kernel-over-one-column", "few-positions-stride-3",
)  # fmt: skip


@pytest.fixture(scope="module")
def measured() -> dict[str, tuple[Seen, Seen]]:
    with threads_set_to(1):
        return dict(zip(CASES, seen(CASES.values())))


@pytest.mark.parametrize("name", CASES)
def test_an_operator_takes_what_the_profiler_sees(name: str, measured: dict[str, tuple[Seen, Seen]]) -> None:
    with threads_set_to(1):
        (assert_within if name == "last-groups-of-4" else assert_exact)(measured[name])


def test_it_does_so_for_any_batch() -> None:
    with threads_set_to(1):
        for pair in seen([replace(CASES[name], batch=batch) for name, batch in BATCHES]):
            assert_exact(pair)


@pytest.mark.parametrize("count", [2, 5, 8])
def test_threads_take_their_own(count: int) -> None:
    with threads_set_to(count):
        for pair in seen([CASES[name] for name in SHARED]):
            assert_exact(pair)


def verdicts(count: int, seed: int, is_last: bool) -> Counter[str]:
    """Of random convolutions whose float32 tensors are all channels-last or none is."""
    cases = (case for case in random_cases(seed) if case.dtype is torch.float64 or case.is_last is is_last)
    return Counter(verdict(operator) for pair in seen(list(islice(cases, count))) for operator in pair)


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_random_convolutions_are_predicted_to_the_byte(threads: None) -> None:
    result = verdicts(80, seed=8, is_last=False)
    assert not result["beyond"] and result["exact"] >= 0.99 * result.total()


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_those_in_channels_last_layout_lie_within_their_range(threads: None) -> None:
    result = verdicts(60, seed=9, is_last=True)
    assert not result["beyond"] and result["exact"] >= 0.85 * result.total()


@pytest.mark.parametrize("threads", [1, 4, 8], indirect=True)
def test_kernels_for_special_shapes_lie_within_their_range(threads: None) -> None:
    counter = Counter(verdict(operator) for pair in seen(list(islice(special_cases(10), 60))) for operator in pair)
    assert not counter["beyond"] and counter["exact"] >= 0.85 * counter.total()


@pytest.mark.parametrize("threads", [1, 4], indirect=True)
def test_wide_kernels_are_predicted_to_the_byte(threads: None) -> None:
    """How much code a row takes, with and without padding at its ends, decides on AVX-512's kernels."""
    counter = Counter(verdict(operator) for pair in seen(list(islice(wide_cases(1), 80))) for operator in pair)
    assert not counter["beyond"] and counter["exact"] >= 0.97 * counter.total()


@pytest.mark.parametrize("threads", [1, 4], indirect=True)
def test_large_strided_kernels_are_predicted_to_the_byte(threads: None) -> None:
    """oneDNN chooses blocks of columns, kernel and rows by an estimate that is mirrored term by term."""
    operators = [operator for pair in seen(list(islice(strided_cases(2), 120))) for operator in pair]
    assert {verdict(operator) for operator in operators} == {"exact"}


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_forwards_whose_input_is_copied_first_are_predicted_to_the_byte(threads: None) -> None:
    """Grayscale images in channels-last layout, signals as images of one column, and images of one patch."""
    counter = Counter(verdict(forward) for forward, _ in seen(list(islice(copied_cases(1), 120))))
    assert not counter["beyond"] and counter["exact"] >= 0.97 * counter.total()


class Volumes(nn.Module):
    """A small U-Net of volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8), nn.LeakyReLU(0.1, inplace=True))
        self.down = nn.Sequential(nn.Conv3d(8, 16, 3, 2, 1), nn.BatchNorm3d(16), nn.ReLU())
        self.up = nn.ConvTranspose3d(16, 8, 2, 2)
        self.last = nn.Conv3d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        return self.last(torch.cat([first, self.up(self.down(first))], 1))  # type: ignore[no-any-return]


def test_strides_and_padding_beyond_the_kernel_open_the_range_of_transposed_ones() -> None:
    common = {"kernel": (3,), "stride": (3,), "padding": (3,), "dilation": (1,), "transposed": True}
    cases = [Case(size=(147,), channels=(12, 16), output_padding=(1,), batch=batch, **common) for batch in (2, 8)]
    operators = [operator for pair in seen(cases) for operator in pair]
    assert not [str(operator) for operator in operators if verdict(operator) == "beyond"]


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_a_step_on_volumes_is_predicted_to_the_byte(mode: str, batch: int, layout: torch.memory_format) -> None:
    model = Volumes().to(memory_format=layout)
    x = torch.randn(batch, 1, 16, 16, 16).to(memory_format=layout)
    measured, predicted = (call(model, input_data=x, mode=mode) for call in (measure_memory, estimate_memory))
    least, most = predicted.peak_range
    assert least <= measured.peak_bytes <= most
    assert predicted.peak_bytes == measured.peak_bytes or "aten::convolution" in dict(predicted.unknown)


LARGE: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "2-d": (nn.Conv2d(16, 24, 6), (3, 16, 6, 6)),
    "1-d": (nn.Conv1d(16, 8, 30, bias=False), (2, 16, 30)),
    "transposed": (nn.ConvTranspose2d(40, 12, 6), (3, 40, 1, 1)),
    "grouped, differentiated twice": (nn.Conv2d(6, 18, 3, groups=6), (4, 6, 9, 9)),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_kernel_as_large_as_the_input_is_one_product(name: str) -> None:
    model, shape = LARGE[name]
    x = torch.zeros(shape, requires_grad=True)

    def step(model: nn.Module, x: torch.Tensor) -> None:
        loss = model(x).square().mean()
        result = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
        (loss + sum(grad.square().sum() for grad in result)).backward()
        model.zero_grad()

    for train_step in (None, step):
        predicted, measured = (
            call(model, input_data=x, train_step=train_step) for call in (estimate_memory, measure_memory)
        )
        assert predicted.peak_bytes == measured.peak_bytes


@pytest.mark.skipif(not has_avx512(), reason="the kernel is one of AVX-512")
def test_a_kernel_that_may_abort_the_process_is_not_tried() -> None:
    """oneDNN writes past its memory in this gradient, so no estimate may run it on zeros."""
    model = nn.ConvTranspose3d(1, 1, (1, 4, 2), (3, 3, 1)).to(memory_format=torch.channels_last_3d)
    x = torch.ones(2, 1, 7, 8, 9).to(memory_format=torch.channels_last_3d).requires_grad_()
    estimate = estimate_memory(model, input_data=x)
    assert estimate.unknown == (("aten::convolution_backward", 2),)
    assert estimate.peak_range[0] <= estimate.peak_bytes < estimate.peak_range[1]


@pytest.mark.parametrize("side", [15, 16, 30])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_gradient_of_a_wide_kernel_in_channels_last(side: int, batch: int) -> None:
    """A kernel above 14 pixels has no direct kernel there, and one whose columns exceed the limit no product."""
    case = Case((side, side), (16, 16), min(side, 15), batch, input_last=True, weight_last=True, wanted=(False, True))
    ((_, gradient),) = seen([case])
    assert verdict(gradient) != "beyond"


@pytest.mark.skipif(has_avx512(), reason="the kernels are those of AVX2")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kernel", [5, 7])
def test_the_gradient_of_a_filter_of_each_colour_in_channels_last(kernel: int, count: int) -> None:
    """AVX2 has no direct kernel for three channels in groups, as where a loss blurs images."""
    cases = [Case((32, 32), (3, out), kernel, groups=3, bias=True, input_last=True) for out in (3, 6)]
    with threads_set_to(count):
        for pair in seen(cases):
            assert_within(pair)
