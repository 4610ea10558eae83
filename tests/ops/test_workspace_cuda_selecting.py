"""Scratch memory of CUDA kernels that sort, select, add by index or add up along an axis."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.test_workspace_cuda import meta, scratch_bytes
from torchsummary_plus.data.capability import AMPERE
from torchsummary_plus.live.versions import since
from torchsummary_plus.memory.gpus import find_gpu
from torchsummary_plus.ops.scratch.cuda.chips import Chip
from torchsummary_plus.ops.scratch.cuda.sorting import EXTREMES_SINCE, count_sum, radix_sort, select
from torchsummary_plus.ops.scratch.registry import Alloc, Result
from torchsummary_plus.ops.shapes import ruled
from torchsummary_plus.step.workspace import Workspaces


@pytest.mark.parametrize(
    ("count", "rows", "dtype", "sort", "sums"),
    [
        (20_000, 64, torch.float32, 7679, [16_512, 16_512]),
        (20_000, 64, torch.bfloat16, 7679, [16_512, 16_512, 8192]),
        (20_000, 300, torch.float32, 329_727, [18_400, 18_400]),
        (20_000, 528, torch.float32, 329_727, [20_224, 323_584]),
        (3990, 133, torch.float32, 3583, [4256, 68_096]),
    ],
)
def test_frequent_indices_are_added_up_atomically(
    count: int, rows: int, dtype: torch.dtype, sort: int, sums: list[int]
) -> None:
    """As torch 2.13's allocator recorded them for rows of 32 numbers on an H100."""
    args = meta(count, 32, dtype=dtype), meta(count, dtype=torch.int64), rows, -1, False
    steps = Workspaces("cuda", Chip((9, 0))).scratch("aten::embedding_dense_backward", args, {}, ())
    sizes = [step.nbytes for step in steps if isinstance(step, Alloc)]
    assert sizes[3] == sort and sizes[-len(sums) - 1 :] == [8, *sums]


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_the_gradient_of_alignments_by_hand(zero_infinity: bool) -> None:
    def taken(steps: int, batch: int, labels: int, length: int) -> int:
        scores, table = meta(steps, batch, labels), meta(batch, steps, 2 * length + 1)
        args = meta(batch), scores, meta(batch, length), [], [], meta(batch), table, 0, zero_infinity
        return scratch_bytes(AMPERE, "aten::_ctc_loss_backward", args, scores)

    small, lengths = 4 * 2 * 50 * 11, 3 * 8 * 2
    assert taken(50, 2, 20, 5) == small + lengths
    large, lengths = 4 * 4 * 300 * 21, 3 * 8 * 4
    summed = 2 * 4 * (4 * 300 * 11 + 4 * 300)
    assert taken(300, 4, 20, 10) == large + lengths + summed
    assert taken(300, 4, 1000, 10) == large + lengths + (4 * 300 * 4 * 1000 if zero_infinity else summed)


def test_the_gradient_of_a_selection_is_written_to_copies() -> None:
    """Of values that are expanded, and of a tensor that is not contiguous or whose indexed axes are not adjacent."""
    put, index = "aten::index_put_", meta(300, dtype=torch.int64)
    sorts, volume = 4 * 8 * 300 + 1, meta(10, 20, 30)

    def taken(x: torch.Tensor, indices: list[torch.Tensor | None], values: torch.Tensor) -> int:
        return scratch_bytes(AMPERE, put, (x, indices, values, True), x)

    assert taken(volume, [None, index], meta(10, 300, 30)) == sorts
    assert taken(volume, [None, index], meta()) == sorts + 4 * 10 * 300 * 30
    assert taken(volume, [index, None, index], meta(300, 20)) == sorts + 4 * volume.numel()
    assert taken(meta(10, 1, 30), [index, None, index], meta(300, 1)) == sorts
    assert taken(meta(30, 20, 10).mT, [index], meta(300, 10, 20)) == sorts + 4 * 30 * 20 * 10
    assert taken(volume, [meta(10, 20, dtype=torch.bool)], meta(300, 30)) == sorts + 2 * 8 * 300


def test_a_long_sort_takes_what_the_judge_saw() -> None:
    """Recorded of H100, A100, T4 and RTX 3090."""
    chips = [Chip(capability, find_gpu(name).multiprocessors) for name, capability in CHIPS.items()]
    assert [radix_sort(chip, 1_000_000, 4, 8) for chip in chips] == [12_200_191, 12_342_527, 12_373_247, 12_342_527]
    assert [radix_sort(chip, 1_000_000, 8, 8) for chip in chips] == [16_240_127, 16_284_159, 16_381_439, 16_284_159]
    assert [radix_sort(chip, 5000, 2, 8) for chip in chips] == [56_063, 4_519_423, 914_943, 2_614_783]
    assert [select(chip, 1_000_000) for chip in chips] == [2815, 4351, 13_311, 13_311]
    assert [count_sum(chip, 100_000) for chip in chips] == [21_503, 17_663, 3583, 10_239]
    x = meta(4097)
    assert scratch_bytes(chips[0], "aten::sort", (x,), (x, meta(4097, dtype=torch.int64))) == 8 * 4097 + 59_391


