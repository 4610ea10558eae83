"""Scratch memory of half-precision matrix products against torch's profiler, for each instruction set."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.ops.test_workspace_conv import CASES
from tests.truth.kernel_truth import Call, agree, aten, described, measured, tensors
from tests.truth.memory_truth import measure
from tests.truth.releases import from_release
from tests.truth.warm import python
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.live.versions import since
from torchsummary_plus.ops.processor import has_avx512, has_avx512_bf16, has_avx512_fp16, has_tiles, multiplies
from torchsummary_plus.step import kernel_trials
from torchsummary_plus.step.workspace import Workspaces

ROOT = Path(__file__).parents[2]

SIZES = (1, 2, 3, 8, 17, 24, 32, 33, 50, 64, 65, 100, 128, 200, 256, 300, 513, 600, 1024)
HALVES = (torch.bfloat16, torch.float16)


def matrix(rows: int, columns: int, dtype: torch.dtype, layout: str, batch: tuple[int, ...] = ()) -> Tensor:
    """A matrix of zeros by rows, by columns, or of every other column of a wider one."""
    if layout == "columns":
        return torch.zeros(*batch, columns, rows, dtype=dtype).transpose(-1, -2)
    if layout == "spaced":
        return torch.zeros(*batch, rows, 2 * columns, dtype=dtype)[..., ::2]
    return torch.zeros(*batch, rows, columns, dtype=dtype)


def products(count: int, seed: int) -> Iterator[Call]:
    """Products of many shapes and layouts, small ones among them."""
    draw = random.Random(seed)
    while count:
        m, k, n = (draw.choice(SIZES) for _ in range(3))
        batch = draw.choice(((), (), (1,), (3,), (8,)))
        if m * k * n > 4e7:
            continue
        dtype = HALVES[count % 2]
        a, b = (
            matrix(*shape, dtype, draw.choice(("rows", "rows", "columns", "columns", "spaced")), batch)
            for shape in ((m, k), (k, n))
        )
        bias = torch.zeros(*batch, m, n, dtype=dtype)
        plain, added = (aten.bmm, aten.baddbmm) if batch else (aten.mm, aten.addmm)
        yield (plain.default, a, b) if draw.random() < 0.6 else (added.default, bias, a, b)
        count -= 1


def vectors() -> Iterator[Call]:
    for dtype in HALVES:
        for rows, columns in ((64, 100), (200, 513), (30, 40), (40, 2000), (1, 6000)):
            for layout in ("rows", "columns", "spaced"):
                yield aten.mv.default, matrix(rows, columns, dtype, layout), torch.zeros(columns, dtype=dtype)
        yield aten.mm.default, matrix(1, 512, dtype, "rows"), matrix(512, 128, dtype, "columns")
        yield aten.mm.default, matrix(1, 2000, dtype, "rows"), matrix(2000, 40, dtype, "rows")
        for layout in ("rows", "columns"):
            yield aten.mm.default, matrix(512, 128, dtype, "rows"), matrix(128, 1, dtype, layout)


def disagreeing(calls: list[Call]) -> list[str]:
    """The calls that hold other than their rules say; where these know a bound alone, more than that."""
    wrong = []
    for call, (peak, out) in zip(calls, measured([partial(*call) for call in calls])):
        operator, *args = call
        workspaces = Workspaces("cpu")
        phases = workspaces.scratch(operator.name(), tuple(args), {}, out)
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors(out)]
        low, high = (
            max(sum(sizes[: phase.results]) + int(phase.nbytes * (1 + sign * phase.band)) for phase in phases)
            for sign in (-1, 1)
        )
        high = max(high, sum(sizes) + workspaces.take_doubt()[0])
        if not low <= peak <= high:
            wrong.append(f"{operator.name()}{described(args)}: {low:,} to {high:,} instead of {peak:,}")
    return wrong


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried on zeros: rules and their bounds tell all."""
    monkeypatch.setattr(kernel_trials, "ALLOWANCE", -1)


