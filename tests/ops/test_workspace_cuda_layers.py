"""Allocations of CUDA's layers, comparisons and transfers, in order, as on the no-op runtime."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import estimate_memory
from torchsummary_plus.data.capability import AMPERE, Capability
from torchsummary_plus.live.fakes import fake_like, in_kernel, new_fake
from torchsummary_plus.ops.scratch.cuda import blas
from torchsummary_plus.ops.scratch.cuda.layers import STATE, Recurrence
from torchsummary_plus.ops.scratch.registry import Alloc, Free, Handle, Result
from torchsummary_plus.ops.shapes import ruled
from torchsummary_plus.step.workspace import Workspaces


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def timeline(name: str, args: tuple[Any, ...], out: Any, capability: Capability = AMPERE, **kwargs: Any) -> list[Any]:
    """What an operator allocates: a result's position as text, a buffer's bytes, a freed buffer's bytes below zero."""
    buffers: list[int] = []
    told: list[Any] = []
    for step in Workspaces("cuda", capability).scratch(name, args, kwargs, out):
        if isinstance(step, Result):
            told.append(f"result {step.result}")
        elif isinstance(step, Alloc):
            buffers.append(step.nbytes)
            told.append(step.nbytes)
        elif isinstance(step, Free):
            told.append(-buffers[step.buffer])
    return told


@pytest.mark.parametrize(("mode", "gates", "nbytes"), [(2, 4, 736_000_000), (3, 3, 864_000_000)])
def test_the_reserve_of_a_recurrent_layer_is_the_one_that_was_printed(mode: int, gates: int, nbytes: int) -> None:
    """pytorch/pytorch#2895: four layers of 320 units at 25,000 steps of 123 numbers; cuDNN 9 adds its state."""
    x, hidden = meta(500, 50, 123), meta(4, 50, 320)
    weights = [meta(gates * 320, 123 if layer == 0 else 320) for layer in range(4)]
    args = (x, weights, 4, None, hidden, hidden, mode, 320, 0, 4, False, 0.0, True, False, [], None)
    timeline = Workspaces("cuda").scratch("aten::_cudnn_rnn", args, {}, ())
    assert [step.nbytes for step in timeline if isinstance(step, Result)][-1] == nbytes + STATE


@pytest.mark.parametrize(
    ("settings", "infers", "trains", "reserve"),
    [
        ((1, 64, 0, 1, 0.0, False), 8_421_888, 8_427_264, 5632),
        ((1, 64, 0, 2, 0.0, True), 33_750_784, 33_761_536, 32_512),
        ((2, 64, 0, 1, 0.0, False), 8_523_008, 8_523_008, 27_136),
        ((2, 64, 0, 2, 0.0, True), 34_258_176, 34_258_176, 118_528),
        ((3, 64, 0, 2, 0.0, False), 16_977_920, 16_977_920, 70_144),
    ],
)
def test_packed_sequences_need_no_copies_in_cudnn(settings: Any, infers: int, trains: int, reserve: int) -> None:
    """As cuDNN 9.20 printed them for sequences of 9, 7, 3 and 2 steps of 40 numbers in fp32."""
    *layers, dropout, both = settings
    for is_trained, nbytes in ((False, infers), (True, trains)):
        run = Recurrence(meta(21, 40), *layers, False, dropout, is_trained, both, [4, 4, 3, 2, 2, 2, 2, 1, 1])
        assert (run.workspace_bytes, run.reserve_bytes) == (nbytes, reserve)


@pytest.mark.parametrize("has_cudnn", [True, False])
def test_a_frozen_batch_norm_is_cudnns_forward_and_torchs_backward(
    monkeypatch: pytest.MonkeyPatch, has_cudnn: bool
) -> None:
    """Without cuDNN, the operator of a CPU build stands for cuDNN's, which saves no statistics in evaluation."""
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: has_cudnn)
    with in_kernel():
        x, row = (new_fake(shape, torch.float32, torch.device("cuda")) for shape in ((16, 31, 5, 5), (31,)))
    for training, bias in ((True, row), (False, row), (False, None)):
        func = torch.ops.aten.native_batch_norm.default
        saved: Any = ruled(func, (x, row, bias, row, row, training, 0.1, 1e-5), {})
        assert saved[0] == (x.shape, x.stride(), x.dtype)
        length = 31 if training or has_cudnn or bias is None else 0
        assert saved[1] == saved[2] == ((length,), (1,), torch.float32)
    left = meta(0)
    args = (x, x, row, row, row, left, left, False, 1e-5, [False, True, True])
    assert timeline("aten::native_batch_norm_backward", args, (None, row, row)) == [124, "result 0", "result 1"]


