"""Tensors as they lie on a GPU: ``to`` copies each without the rest of its storage; recurrent weights are one block."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import MemoryEstimate, estimate_memory
from torchsummary_plus.step.runner import flattened

Held = Callable[[Tensor], Tensor]


class Layer(nn.Module):
    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) + self.table[: len(x)]
        return out


class Weights(nn.Module):
    def __init__(self, held: Held) -> None:
        super().__init__()
        flat = torch.zeros(3, 256, 256)
        self.first, self.second = nn.Parameter(held(flat[0])), nn.Parameter(held(flat[2].t()))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.first @ self.second


def _dense(tensor: Tensor) -> Tensor:
    """Return what ``tensor.to(device)`` gives on another device, here on the same one."""
    return tensor.clone()


def _layers(held: Held, device: str = "cpu") -> nn.Module:
    table = torch.zeros(4096, 64, device=device)
    return nn.Sequential(*(Layer(held(table)) for _ in range(4))).to(device)


MODELS: dict[str, Callable[[Held], nn.Module]] = {
    "one buffer": _layers,
    "slice": lambda held: Layer(held(torch.zeros(8192, 64)[:512])),
    "expanded": lambda held: Layer(held(torch.zeros(64).expand(4096, 64))),
    "parameters": Weights,
}


def _peak(model: nn.Module, x: object, device: str = "cuda") -> tuple[int, dict[str, int]]:
    estimate = estimate_memory(model, input_data=x, device=device, optimizer="adam", keep_output=False)
    return estimate.peak_bytes, dict(estimate.at_peak)


@pytest.mark.parametrize("name", MODELS)
def test_on_a_gpu_a_module_s_tensors_share_no_storage(name: str) -> None:
    """An estimate equals that of tensors that share nothing."""
    x = torch.zeros(8, 256 if name == "parameters" else 64)
    assert _peak(MODELS[name](lambda tensor: tensor), x) == _peak(MODELS[name](_dense), x)


def test_batches_that_a_step_brings_itself_are_said_to_be_on_the_gpu() -> None:
    """A step on a GPU may move them one by one; where the model is on the CPU, nothing tells."""
    batches, numbers = [torch.zeros(256, 64) for _ in range(4)], torch.zeros(4)

    def step(model: nn.Linear, _: Tensor) -> None:
        for batch in batches:
            (model(batch.to(model.weight.device)) * numbers.to(model.weight.device).sum()).sum().backward()
            model.zero_grad()

    model, x = nn.Linear(64, 8), torch.zeros(1)
    on_gpu, on_cpu = (
        estimate_memory(model, input_data=x, train_step=step, device=device) for device in ("cuda", "cpu")
    )
    (line,) = on_gpu.assumptions
    assert line == "tensors outside the model, 262,160 bytes, are assumed to be on the GPU before the steps"
    assert not on_cpu.assumptions
    batches.clear()
    assert not estimate_memory(model, input_data=x, train_step=step, device="cuda").assumptions


@pytest.mark.parametrize(
    "parts",
    [
        lambda x: (x[:8], x[8:16]),
        lambda x: (x[:16], x[4:20]),
        lambda x: (x, x[:]),
        lambda x: (x[:1].expand(16, -1), x[:16, :]),
    ],
)
def test_inputs_move_without_the_rest_of_their_storage(parts: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    """Each input of a batch is copied alone; the same tensor given twice stays one."""
    model = nn.Bilinear(64, 64, 8)
    views = parts(torch.zeros(64, 64))
    assert _peak(model, views) == _peak(model, tuple(map(_dense, views)))
    one = views[0]
    assert _peak(model, (one, one))[1]["inputs"] == one.numel() * 4


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
