"""Weights of recurrent layers, which lie in one block on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchsummary_plus import MemoryEstimate, estimate_memory
from torchsummary_plus.step.flattened import flattened

LAYER = 3_158_016
"""The bytes of the weights of two layers of a GRU of width 256."""


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(256, 256, 2, batch_first=True), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.layer(x)[0])


def estimate(model: nn.Module, **how: Any) -> MemoryEstimate:
    how = {"optimizer": "sgd", "progress": False, **how}
    return estimate_memory(model, input_size=(100, 256), batch_size=8, device="cuda", gpu="T4", **how)


def test_weights_of_a_recurrent_layer_are_one_block() -> None:
    """Torch 2.13 on the no-op T4 reserves 77,594,624 bytes; apart, the weights would fit the small pool."""
    found = estimate(Recurrent())
    sizes = [storage.nbytes for storage in found.log.storages if storage.kind == "parameters" and storage.nbytes]
    assert sizes == [LAYER, 10_240, 40]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_layers_of_cudnns_dtypes_are_flattened(dtype: torch.dtype) -> None:
    assert len(flattened(nn.LSTM(4, 4).to(dtype))) == 4


def test_other_layers_are_not_flattened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied or bfloat16 weights, other modules, and any layer without cuDNN."""
    tied = nn.RNN(4, 4)
    tied.weight_hh_l0 = tied.weight_ih_l0
    assert flattened(tied) == flattened(nn.GRU(4, 4).bfloat16()) == flattened(nn.Linear(4, 4)) == []
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    assert flattened(nn.GRU(4, 4)) == []