@pytest.mark.parametrize(
    ("shape", "in_last", "stats", "backward"),
    [
        ((32, 64, 56, 56), True, 262_656, 131_584),
        ((64, 2048, 7, 7), True, 852_480, 426_496),
        ((2, 3, 512, 512), True, 12_800, 6_656),
        ((4096, 64), False, 33_280, 16_896),
        ((32, 64, 56, 56), False, 0, 0),
        ((4, 8, 6, 6), True, 0, 0),
    ],
)
def test_buffers_of_synchronised_statistics(shape: tuple[int, ...], in_last: bool, stats: int, backward: int) -> None:
    """In blocks of 512 bytes, as torch's CUDA build allocates them in double precision (benchmarks/nocuda)."""
    x = meta(*shape, dtype=torch.float64)
    if in_last:
        x = x.to(memory_format=torch.channels_last)
    mean = meta(shape[1], dtype=torch.float64)
    workspaces = Workspaces("cuda", AMPERE)
    arguments = (x, x, mean, mean, mean, True, True, True)
    result = workspaces.scratch("aten::batch_norm_stats", (x, 1e-5), {}, (mean, mean))
    reduced = workspaces.scratch("aten::batch_norm_backward_reduce", arguments, {}, (mean, mean, mean, mean))
    for steps, wanted in ((result, stats), (reduced, backward)):
        assert sum(-(-step.nbytes // 512) * 512 for step in steps if isinstance(step, Alloc)) == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_results_of_synchronised_statistics(dtype: torch.dtype) -> None:
    """Shapes and dtypes as torch's CUDA build gives them; statistics of half precision are in float32."""
    aten = torch.ops.aten
    x = meta(4, 8, 6, 6, dtype=dtype).to(memory_format=torch.channels_last)
    mean, ranks, counts = meta(8), meta(4, 8), meta(4)
    of_channels = ((8,), (1,), torch.float32)
    alike = ((4, 8, 6, 6), (288, 1, 48, 8), dtype)
    assert ruled(aten.batch_norm_stats.default, (x, 1e-5), {}) == [of_channels] * 2
    gathered = (x, ranks, ranks, mean, mean, 0.1, 1e-5, counts)
    assert ruled(aten.batch_norm_gather_stats_with_counts.default, gathered, {}) == [of_channels] * 2
    assert ruled(aten.batch_norm_elemt.default, (x, mean, mean, mean, mean, 1e-5), {}) == alike
    backward = aten.batch_norm_backward_reduce.default
    assert ruled(backward, (x, x, mean, mean, mean, True, False, True), {}) == [of_channels] * 4
    rows = x.contiguous()
    assert ruled(backward, (rows, rows, mean, mean, mean, True, False, True), {}) == [
        *[of_channels] * 2,
        None,
        of_channels,
    ]
    arguments = (x, x, mean, mean, mean, mean, mean, meta(4, dtype=torch.int32))
    assert ruled(aten.batch_norm_backward_elemt.default, arguments, {}) == alike


COUNT = 300 * 70


def test_few_elements_are_compared_with_each() -> None:
    out = meta(300, 70, dtype=torch.bool)
    assert timeline("aten::isin.Tensor_Tensor", (meta(300, 70), meta(8)), out) == [8 * COUNT, COUNT]
    assert timeline("aten::isin.Tensor_Tensor", (meta(300, 70), meta(800)), out) == []


MOVES: dict[str, tuple[Any, ...]] = {
    "as it is": (lambda x: x.cpu(),),
    "turned": (lambda x: x.t().cpu(),),
    "with gaps": (lambda x: x[:, ::2].cpu(), 6_000),
    "wider": (lambda x: x.to("cpu", torch.float64),),
    "wider in the background": (lambda x: x.to("cpu", torch.float64, non_blocking=True), 24_000),
    "turned and wider in the background": (lambda x: x.t().to("cpu", torch.float64, non_blocking=True), 24_000, 24_000),
    "turned and narrower": (lambda x: x.t().to("cpu", torch.half), 12_000),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_transfer_converts_and_packs_on_the_gpu_if_it_does_not_block(move: str) -> None:
    function, *parts = MOVES[move]

    class Moved(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            moved: Tensor = function(x)
            return moved

    estimate = estimate_memory(Moved(), (30,), 100, "cuda", mode="eval", progress=False)
    assert estimate.peak_bytes - 12_288 == sum(-(-part // 512) * 512 for part in parts)


@pytest.mark.parametrize(("waits", "nbytes"), [(True, 0), (False, 12_000)])
def test_what_comes_from_the_cpu_is_converted_on_the_gpu_if_the_copy_does_not_block(waits: bool, nbytes: int) -> None:
    x = fake_like(meta(100, 30), torch.device("cpu"))
    out = fake_like(meta(100, 30, dtype=torch.half), torch.device("cuda"))
    taken = timeline("aten::copy_", (out, x, not waits), out)
    assert sum(taken) == nbytes


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize(("steps", "batch", "labels", "length"), [(50, 2, 20, 5), (300, 4, 20, 10), (300, 4, 1000, 10)])
def test_ctc_takes_no_more_than_its_bound(
    steps: int, batch: int, labels: int, length: int, zero_infinity: bool
) -> None:
    """Lengths and offsets; the gradient has the table again, and sums over every other column or the scores again."""
    scores, table = meta(steps, batch, labels), meta(batch, steps, 2 * length + 1)
    args = meta(batch), scores, meta(batch, length), [], [], meta(batch), table, 0, zero_infinity
    lengths, sums = 3 * 8 * batch, 2 * 4 * batch * steps * (length + 2)
    spaces = Workspaces("cuda")
    calls = {
        "aten::_ctc_loss": ((scores, *args[2:5]), (meta(batch), table), lengths),
        "aten::_ctc_loss_backward": (args, scores, lengths + table.nbytes + max(sums, scores.nbytes)),
    }
    for name, (arguments, out, taken) in calls.items():
        assert spaces.scratch(name, arguments, {}, out) == () and name in spaces.unknown
        assert taken <= spaces.take_doubt()[0]


@pytest.mark.usefixtures("kept_workspaces")
@pytest.mark.parametrize(("is_kept", "nbytes"), [("1", 21_774_848), ("0", 13_255_168)])
def test_without_cudnn_results_are_row_major(monkeypatch: pytest.MonkeyPatch, is_kept: str, nbytes: int) -> None:
    """Below capability 8.0 cuDNN takes no bf16; the bytes are those of 2.13 and 2.15 on a T4 of the no-op runtime."""
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", is_kept)
    monkeypatch.setattr(blas, "since", lambda _: True)
    convs = nn.Conv2d(8, 32, 3, padding=1), nn.ConvTranspose2d(32, 8, 2, 2)
    model = nn.Sequential(convs[0], nn.BatchNorm2d(32), nn.ReLU(), convs[1]).bfloat16()
    x = torch.ones(4, 8, 64, 64, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    how: Any = {"input_data": x, "steps": 1, "optimizer": None, "loss": lambda y: y.float().sum(), "progress": False}
    estimate = estimate_memory(model.to(memory_format=torch.channels_last), gpu="T4", **how)
    assert estimate.peak_bytes == nbytes


@pytest.mark.usefixtures("kept_workspaces")
def test_columns_of_volumes_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    shapes = (2, 16, 8, 8, 8), (8, 16, 3, 3, 3), (2, 8, 8, 8, 8)
    x, weight, out = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in shapes)
    spaces = Workspaces("cuda")
    settings = [1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1
    timeline = spaces.scratch("aten::convolution", (x, weight, None, *settings), {}, out)
    assert timeline == (Handle("cublas", 8_519_680),)
    assert spaces.unknown == {"aten::convolution": 1}
    assert 442_368 <= spaces.take_doubt()[0] < 16 * sum(tensor.nbytes for tensor in (x, weight, out))
