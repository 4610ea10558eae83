"""Ragged batches as jagged nested tensors, whose class calls operators below autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.truth.memory_truth import measure
from tests.truth.releases import from_release
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.capability import AMPERE
from torchsummary_plus.ops.scratch.cuda.blas import workspace_bytes

STARTS = [0, 8, 20, 32]


class Ragged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 192)

    def forward(self, x: Tensor) -> Tensor:
        starts = torch.tensor(STARTS, device=x.device)
        rows = torch.nested.nested_tensor_from_jagged(x, starts, min_seqlen=8, max_seqlen=12)
        values: Tensor = self.layer(rows).values()
        return values


@pytest.mark.usefixtures("kept_workspaces")
@from_release("2.11", "the release that CUDA rules were measured on")
def test_a_layer_on_ragged_rows_multiplies_in_the_backward_s_thread_too() -> None:
    estimate = estimate_memory(Ragged(), (64,), 32, "cuda", steps=1, optimizer="sgd")
    spaces = [spec for spec in estimate.log.storages if spec.nbytes == workspace_bytes(AMPERE)]
    assert len(spaces) == 2
    assert "aten::matmul" not in {moment.operator for moment in estimate.log.moments}


class Padded(Ragged):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.nested.as_nested_tensor([x[0], x[1, :13]], layout=torch.jagged)
        padded = torch.nested.to_padded_tensor(self.function(self.layer(rows)), 0.0)
        return padded + torch.ones(1 << 16).sum()


@pytest.mark.parametrize("function", [lambda rows: rows * 2, lambda rows: 3 * (rows / 2), lambda rows: rows.mul_(2)])
def test_a_number_times_ragged_rows_is_kept_for_the_backward(function: Callable[[Tensor], Tensor]) -> None:
    model, inputs = Padded(function), (torch.randn(2, 16, 64),)
    assert estimate_memory(model, input_data=inputs).peak_bytes == measure(model, inputs).peak_bytes
