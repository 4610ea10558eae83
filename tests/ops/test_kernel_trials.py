"""A CPU kernel's memory by its trial on zeros is what torch's profiler sees, in whatever size it was tried."""

import ast
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cpu.calls import Call, Kernels, wrong
from tests.parts import of_parts
from tests.truth.memory_truth import measure
from tests.truth.warm import python
from torchsummary_plus import estimate_memory, measure_memory
from torchsummary_plus.step import kernel_trials

Make = Callable[[], nn.Module]
R = torch.randn


@of_parts(lambda function: {"function": function})
def Applied(self, x: Tensor) -> Any:
    return self.function(x)


def square(x: Tensor) -> Tensor:
    return x.mT @ x + torch.eye(x.shape[-1])


CONVOLUTIONS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "3x3": (lambda: nn.Conv2d(24, 40, 3, padding=1), (2, 24, 9, 9)),
    "few channels": (lambda: nn.Conv2d(3, 20, 7, 2, 3), (2, 3, 14, 14)),
    "1x1": (lambda: nn.Conv2d(24, 40, 1), (16, 24, 8, 8)),
    "1x1 with a stride": (lambda: nn.Conv2d(24, 40, 1, 2), (2, 24, 8, 8)),
    "dilated": (lambda: nn.Conv2d(16, 24, 3, padding=2, dilation=2), (2, 16, 12, 12)),
    "groups": (lambda: nn.Conv2d(64, 64, 3, groups=4), (2, 64, 8, 8)),
    "depthwise": (lambda: nn.Conv2d(40, 40, 3, groups=40), (2, 40, 8, 8)),
    "row": (lambda: nn.Conv1d(8, 24, 3, padding=1), (2, 8, 30)),
    "volume": (lambda: nn.Conv3d(8, 24, 3, 2), (2, 8, 6, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(32, 8, 2, 2), (2, 32, 6, 6)),
    "transposed volume": (lambda: nn.ConvTranspose3d(8, 8, 2, 2), (1, 8, 4, 4, 4)),
}
LAYERS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(64, 96), (33, 64)),
    "bilinear": (lambda: Applied(lambda x: F.bilinear(x, x, x.new_ones(8, 32, 32))), (20, 32)),
    "batch norm": (lambda: nn.BatchNorm2d(6), (4, 6, 5, 7)),
    "layer norm": (lambda: nn.LayerNorm(48), (30, 48)),
    "group norm": (lambda: nn.GroupNorm(4, 16), (3, 16, 6, 6)),
    "attention": (lambda: Applied(lambda x: F.scaled_dot_product_attention(x, x, x)), (2, 4, 300, 16)),
    "heads": (lambda: Applied(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)), (2, 20, 32)),
    "LSTM": (lambda: Applied(lambda x: nn.LSTM(12, 20, 2)(x)[0]), (7, 3, 12)),
    "pool": (lambda: nn.AdaptiveAvgPool2d(3), (2, 3, 10, 10)),
    "interpolation": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (2, 3, 9, 9)),
    "grid": (lambda: Applied(lambda x: F.grid_sample(x, x.new_zeros(2, 4, 4, 2))), (2, 3, 9, 9)),
    "sort": (lambda: Applied(lambda x: x.sort(1).values), (40, 60)),
    "softmax of columns": (lambda: Applied(lambda x: x.mT.softmax(0)), (40, 60)),
    "cast": (lambda: Applied(lambda x: (x * torch.ones(60, dtype=torch.float64)).sum(0)), (40, 60)),
}
ALGEBRA: dict[str, Callable[[Tensor], Any]] = {
    "inverse": lambda x: torch.linalg.inv(square(x)),
    "system": lambda x: torch.linalg.solve(square(x), x.mT),
    "determinant": lambda x: torch.linalg.slogdet(square(x)).logabsdet,
    "Cholesky": lambda x: torch.linalg.cholesky(square(x)),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(square(x)),
    "singular values": torch.linalg.svdvals,
    "QR": lambda x: torch.linalg.qr(x)[1],
    "least squares": lambda x: torch.linalg.lstsq(x, x).solution,
    "Fourier": lambda x: torch.fft.rfft(x).abs(),
    "distances": lambda x: torch.cdist(x, x),
}


def kernels(model: nn.Module, x: Tensor) -> list[Call]:
    """The different kernels of a forward and a backward."""
    with Kernels() as seen:
        out = model(x.requires_grad_())
        if out.requires_grad:
            out.float().sum().backward()
    return list({call.text: call for call in seen.calls}.values())


