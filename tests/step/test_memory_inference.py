"""Operators that a dispatch mode sees differently from autograd and autocast: composite, or not yet cast."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.truth.memory_truth import measure
from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory

pytestmark = pytest.mark.usefixtures("threads")


class Convolved(nn.Module):
    """Operators that consist of others, which nothing takes apart before a mode sees them in inference mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.attention, self.rnn = nn.MultiheadAttention(16, 2, batch_first=True), nn.LSTM(16, 16)
        self.head = nn.Linear(16, 4)

    def seen(self, x: Tensor) -> Tensor:
        y = functional.interpolate(functional.relu(self.norm(self.conv(x))), scale_factor=0.5)
        y = y.flatten(2).transpose(1, 2)
        return self.rnn(self.attention(y, y, y)[0])[0]  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = functional.layer_norm(self.seen(x), (16,))
        return self.head(functional.layer_norm(y, (16,)).clone())


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_inference_mode_runs_the_kernels_that_it_runs_without_a_mode(mode: str) -> None:
    model, x = Convolved(), torch.randn(4, 3, 16, 16)
    estimate = estimate_memory(model, input_data=x, mode=mode)
    assert estimate.peak_bytes == measure(model, (x,), mode)
    assert not estimate.unknown


class Cast(nn.Module):
    """Operators inside others in inference mode: autocast casts their inputs, unless it cast the outer one's."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.attention = nn.RNN(16, 16, batch_first=True), nn.MultiheadAttention(16, 2, batch_first=True)
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = self.attention(*[self.rnn(x)[0]] * 3)[0]
            torch.einsum("bij,bkj->bik", x, y.float())
        return x * self.weight


def agrees(model: nn.Module, x: Tensor, mode: str) -> bool:
    """Whether the estimate under autocast equals the measured peak; products on matrix tiles have a range."""
    estimate = estimate_memory(model, input_data=x, mode=mode, autocast="bfloat16")
    real = measure(model, (x,), mode, autocast=torch.bfloat16)
    low, high = estimate.peak_range
    return estimate.peak_bytes == real or (bool(estimate.unknown) and low <= real <= high)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_autocast_reaches_the_operators_inside_others_in_inference_mode(mode: str) -> None:
    assert agrees(Cast(), torch.randn(4, 24, 16), mode)


@from_release("2.8", "autocast of the fast path's attention")
@pytest.mark.parametrize("norm_first", [False, True])
def test_autocast_casts_inside_the_fused_encoder_layer(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, norm_first=norm_first)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(4, 16, 32)
    assert agrees(model, x, "eval")


class Positioned(nn.Module):
    """Views, made in inference mode, of tensors from outside it: the input, a buffer and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("table", torch.randn(32, 16))

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x[:, :8]) + self.table[:8]
        return y @ self.layer.weight[2:].t()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_views_of_outer_tensors_work_in_inference_mode(device: str) -> None:
    x = torch.randn(4, 12, 16)
    estimate = estimate_memory(Positioned().to(device), input_data=x.to(device), device="cpu", mode="eval")
    assert estimate.peak_bytes == measure(Positioned(), (x,), "eval")
    assert not estimate.assumptions