@pytest.mark.usefixtures("threads", "untried")
@pytest.mark.parametrize("threads", [1, 2, 5], indirect=True)
def test_products_in_half_precision() -> None:
    calls = [*products(25, torch.get_num_threads()), *vectors()]
    wrong = disagreeing(calls)
    assert not wrong, "\n".join(wrong)


def attentions(count: int, seed: int) -> Iterator[Call]:
    """Attention of many sizes, forward and backward."""
    draw = random.Random(seed)
    for number in range(count):
        dtype, width, is_causal = HALVES[number % 2], draw.choice((1, 7, 16, 24, 64, 100)), draw.random() < 0.3
        batch, heads = draw.choice(((1, 1), (2, 1), (1, 3), (2, 2)))
        queries, keys = (draw.choice((1, 8, 16, 33, 64, 200, 600)) for _ in range(2))
        q = torch.rand(batch, heads, queries, width).to(dtype)
        k, v = (torch.rand(batch, heads, keys, width).to(dtype) for _ in range(2))
        args = 0.0, is_causal
        yield aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, *args
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, *args)
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        yield backward, torch.ones_like(out), q, k, v, out, sums, *args


@from_release("2.11", "the release that half-precision rules were measured on")
@pytest.mark.usefixtures("threads", "untried")
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_attention_in_half_precision() -> None:
    """Products of the backward's tiles run in oneDNN."""
    wrong = disagreeing(list(attentions(30, torch.get_num_threads())))
    assert not wrong, "\n".join(wrong)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_the_gradient_of_gelu_in_onednn(dtype: torch.dtype) -> None:
    if dtype is not torch.float32 and not since("2.11"):
        pytest.skip("half-precision rules were measured on torch 2.11 and later")
    x = torch.zeros(70, 71, dtype=dtype)
    grads = torch.zeros_like(x), x[0, 0].expand(70, 71), torch.zeros(71, 70, dtype=dtype).mT
    agree((aten.gelu_backward.default, grad, each) for grad in grads for each in (x, grads[2]))


LAYOUTS = ("rows", "rows", "columns", "spaced")
ADDED = ("addmm", "addmm_", "addmv", "addmv_", "baddbmm", "baddbmm_", "addbmm", "addbmm_")


