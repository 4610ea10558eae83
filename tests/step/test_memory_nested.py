"""Ragged batches as jagged nested tensors, whose class calls operators below autograd."""

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.truth.releases import from_release
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.capability import AMPERE
from torchsummary_plus.ops.scratch.cuda.blas import workspace_bytes

STARTS = [0, 8, 20, 32]


@of_parts(lambda: {"layer": nn.Linear(64, 192)})
def Ragged(self, x: Tensor) -> Tensor:
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