CHIPS = {"H100 SXM": (9, 0), "A100 80GB": (8, 0), "T4": (7, 5), "RTX 3090": (8, 6)}


@pytest.mark.parametrize("has_cudnn", [True, False])
def test_rows_of_channels_are_normalised_with_staging_buffers(monkeypatch: pytest.MonkeyPatch, has_cudnn: bool) -> None:
    """cuDNN takes images with weights; builds without it call its operator by the same name."""
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: has_cudnn)
    x, row = meta(4096, 512), meta(512)
    forward, backward = "aten::native_batch_norm", "aten::native_batch_norm_backward"
    staging = 4 * 512 * 16 * 4
    options = (None, None, None, None, True, 0.1, 1e-5)
    assert scratch_bytes(AMPERE, forward, (x, *options), (x, row, row)) == staging + 4 * 16
    assert scratch_bytes(AMPERE, forward, (meta(16, 64, 32, 32), *options), (x, row, row)) == 0
    assert scratch_bytes(AMPERE, forward, (x, row, row, *options[2:]), (x, row, row)) == staging + 4 * 16
    image, channel = meta(16, 64, 32, 32).to(memory_format=torch.channels_last), meta(64)
    staged = scratch_bytes(AMPERE, forward, (image, channel, channel, *options[2:]), (image, channel, channel))
    assert (staged > 0) == has_cudnn
    args = x, x, None, None, None, row, row, True, 1e-5, [True, True, True]
    assert scratch_bytes(AMPERE, backward, args, (x, row, row)) == 2 * 2048 + staging // 2 + 4 * 16
    with_weight = x, x, row, row, row, row, row, True, 1e-5, [True, True, True]
    assert scratch_bytes(AMPERE, backward, with_weight, (x, row, row)) == 2 * 2048 + staging // 2 + 4 * 16
    evenly = x[:1, :1].expand(4096, 512), *with_weight[1:]
    assert scratch_bytes(AMPERE, backward, evenly, (x, row, row)) == 2 * 2048
    even = meta(1, 1, 1, 1).expand(16, 64, 32, 32)
    alone = even, image, channel, None, None, channel, channel, True, 1e-5, [True, True, True]
    ours = scratch_bytes(AMPERE, backward, alone, (image, channel, channel))
    assert ours == (2 * 4 * 64 if has_cudnn else 4 * image.numel())
    result: Any = ruled(torch.ops.aten.native_batch_norm_backward.default, alone, {})
    assert result[0][:2] == (tuple(image.shape), image.stride())


def test_drawing_several_from_turned_weights_copies_their_exponentials() -> None:
    weights, name = meta(8, 5000), "aten::multinomial"
    checks = (2 * 4 if since(EXTREMES_SINCE) else 0) + 2
    assert scratch_bytes(AMPERE, name, (weights.mT, 2), meta(5000, 2)) == checks + 2 * 160_000 + 40_000
    assert scratch_bytes(AMPERE, name, (weights.mT, 1), meta(5000, 1)) == checks + 160_000
    assert scratch_bytes(AMPERE, name, (weights, 2), meta(8, 2)) == checks + 160_000 + 64


@pytest.mark.parametrize(("shape", "sizes"), [((0,), [4, 1, 767]), ((3, 0), [4, 1, 767]), ((), [4, 1])])
def test_places_are_looked_for_among_no_elements_and_counted_in_a_number(shape: Any, sizes: list[int]) -> None:
    """As recorded on the no-op runtime; a number has no axes to say a place of."""
    steps = Workspaces("cuda", (9, 0)).scratch(
        "aten::nonzero", (meta(*shape),), {}, meta(0, len(shape), dtype=torch.int64)
    )
    assert [step.nbytes for step in steps if isinstance(step, Alloc)] == sizes


@pytest.mark.parametrize(
    ("dtype", "few", "many"), [(torch.float32, 1023, 5119), (torch.float64, 1279, 18_943), (torch.float16, 1279, 3327)]
)
@pytest.mark.parametrize("name", ["aten::cumsum", "aten::cumprod"])
def test_one_row_of_numbers_is_added_up_in_storage_by_dtype(name: str, dtype: torch.dtype, few: int, many: int) -> None:
    for count, expected in ((51, few), (1_000_000, many)):
        row = meta(count, dtype=dtype)
        assert scratch_bytes(AMPERE, name, (row, 0), row) == expected


@pytest.mark.parametrize(
    ("repeats", "output_size", "ends", "checks"),
    [
        (meta(5000, dtype=torch.int64), 10_000, [40_000, 1279], []),
        (meta(10, dtype=torch.int64), None, [80, 1279], [10, 1]),
        (meta(10, dtype=torch.int32), 20, [80, 80, 1279], []),
        (meta(1, dtype=torch.int64).expand(10), None, [80, 80, 80, 1279], [10, 1]),
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
