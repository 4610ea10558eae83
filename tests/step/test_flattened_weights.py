"""Weights of recurrent layers, which lie in one block on a GPU."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.parts import of_parts
from torchsummary_plus import MemoryEstimate, estimate_memory
from torchsummary_plus.step.runner import flattened

LAYER = 3_158_016
"""The bytes of the weights of two layers of a GRU of width 256."""


@of_parts(lambda: {"layer": nn.GRU(256, 256, 2, batch_first=True), "head": nn.Linear(256, 10)})
def Recurrent(self, x: torch.Tensor) -> Any:
    return self.head(self.layer(x)[0])


def estimate(model: nn.Module, **how: Any) -> MemoryEstimate:
    how = {"optimizer": "sgd", "progress": False, **how}
    return estimate_memory(model, input_size=(100, 256), batch_size=8, device="cuda", gpu="T4", **how)


def test_weights_of_a_recurrent_layer_are_one_block() -> None:
    """Torch 2.13 on the no-op T4 reserves 77,594,624 bytes; apart, the weights would fit the small pool."""
    result = estimate(Recurrent())
    sizes = [storage.nbytes for storage in result.log.storages if storage.kind == "parameters" and storage.nbytes]
    assert sizes == [LAYER, 10_240, 40]


def test_other_layers_are_not_flattened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied or bfloat16 weights, other modules, and any layer without cuDNN."""
    tied = nn.RNN(4, 4)
    tied.weight_hh_l0 = tied.weight_ih_l0
    assert flattened(tied) == flattened(nn.GRU(4, 4).bfloat16()) == flattened(nn.Linear(4, 4)) == []
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    assert flattened(nn.GRU(4, 4)) == []


def test_gradients_are_cast_from_the_last_weight_to_the_first() -> None:
    """Under autocast each weight has a node of its own, and a backward runs the last one first."""

    def step(model: nn.Module, x: torch.Tensor) -> None:
        with torch.autocast("cuda", torch.float16):
            loss = model(x)[0].sum()
        loss.backward()

    layer = nn.LSTM(64, 128)
    layer.bias_hh_l0.requires_grad_(False)
    prediction = estimate_memory(layer, (64,), 8, gpu="T4", train_step=step, steps=1, progress=False)
    log = prediction.log
    cast = [
        nbytes
        for moment, _, nbytes in log.events
        if nbytes and log.moments[moment].phase == "backward" and "to_copy" in log.moments[moment].operator
    ]
    _, *cast = cast  # The first is the output's, because the sum is in float32.
    assert cast == [4 * weight.numel() for weight in (layer.bias_ih_l0, layer.weight_hh_l0, layer.weight_ih_l0)]
