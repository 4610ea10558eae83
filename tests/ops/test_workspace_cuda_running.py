"""Scratch memory of CUDA's losses, running sums and segments: copies, conversions, CUB's storage.

The numbers of CUB's storage are recorded on the no-op runtime, on H100, A100 and T4.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.ops.test_workspace_cuda import meta, scratch_bytes
from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.data.capability import AMPERE, Capability
from torchsummary_plus.ops.scratch.cuda.chips import chip_of
from torchsummary_plus.ops.scratch.cuda.cub import count_sum, select
from torchsummary_plus.ops.scratch.registry import Alloc, Result
from torchsummary_plus.step.workspace import Workspaces

LONG = torch.int64


@pytest.mark.parametrize(
    ("dtype", "few", "many"), [(torch.float32, 1023, 5119), (torch.float64, 1279, 18_943), (torch.float16, 1279, 3327)]
)
@pytest.mark.parametrize("name", ["aten::cumsum", "aten::cumprod"])
def test_one_row_of_numbers_is_added_up_in_storage_by_dtype(name: str, dtype: torch.dtype, few: int, many: int) -> None:
    for count, expected in ((51, few), (1_000_000, many)):
        row = meta(count, dtype=dtype)
        assert scratch_bytes(AMPERE, name, (row, 0), row) == expected


@pytest.mark.parametrize("name", ["aten::cumsum", "aten::cumprod"])
def test_a_running_sum_of_a_mask_is_of_its_conversion(name: str) -> None:
    mask, whole = meta(30, 40, dtype=torch.bool), 8 * 30 * 40
    assert scratch_bytes(AMPERE, name, (mask, 1), meta(30, 40, dtype=LONG)) == whole
    assert scratch_bytes(AMPERE, name, (mask.t(), 1), meta(40, 30, dtype=LONG)) == 2 * whole
    assert scratch_bytes(AMPERE, name, (mask[:, ::2], 1), meta(30, 20, dtype=LONG)) == whole // 2
    assert scratch_bytes(AMPERE, name, (meta(40, 30).t(), 1), meta(30, 40)) == 4 * 30 * 40


@pytest.mark.parametrize("reduction", [0, 1])
def test_a_likelihood_copies_what_is_strided(reduction: int) -> None:
    x, target, weight = meta(7, 300).t(), meta(300, 2, dtype=LONG)[:, 0], meta(14)[::2]
    number, grad, copies = meta(), meta(1).expand(300), 4 * 7 * 300 + 8 * 300 + 4 * 7
    assert (
        scratch_bytes(AMPERE, "aten::nll_loss_forward", (x, target, weight, reduction, -100), (number, number))
        == copies
    )
    args = grad, x, target, weight, reduction, -100, number
    assert scratch_bytes(AMPERE, "aten::nll_loss_backward", args, x) == copies + 4 * 300


def test_a_likelihood_of_pixels_copies_the_target_for_a_mean() -> None:
    x, target, weight = meta(2, 7, 9, 9), meta(2, 9, 9, dtype=LONG).mT, meta(14)[::2]
    number, each, copy = meta(), meta(2, 9, 9), 8 * 2 * 9 * 9
    for reduction, copies in ((0, 28), (1, 28 + copy)):
        outs = each if reduction == 0 else number, number
        args = x, target, weight, reduction, -100
        assert scratch_bytes(AMPERE, "aten::nll_loss2d_forward", args, outs) == copies
        assert scratch_bytes(AMPERE, "aten::nll_loss2d_backward", (each, *args, number), x) == copies


def test_a_margin_of_several_labels_copies_what_is_strided() -> None:
    x, target, of_rows = meta(40, 30).t(), meta(30, 40, dtype=LONG), meta(1).expand(30)
    args = x, target, 0
    assert scratch_bytes(AMPERE, "aten::multilabel_margin_loss_forward", args, (meta(30), meta(30, 40))) == 4800
    backward = "aten::multilabel_margin_loss_backward"
    assert scratch_bytes(AMPERE, backward, (of_rows, *args, meta(30, 40)), x) == 4800 + 120


def test_overlapping_windows_are_added_up_by_position() -> None:
    x = meta(4000, 16)
    taken = [scratch_bytes(AMPERE, "aten::unfold_backward", (x, [4000, 16], 0, 8, step), x) for step in (4, 8)]
    assert taken == [8 * 4000, 0]


def test_segments_have_lengths_and_offsets() -> None:
    x, lengths, offsets, out = meta(1000, 16), meta(50, dtype=LONG), meta(51, dtype=LONG), meta(50, 16)
    forward, backward, even = "aten::segment_reduce", "aten::_segment_reduce_backward", meta(1, 1).expand(50, 16)
    added = 8 * 51 + 1279
    assert scratch_bytes(AMPERE, forward, (x, "sum"), out, lengths=lengths) == added
    assert scratch_bytes(AMPERE, forward, (x, "sum"), out, offsets=offsets) == 8 * 50
    assert scratch_bytes(AMPERE, backward, (even, out, x, "sum"), x, lengths=lengths) == added + 4 * 50 * 16


@from_release("2.11", "the release that CUDA rules were measured on")
@pytest.mark.parametrize(("length", "is_known"), [(2048, True), (3000, False), (1_000_000, True)])
def test_the_mode_of_a_row_is_exact_unless_it_is_a_little_longer_than_one_kernel_takes(
    length: int, is_known: bool
) -> None:
    """An H100 took 109,568 bytes for 3,000 numbers: 27,136 more than for sorting them, within the range."""
    model, x = Mode(length), torch.zeros(1)
    estimate = estimate_memory(model, input_data=x, device="cuda", gpu="H100", mode="eval", progress=False)
    low, high = estimate.peak_range
    assert ("aten::mode" not in dict(estimate.unknown)) is is_known
    assert (low == high) is is_known
    assert is_known or (low <= estimate.peak_bytes and 27_136 <= high - estimate.peak_bytes < 100_000)


@pytest.mark.parametrize(
    ("dtype", "capability", "storage"),
    [
        (torch.float32, (9, 0), 36_581_119), (torch.float32, (8, 0), 37_009_151), (torch.float64, (9, 0), 48_684_543),
        (torch.int8, (9, 0), 27_892_479), (torch.int8, (8, 0), 29_257_215), (torch.int16, (9, 0), 30_550_399),
        (torch.int16, (8, 0), 34_468_991),
    ],
)  # fmt: skip
def test_a_long_row_is_sorted_by_thrust(dtype: torch.dtype, capability: Capability, storage: int) -> None:
    """As recorded on the no-op runtime: a copy, the order, and the sort's storage."""
    x, count = meta(2_999_999, dtype=dtype), 2_999_999
    out = (meta(1, dtype=dtype), meta(1, dtype=LONG))
    assert scratch_bytes(capability, "aten::mode", (x, 0), out) == dtype.itemsize * count + 8 * count + storage


