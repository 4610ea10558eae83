"""Operators that a dispatch mode sees differently from autograd and autocast: composite, or not yet cast."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.truth.memory_truth import measure
from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory
from torchsummary_plus.ops.scratch.cuda.blas import workspace_bytes

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
    assert estimate.peak_bytes == measure(model, (x,), mode).peak_bytes
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
    real = measure(model, (x,), mode, autocast=torch.bfloat16).peak_bytes
    low, high = estimate.peak_range
    return estimate.peak_bytes == real or (bool(estimate.unknown) and low <= real <= high)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_autocast_reaches_the_operators_inside_others_in_inference_mode(mode: str) -> None:
    assert agrees(Cast(), torch.randn(4, 24, 16), mode)


class Multiplied(nn.Module):
    """Products of elements, which autocast runs in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(48, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        products = y * y.prod(-1, keepdim=True) - y.prod() + y.prod(-1, keepdim=True, dtype=torch.float32)
        return products.sum()


def test_autocast_casts_what_products_keep() -> None:
    assert agrees(Multiplied(), torch.randn(64, 48), "train")


@from_release("2.8", "autocast of the fast path's attention")
@pytest.mark.parametrize("norm_first", [False, True])
def test_autocast_casts_inside_the_fused_encoder_layer(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, norm_first=norm_first)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(4, 16, 32)
    assert agrees(model, x, "eval")


class Padded(nn.Module):
    """Self-attention whose padding is masked: sequences (N, T, 16) -> (N, T, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]  # type: ignore[no-any-return]


@pytest.mark.usefixtures("kept_workspaces")
@pytest.mark.parametrize(("length", "copies"), [(1024, 3), (1025, 5)])
def test_masked_scores_on_a_gpu_are_filled_first_if_their_rows_are_long(length: int, copies: int) -> None:
    """Source: ``masked_softmax_cuda`` in ATen/native/cuda/SoftMax.cu. cuBLAS's workspace is one more copy."""
    estimate = estimate_memory(Padded(), (length, 16), 1, "cuda", mode="eval", progress=False)
    scores = 2 * length * length * 4
    assert not any("CPU's kernels" in note for note in estimate.assumptions)
    assert copies * scores < estimate.peak_bytes < (copies + 0.1) * scores


@pytest.mark.usefixtures("kept_workspaces")
def test_the_mean_over_heads_on_a_gpu_has_no_copy_of_the_context_beside_it() -> None:
    """``transform0213_gemm_nt_bias`` in cuda/attention.cu frees it; the peak is that of the no-op runtime (A100).

    Besides the weights: the input, its packed projections and the result; the scores of two heads and their mean.
    """

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(64, 2, batch_first=True)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.attention(x, x, x)  # type: ignore[no-any-return]

    estimate = estimate_memory(Weighted(), (256, 64), 16, "cuda", gpu="A100 80GB", mode="eval", progress=False)
    inputs, scores = 4 * 16 * 256 * 64, 4 * 16 * 256 * 256
    weights, rounding = 4 * (4 * 64 * 64 + 4 * 64), 512
    assert estimate.peak_bytes == 26_412_544
    assert estimate.peak_bytes == workspace_bytes((8, 0)) + weights + rounding + (1 + 3 + 1) * inputs + 3 * scores


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("trains", [False, True])
def test_cudnns_batch_norm_copies_a_slice_also_if_this_build_has_no_cudnn(trains: bool, by_name: bool) -> None:
    """``_batch_norm_impl_index`` in ATen/native/Normalization.cpp; the peaks are those of the no-op runtime (A100)."""

    class Sliced(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            if not by_name:
                return super().forward(x[:, :600])
            tensors = self.weight, self.bias, self.running_mean, self.running_var
            return torch.batch_norm(x[:, :600], *tensors, self.training, 0.1, 1e-5, True)

    mode = {"mode": "train", "loss": lambda y: y.pow(2).sum()} if trains else {"mode": "eval"}
    estimate = estimate_memory(Sliced(600), (1200, 20, 20), 8, "cuda", gpu="A100 80GB", progress=False, **mode)
    image, parameters = 4 * 8 * 600 * 20 * 20, 4 * 2560 + 512
    statistics = 2 * 2560 + 2 * 512
    expected = 7 * image + parameters + statistics if trains else 4 * image + parameters
    assert estimate.peak_bytes == expected


@from_release("2.13", "attention that returns zeros where there are no keys")
@pytest.mark.parametrize("card", ["T4", "H100 SXM"])
@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, None), (torch.float32, torch.half), (torch.half, None)]
)
def test_attention_without_keys_is_a_sum_of_its_inputs_on_a_gpu(
    card: str, dtype: torch.dtype, autocast: torch.dtype | None
) -> None:
    """The input, cast under autocast; zeros, six numbers (sums, their sums and 0), and the result, as torch 2.13's."""

    class Attends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(x, x[:, :, :0], x[:, :, :0])

    x, read = torch.zeros(2, 4, 32, 64, dtype=dtype), autocast or dtype
    estimate = estimate_memory(Attends(), input_data=x, device="cuda", gpu=card, mode="eval", autocast=autocast)
    copies = (2 if read is dtype else 3) * x.numel() * read.itemsize
    assert estimate.peak_bytes == x.nbytes + copies + 6 * 512


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
    assert estimate.peak_bytes == measure(Positioned(), (x,), "eval").peak_bytes
    assert not estimate.assumptions


def test_the_tangent_of_cudnns_batch_norm_is_in_doubt_also_if_this_build_has_no_cudnn() -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        torch.func.jvp(model.eval(), (x,), (x,))

    estimate = estimate_memory(nn.BatchNorm2d(4), (4, 8, 8), 2, "cuda", train_step=step, progress=False)
    assert any("forward-mode differentiation" in note for note in estimate.assumptions)