class Added(nn.Module):
    """A product that is added to a tensor, of random sizes, layouts and factors."""

    def __init__(self, kind: str, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        draw = random.Random(f"{kind} {dtype} {seed}")
        m, k, n = (draw.choice(SIZES[1:14]) for _ in range(3))
        stacks = "bmm" in kind
        batch = (draw.choice((1, 3, 4)),) if stacks else ()
        shapes: list[tuple[int, int, tuple[int, ...]]]
        shapes = [(m, n, () if "addbmm" in kind and "baddbmm" not in kind else batch), (m, k, batch), (k, n, batch)]
        self.kind = kind
        self.specs = [(*shape[:2], dtype, draw.choice(LAYOUTS), shape[2]) for shape in shapes]
        self.factors = {"alpha": draw.choice((1, 1, 2)), "beta": draw.choice((1, 0, 2))}

    def forward(self, x: Tensor) -> Tensor:
        target, a, b = (matrix(*spec) for spec in self.specs)
        if "mv" in self.kind:
            target, b = target[:, 0].clone(), b[:, 0].clone()
        result: Tensor = getattr(target, self.kind)(a, b, **self.factors)
        return result * x


@from_release("2.11", "the release that half-precision rules were measured on")
@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("kind", ADDED)
def test_products_added_to_a_tensor(kind: str) -> None:
    """Also in place, and with a factor, which oneDNN reads from a tensor."""
    for dtype, seed in product((*HALVES, torch.float32), range(8)):
        model, x = Added(kind, dtype, seed), torch.ones((), dtype=dtype)
        peak = measure(model, (x,), mode="eval", steps=1).peak_bytes
        estimate = estimate_memory(model, input_data=x, mode="eval", steps=1, progress=False)
        low, high = estimate.peak_range
        assert low <= peak <= high, (model.specs, model.factors, low, high, peak)
        assert low < high or estimate.peak_bytes == peak


def reductions() -> Iterator[Call]:
    """Sums and means along axes that lie apart, or can be run through as one."""
    for shape, dims in (
        ((2, 10, 8, 8), (0, 2, 3)), ((1, 10, 8, 8), (0, 2, 3)), ((2, 10, 8, 8), (2, 3)), ((2, 10, 8, 8), (0,)),
        ((2, 10, 8, 8), (1, 2)), ((2, 10, 8, 8), (0, 2)), ((2, 10, 8), (0, 2)), ((30, 10), (0,)), ((30, 10), (0, 1)),
    ):  # fmt: skip
        for dtype in HALVES:
            x = torch.zeros(shape, dtype=dtype)
            turned = x.transpose(0, -1).contiguous().transpose(0, -1)
            for operand in (x, turned, torch.zeros((), dtype=dtype).expand(shape)):
                yield aten.sum.dim_IntList, operand, [*dims]
                yield aten.mean.dim, operand, [*dims]


@from_release("2.11", "the release that half-precision rules were measured on")
def test_reductions_in_half_precision() -> None:
    agree(reductions())


def convolutions() -> Iterator[Call]:
    """Those that oneDNN takes in half precision on this processor, forward and backward."""
    for dtype in HALVES:
        if not multiplies(dtype):
            continue
        for case in (replace(case, dtype=dtype) for name, case in CASES.items() if not name.startswith("float64")):
            x, weight, bias = case.tensors()
            y = aten.convolution(x, weight, bias, *case.settings)
            grad = torch.ones((), dtype=dtype).expand(y.shape) if case.expanded else torch.randn_like(y)
            sizes, wanted = None if bias is None else [len(bias)], [*case.wanted, bias is not None]
            yield aten.convolution.default, x, weight, bias, *case.settings
            yield aten.convolution_backward.default, grad, x, weight, sizes, *case.settings, wanted


@from_release("2.11", "the release that half-precision rules were measured on")
@pytest.mark.usefixtures("threads", "untried")
def test_convolutions_in_half_precision_are_within_their_bounds() -> None:
    wrong = disagreeing(list(convolutions()))
    assert not wrong, "\n".join(wrong)


def gradients_of_sums() -> Iterator[Call]:
    """Backwards whose gradient is expanded, or not, of kernels of one element and of several."""
    for dtype in HALVES:
        for sizes, kernel, transposed in product(((20,), (8, 8), (6, 7, 9)), (1, 3), (False, True)):
            x = torch.randn(2, 6, *sizes).to(dtype)
            weight = torch.randn(*((6, 20) if transposed else (20, 6)), *(kernel for _ in sizes)).to(dtype)
            ones, zeros = [1] * len(sizes), [0] * len(sizes)
            settings = ones, zeros, ones, transposed, zeros, 1
            shape = aten.convolution(x, weight, None, *settings).shape
            for grad in (torch.ones((), dtype=dtype).expand(shape), torch.randn(shape).to(dtype)):
                yield aten.convolution_backward.default, grad, x, weight, [20], *settings, [True, True, True]


@from_release("2.11", "the release that half-precision rules were measured on")
@pytest.mark.usefixtures("threads", "untried")
def test_biases_of_half_precision_sum_expanded_gradients() -> None:
    wrong = disagreeing(list(gradients_of_sums()))
    assert not wrong, "\n".join(wrong)


class Net(nn.Module):
    """A convolution and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 24, 3), nn.Linear(24, 100)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(self.conv(x).mean((2, 3)))
        return y.softmax(-1)


class Recurrent(nn.Module):
    """A layer of an LSTM without its states."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(24, 40, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)[0]
        return y


class Attending(nn.Module):
    """Attention with few other tensors beside it."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.ones(24)), scale

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        return F.scaled_dot_product_attention(x, x, x, scale=self.scale)


MODELS = {
    "attention": (Attending, (2, 1, 40, 24), "train"),
    "unscaled attention": (partial(Attending, 1.0), (2, 1, 40, 24), "train"),
    "net": (Net, (16, 3, 12, 12), "train"),
    "inferring": (Net, (16, 3, 12, 12), "eval"),
    "lstm": (Recurrent, (4, 6, 24), "train"),
    "encoder": (lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (2, 20, 64), "eval"),
}


@from_release("2.11", "the release that half-precision rules were measured on")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", MODELS)
def test_what_no_rule_describes_exactly_is_tried_on_zeros(name: str) -> None:
    build, shape, mode = MODELS[name]
    for dtype in HALVES:
        model, x = build().to(dtype), torch.zeros(shape, dtype=dtype)
        estimate = estimate_memory(model, input_data=x, mode=mode)
        truth = measure(model, (x,), mode).peak_bytes
        assert estimate.peak_range[0] <= truth <= estimate.peak_range[1]
        assert (estimate.unknown, estimate.peak_bytes) == ((), truth)


@pytest.mark.usefixtures("threads", "untried")
@pytest.mark.parametrize("name", MODELS)
def test_the_range_of_a_step_holds_the_truth(name: str) -> None:
    build, shape, mode = MODELS[name]
    for dtype in HALVES:
        model, x = build().to(dtype), torch.zeros(shape, dtype=dtype)
        estimate = estimate_memory(model, input_data=x, mode=mode)
        low, high = estimate.peak_range
        assert low <= measure(model, (x,), mode).peak_bytes <= high
        assert (low < high) >= bool(estimate.unknown)


SIMULATED = {
    "AVX2": has_avx512(),
    "AVX512_CORE": has_avx512_bf16(),
    "AVX512_CORE_BF16": has_avx512_fp16() or has_tiles(),
}
"""Instruction sets -> whether this processor has more for half precision, so that it can stand in for one without."""

HALF = (
    "tests/ops/test_workspace_half.py::test_products_in_half_precision[1]",
    "tests/ops/test_workspace_half.py::test_products_added_to_a_tensor",
    "tests/ops/test_workspace_half.py::test_attention_in_half_precision[1]",
    "tests/ops/test_workspace_half.py::test_the_gradient_of_gelu_in_onednn",
    "tests/ops/test_workspace_half.py::test_the_range_of_a_step_holds_the_truth",
    "tests/step/test_memory_models.py::test_a_model_of_any_kind[bfloat16]",
)
SINGLE = tuple(
    f"tests/ops/test_workspace_conv.py::test_{name}"
    for name in (
        "an_operator_takes_what_the_profiler_sees",
        "random_convolutions_are_predicted_to_the_byte",
        "those_in_channels_last_layout_lie_within_their_range",
    )
)
"""Convolutions in single precision, whose kernels differ with AVX2 only."""


@from_release("2.11", "the release that half-precision rules were measured on")
@pytest.mark.skipif("INSIDE" in os.environ, reason="this is one of the processes")
def test_narrower_instruction_sets() -> None:
    """The tests of convolutions and half precision in processes that oneDNN keeps to less: it asks the CPU once."""
    running = {}
    for name in (name for name, is_narrower in SIMULATED.items() if is_narrower):
        capability = "avx2" if name == "AVX2" else "avx512"
        limits = {"ONEDNN_MAX_CPU_ISA": name, "ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1", "INSIDE": "1"}
        limits["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        tests = (*HALF, *SINGLE) if name == "AVX2" else HALF
        command = [*python(), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        running[name] = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **limits}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    told = {name: process.communicate()[0] for name, process in running.items()}
    failed = [f"{name}: {told[name][-2000:]}" for name, process in running.items() if process.returncode]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_a_sums_gradient_reaches_a_half_precision_convolution_on_fakes(kind: type[nn.Module]) -> None:
    size = (1, 2, 6, 8, 10)[: 5 if "3d" in kind.__name__ else 4 if "2d" in kind.__name__ else 3]
    model, x = kind(2, 8, 3, padding=1), torch.randn(size)  # type: ignore[call-arg]
    estimate = estimate_memory(model, input_data=x, autocast=torch.bfloat16)
    assert not any("real step" in line for line in estimate.assumptions)
    assert estimate.peak_range[0] <= measure(model, (x,), autocast=torch.bfloat16).peak_bytes <= estimate.peak_range[1]