def test_the_mode_of_an_axis_needs_a_copy_with_that_axis_last() -> None:
    taken = []
    for shape, dim in (((300, 4), 0), ((300, 4), 1), ((300, 1), 0), ((1, 300), 0)):
        size = shape[1 - dim]
        taken.append(scratch_bytes(AMPERE, "aten::mode", (meta(*shape), dim), (meta(size), meta(size, dtype=LONG))))
    assert taken == [4800, 0, 0, 0]


@pytest.mark.parametrize(("capability", "storage"), [((9, 0), 299_519), ((7, 5), 9_455_103)])
def test_bytes_are_sorted_with_a_storage_of_their_own(capability: Capability, storage: int) -> None:
    x = meta(1_000_000, dtype=torch.int8)
    taken = scratch_bytes(capability, "aten::sort", (x, 0), (x, meta(1_000_000, dtype=LONG)))
    assert taken == 8_000_000 + storage


class Mode(nn.Module):
    """The mode of a row of numbers."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.zeros(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.row.mode(0).values + x


@pytest.mark.parametrize(
    ("repeats", "output_size", "ends", "checks"),
    [
        (meta(5000, dtype=LONG), 10_000, [40_000, 1279], []),
        (meta(10, dtype=LONG), None, [80, 1279], [10, 1]),
        (meta(10, dtype=torch.int32), 20, [80, 80, 1279], []),
        (meta(1, dtype=LONG).expand(10), None, [80, 80, 80, 1279], [10, 1]),
    ],
)
def test_repetitions_are_added_up_and_checked(
    repeats: torch.Tensor, output_size: int | None, ends: list[int], checks: list[int]
) -> None:
    """As recorded on the no-op runtime."""
    course = Workspaces("cuda", (9, 0)).scratch(
        "aten::repeat_interleave.Tensor", (repeats,), {"output_size": output_size}, meta(20, dtype=repeats.dtype)
    )
    sizes = [step.nbytes if isinstance(step, Alloc) else None for step in course if isinstance(step, (Alloc, Result))]
    assert sizes == [*ends, *checks, None]


class Product(nn.Module):
    """The product of a row of numbers."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.ones(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.row.prod() + 0 * x


def test_the_gradient_of_a_product_of_all_elements_looks_for_zeros() -> None:
    """A mask of them, their number and their places, with CUB's storage for both."""
    model, x = Product(10_000), torch.zeros(1)
    estimate = estimate_memory(model, input_data=x, device="cuda", gpu="A100 40GB", steps=1, progress=False)
    requested = [nbytes for _, _, nbytes in estimate.log.events if nbytes]
    place = requested.index(count_sum(chip_of(AMPERE), 10_000))
    assert requested[place - 2 : place] == [10_000, 4]
    assert select(chip_of(AMPERE), 10_000) in requested[place + 1 : place + 3]
