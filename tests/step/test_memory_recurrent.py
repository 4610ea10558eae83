"""Recurrent layers with their options, and offloaded saved tensors, predicted against real steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import graph
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.parts import of_parts
from tests.step.step_parts import WIDTH, block, rows
from torchsummary_plus import estimate_memory, measure_memory

pytestmark = pytest.mark.usefixtures("threads")


class Recurrent(nn.Module):
    def __init__(self, kind: str, lengths: list[int] | None, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(24, 20, **options)
        self.batch_first = self.layer.batch_first
        self.lengths = lengths

    def forward(self, x: Tensor) -> Tensor:
        if not self.batch_first:
            x = x.transpose(0, 1)
        if self.lengths is None:
            return self.layer(x)[0]
        lengths = torch.tensor(self.lengths)
        packed = pack_padded_sequence(x, lengths, self.batch_first, enforce_sorted=self.lengths[0] == 7)
        return pad_packed_sequence(self.layer(packed)[0], self.batch_first)[0]


SORTED, MIXED = [7, 5, 5, 2], [2, 7, 5, 5]
LAYERS: dict[str, tuple[Any, ...]] = {
    "packed bidirectional ReLU": ("RNN", SORTED, {"nonlinearity": "relu", "bidirectional": True}),
    "packed tanh, batch first, unsorted": ("RNN", MIXED, {"batch_first": True, "num_layers": 2, "dropout": 0.2}),
    "packed LSTM": ("LSTM", SORTED, {"batch_first": True, "bidirectional": True, "num_layers": 2}),
    "GRU, batch first": ("GRU", None, {"batch_first": True}),
    "LSTM with projections": ("LSTM", None, {"proj_size": 8, "batch_first": True, "bidirectional": True}),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrent_layer(name: str, mode: str) -> None:
    torch.manual_seed(0)
    kind, lengths, options = LAYERS[name]
    model, x = Recurrent(kind, lengths, **options), torch.randn(4, 7, 24)
    predicted, measured = (call(model, input_data=x, mode=mode) for call in (estimate_memory, measure_memory))
    assert predicted.phase_peaks == measured.phase_peaks
    assert predicted.peak_bytes == measured.peak_bytes


def as_half(tensor: Tensor) -> Tensor:
    return tensor.bfloat16() if tensor.is_floating_point() else tensor


HOOKS: dict[str, Callable[[], Any]] = {
    "not pinned": graph.save_on_cpu,
    "half": lambda: graph.saved_tensors_hooks(as_half, lambda packed: packed.float()),
}


@of_parts(lambda hooks: {"layers": block(), "hooks": hooks})
def Hooked(self, x: Tensor) -> Tensor:
    with self.hooks():
        return self.layers(x)


@pytest.mark.parametrize("name", HOOKS)
def test_saved_tensors_that_go_through_hooks(name: str) -> None:
    model, x = Hooked(HOOKS[name]), rows()
    assert x.shape[1] == WIDTH
    predicted, measured = (call(model, input_data=x, optimizer="sgd") for call in (estimate_memory, measure_memory))
    assert predicted.phase_peaks == measured.phase_peaks
    assert predicted.peak_bytes == measured.peak_bytes
