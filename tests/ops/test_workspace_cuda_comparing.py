"""Allocations of CUDA's comparisons and transfers, in order, as on the no-op runtime (A100)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.test_workspace_cuda_layers import meta, timeline
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.live.fakes import fake_like
from torchsummary_plus.step.workspace import Workspaces

COUNT = 300 * 70


def test_few_elements_are_compared_with_each() -> None:
    out = meta(300, 70, dtype=torch.bool)
    assert timeline("aten::isin.Tensor_Tensor", (meta(300, 70), meta(8)), out) == ["result 0", 8 * COUNT, COUNT]
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
