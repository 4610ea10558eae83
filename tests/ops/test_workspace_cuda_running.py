"""Scratch memory of CUDA's losses, running sums and segments: copies, conversions, CUB's storage.

The numbers of CUB's storage are recorded on the no-op runtime, on H100, A100 and T4.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.ops.test_workspace_cuda import meta, scratch_bytes
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


def test_overlapping_windows_are_added_up_by_position() -> None:
    x = meta(4000, 16)
    taken = [scratch_bytes(AMPERE, "aten::unfold_backward", (x, [4000, 16], 0, 8, step), x) for step in (4, 8)]
    assert taken == [8 * 4000, 0]


@pytest.mark.parametrize(("capability", "storage"), [((9, 0), 299_519), ((7, 5), 9_455_103)])
def test_bytes_are_sorted_with_a_storage_of_their_own(capability: Capability, storage: int) -> None:
    x = meta(1_000_000, dtype=torch.int8)
    taken = scratch_bytes(capability, "aten::sort", (x, 0), (x, meta(1_000_000, dtype=LONG)))
    assert taken == 8_000_000 + storage


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