def disagreeing(model: nn.Module, x: Tensor) -> list[str]:
    drawn = kernels(model, x)
    assert drawn
    return [f"{call.text}: {difference}" for call, difference in wrong(drawn)]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("threads", "is_last", "dtype"),
    [(1, False, torch.float32), (2, True, torch.float32), (2, False, torch.bfloat16), (1, True, torch.float64)],
    indirect=["threads"],
)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, is_last: bool, dtype: torch.dtype) -> None:
    make, shape = CONVOLUTIONS[name]
    model, x = make().to(dtype), R(shape, dtype=dtype)
    if is_last and x.dim() > 3:
        layout = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        model, x = model.to(memory_format=layout), x.to(memory_format=layout)  # type: ignore[call-overload]
    assert not disagreeing(model, x)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("threads", "dtype"), [(1, torch.bfloat16), (2, torch.float32)], indirect=["threads"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, dtype: torch.dtype) -> None:
    make, shape = LAYERS[name]
    torch.set_default_dtype(dtype)
    try:
        assert not disagreeing(make(), R(shape))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("name", ALGEBRA)
def test_linear_algebra(name: str, is_turned: bool) -> None:
    x = R(3, 12, 12)
    assert not disagreeing(Applied(ALGEBRA[name]), x.mT.contiguous().mT.detach() if is_turned else x)


@pytest.fixture
def tried_in_smaller_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_trials, "AT_ONCE", 1 << 10)
    monkeypatch.setattr(kernel_trials, "_COURSES", {})


LARGE: dict[str, tuple[Make, tuple[int, ...]]] = {
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.GELU()), (3, 12, 12)),
    "perceptron": (lambda: nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.LayerNorm(96), nn.Linear(96, 10)), (64,)),
    "attention": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (12, 32)),
}


@pytest.mark.usefixtures("threads", "tried_in_smaller_sizes")
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("name", LARGE)
def test_large_calls_follow_from_smaller_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None runs in its own size."""
    make, size = LARGE[name]
    model = make()
    largest = max(parameter.nbytes for parameter in model.parameters())
    monkeypatch.setattr(kernel_trials, "LARGEST", 2 * largest + (1 << 18))
    estimate = estimate_memory(model, size, 64, optimizer="adamw")
    assert not estimate.unknown
    assert estimate.peak_bytes == measure_memory(model, size, 64, optimizer="adamw").peak_bytes


def test_what_cannot_be_tried_is_named_with_a_range(untried: None) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), R(2, 3, 12, 12)
    estimate = estimate_memory(model, input_data=x, mode="eval")
    low, high = estimate.peak_range
    assert "aten::convolution" in dict(estimate.unknown)
    assert low <= measure(model, (x,), "eval") <= high


def test_a_trial_draws_nothing_from_the_callers_generators() -> None:
    generator = torch.Generator()
    before, own = torch.get_rng_state(), generator.get_state()
    estimate_memory(Applied(lambda x: x.bernoulli(0.25, generator=generator) + torch.rand(7)), (7,), mode="eval")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(generator.get_state(), own)


def test_a_kernel_that_may_abort_the_process_is_not_tried() -> None:
    """On AVX-512, oneDNN writes past its memory in this gradient."""
    model = nn.ConvTranspose3d(1, 1, (1, 4, 2), (3, 3, 1)).to(memory_format=torch.channels_last_3d)
    x = torch.ones(2, 1, 7, 8, 9).to(memory_format=torch.channels_last_3d).requires_grad_()
    estimate = estimate_memory(model, input_data=x)
    assert estimate.unknown == (("aten::convolution_backward", 2),)
    assert estimate.peak_range[0] <= estimate.peak_bytes < estimate.peak_range[1]


def test_a_view_in_place_allocates_nothing() -> None:
    model = Applied(lambda x: (x * 2).transpose_(0, 1).unsqueeze_(0).squeeze_(0))
    estimate = estimate_memory(model, input_data=R(30, 40), mode="eval")
    assert estimate.unknown == () and estimate.peak_range == (estimate.peak_bytes, estimate.peak_bytes)


SHAPED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "batch norm": (lambda: nn.BatchNorm2d(128), (128, 14, 14)),
    "group norm": (lambda: nn.GroupNorm(8, 128), (128, 14, 14)),
    "instance norm": (lambda: nn.InstanceNorm2d(128, affine=True), (128, 14, 14)),
    "convolution": (lambda: nn.Conv2d(128, 128, 1), (128, 14, 14)),
    "linear": (lambda: nn.Linear(128, 128), (600, 128)),
}


def test_a_batch_as_large_as_the_channels() -> None:
    """Where both were made smaller in some arguments alone, kernels wrote beyond them, and the process died."""
    code = "from tests.ops.test_kernel_trials import SHAPED, peaks; print([peaks(*case) for case in SHAPED.values()])"
    done = subprocess.run([*python(), "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for low, truth, high in ast.literal_eval(done.stdout):
        assert low <= truth <= high


def peaks(build: Callable[[], nn.Module], size: tuple[int, ...]) -> tuple[int, int, int]:
    """The least and most predicted, and the measured peak between them, of a batch of 128."""
    model = build()
    low, high = estimate_memory(model, size, 128, device="cpu", progress=False).peak_range
    return low, measure_memory(model, size, 128).peak_bytes, high
