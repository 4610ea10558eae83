"""The time of a step: laws of the roofline and of its parts, what is recorded, and errors."""

import math
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import trained_steps
from examples.gpt2 import GPT2, Config
from torchsummary_plus import (
    InputError,
    compare,
    estimate_memory,
    estimate_time,
    max_batch_size,
    register_kernels,
    register_mult_adds,
    summary,
)
from torchsummary_plus.data.memory_records import KERNEL_KINDS
from torchsummary_plus.memory.gpus import GPU, GPUS
from torchsummary_plus.results.memory_estimate import MemoryEstimate
from torchsummary_plus.step import deep_steps
from torchsummary_plus.timing.step_time import CONSTANTS, StepTime, kernel_seconds, peak_tflops

WITH_PEAKS = [gpu for gpu in GPUS.values() if gpu.peaks is not None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.mixed = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 32, 3, groups=4))
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mixed(self.stem(x)).flatten(2).transpose(1, 2)
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


@cache
def estimated(batch: int = 32, **step: Any) -> MemoryEstimate:
    options = {"optimizer": "adamw", "autocast": torch.float16, "gpu": "RTX 4090", "cudnn": "rule", **step}
    return estimate_memory(Net(), (3, 16, 16), batch, progress=False, **options)


def small_gpt(depth: int, size: int = 64) -> GPT2:
    return GPT2(Config(size, depth, 4, 500, 32))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_parts_add_up_to_the_total(mode: str) -> None:
    time = estimated(mode=mode, optimizer="adamw" if mode == "train" else None).time()
    for parts_of_it in (time.by_phase, time.by_kind, {m.path: m.own_seconds for m in time.by_module}):
        assert math.isclose(math.fsum(parts_of_it.values()), time.seconds, rel_tol=1e-9)
    assert math.isclose(time.by_module[0].inclusive_seconds, time.seconds, rel_tol=1e-9)
    assert time.low < time.seconds < time.high
    assert set(time.by_kind) <= set(KERNEL_KINDS)
    assert set(time.by_phase) == ({"forward", "backward", "optimizer"} if mode == "train" else {"forward"})
    assert 0 <= time.memory_bound <= 1 and time.bound == ("memory" if time.memory_bound >= 0.5 else "compute")


@pytest.mark.parametrize("step", [{}, {"mode": "eval", "optimizer": None}], ids=["train", "eval"])
def test_time_grows_with_the_batch(step: dict[str, Any]) -> None:
    seconds = [estimated(batch, **step).time().seconds for batch in (1, 2, 7, 32, 33)]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("gpu", WITH_PEAKS[::6], ids=lambda gpu: gpu.name)
def test_no_kernel_is_faster_than_its_roofline(gpu: GPU) -> None:
    peaks = gpu.peaks
    assert peaks is not None
    for kernel in estimated().log.kernels:
        moved = kernel.nbytes * (CONSTANTS.layout if kernel.kind == "layout" else 1.0)
        arithmetic, memory = kernel_seconds(kernel, gpu)
        assert memory >= moved / (1e9 * peaks.gb_per_s)
        assert arithmetic >= kernel.flops / (1e12 * max(peaks.half_tflops, peaks.fp32_tflops)) or not arithmetic


@pytest.mark.parametrize("gpu", WITH_PEAKS, ids=lambda gpu: gpu.name)
def test_a_gpus_peaks_hang_together(gpu: GPU) -> None:
    """Tensor cores are at least as fast as CUDA cores, and each halving of the dtype doubles the rate about."""
    peaks = gpu.peaks
    assert peaks is not None and peaks.source
    assert peaks.half_tflops >= 1.9 * peaks.fp32_tflops
    assert peaks.tf32_tflops is None or peaks.fp32_tflops <= 1.01 * peaks.tf32_tflops <= 0.6 * peaks.half_tflops
    assert peaks.fp8_tflops is None or 1.9 < peaks.fp8_tflops / peaks.half_tflops < 2.1
    assert (peaks.tf32_tflops is None) == (gpu.compute_capability < (8, 0))
    assert (peaks.fp8_tflops is None) == (gpu.compute_capability < (8, 9))
    assert 0.5 < (peaks.matmul_tflops or peaks.half_tflops) / peaks.half_tflops < 1.25
    assert peak_tflops("float16", gpu, peaks) <= peaks.half_tflops
    assert 100 < peaks.gb_per_s < 9000 and peaks.watts is not None and 0.5 < peaks.realised <= 1


def test_published_throughputs_of_resnet50_on_six_gpus_are_within_a_quarter() -> None:
    published = [*trained_steps.on_lambda(["resnet50"])]
    assert len(published) == 6
    for gpu, _, predicted, samples_per_second in published:
        assert samples_per_second / predicted == pytest.approx(1, abs=0.25), gpu


@pytest.mark.parametrize(("depth", "mode"), [(12, "train"), (4, "eval")])
def test_a_deep_model_grown_from_shallow_ones_has_its_time(
    depth: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = partial(estimate_memory, small_gpt(depth), (32,), 2, gpu="RTX 4090", mode=mode, progress=False)
    grown = ask(optimizer="adamw" if mode == "train" else None)
    monkeypatch.setattr(deep_steps, "takes_all_layers_alike", lambda step: False)
    whole = ask(optimizer="adamw" if mode == "train" else None)
    assert grown.log.kernels == whole.log.kernels
    assert grown.time() == whole.time()
    assert grown.mult_adds == whole.mult_adds


def test_kernels_compute_what_multiply_adds_count() -> None:
    step = estimated()
    assert step.mult_adds is not None
    assert sum(kernel.flops for kernel in step.log.kernels) == 2 * sum(step.mult_adds.values())


def test_channels_last_converts_no_layout() -> None:
    def kinds(x: Tensor, model: nn.Module) -> set[str]:
        step = estimate_memory(
            model, input_data=x, gpu="RTX 4090", autocast=torch.float16, optimizer="sgd", cudnn="rule", progress=False
        )
        return set(step.time().by_kind)

    model, x = nn.Sequential(nn.Conv2d(8, 16, 3), nn.Conv2d(16, 8, 3)), torch.zeros(4, 8, 16, 16)
    assert "layout" in kinds(x, model)
    last = {"memory_format": torch.channels_last}
    assert "layout" not in kinds(x.to(**last), model.to(**last))


def test_float32_products_follow_torchs_switches() -> None:
    model, on, off = nn.Linear(2048, 2048), "RTX 3090", "T4"
    ask = partial(estimate_memory, model, (2048,), 4096, gpu=on, mode="eval", progress=False)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        exact = ask()
        torch.set_float32_matmul_precision("high")
        fast = ask()
    finally:
        torch.set_float32_matmul_precision(before)
    assert [kernel.dtype for kernel in exact.log.kernels] == ["float32"]
    assert [kernel.dtype for kernel in fast.log.kernels] == ["tf32"]
    assert any("TF32 is off" in line for line in exact.time().assumptions)
    assert any("run in TF32" in line for line in fast.time().assumptions)
    assert any("not available" in line for line in fast.time(off).assumptions), "a T4 has no TF32"
    assert exact.time(off) == replace(fast.time(off), info=exact.info)


def test_a_measurement_rescales_everything() -> None:
    step, other = estimated(), estimated(64)
    plain, known = step.time(), step.time(measured=0.21)
    assert known.seconds == pytest.approx(0.21) and known.factor == pytest.approx(0.21 / plain.seconds)
    assert known.high / known.low < plain.high / plain.low
    assert known.by_phase["backward"] / known.seconds == pytest.approx(plain.by_phase["backward"] / plain.seconds)
    assert other.time(measured=known).seconds == pytest.approx(other.time().seconds * known.factor)
    for bad in (0, -1.0, math.nan, math.inf, True, "fast"):
        with pytest.raises(InputError, match="measured is"):
            step.time(measured=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        ("P40", "no published peaks"),
        ("M2 Max 32GB", "Apple M2 Max 32GB.*kernels are not modelled, so its time is unknown"),
        ("RTX 4091", "unknown GPU.*similar names"),
        ("24GiB", "amount of memory"),
    ],
)
def test_a_device_without_peaks_is_an_error(gpu: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimated().time(gpu)


@pytest.mark.parametrize(
    ("model", "size", "word"),
    [(nn.GroupNorm(4, 64), (64, 32, 32), "group normalisation"), (nn.LSTM(32, 32), (16, 32), "recurrent layers")],
    ids=["group norm", "LSTM"],
)
def test_kernels_that_vary_widen_the_range(model: nn.Module, size: tuple[int, ...], word: str) -> None:
    time = estimate_memory(model, size, 512, gpu="RTX 3090", mode="eval", progress=False).time()
    plain = estimated(512, mode="eval", optimizer=None).time()
    assert any(word in line for line in time.assumptions)
    assert time.high / time.low > plain.high / plain.low


def test_a_generations_time_is_the_prompts_and_the_further_tokens() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=100, bos_token_id=0, eos_token_id=1)
    ask = partial(
        estimate_memory, GPT2LMHeadModel(config), batch_size=2, mode="generate", prompt=64, gpu="T4", progress=False
    )
    one, some = ask(new_tokens=1).time(), ask(new_tokens=5).time()
    assert one.seconds_per_token is None and one.decode_seconds == 0
    assert some.seconds_per_token == pytest.approx(some.decode_seconds / 4)
    assert some.seconds - some.decode_seconds == pytest.approx(one.seconds, rel=0.1)
    assert "at least" in str(some)
    many = ask(new_tokens=200).time()
    assert many.seconds > 50 * one.seconds / 2 and many.kernels > 50 * one.kernels
    assert all(any("launch-bound" in line for line in time.assumptions) for time in (one, some, many))


def test_its_figures_are_in_the_table_the_comparison_the_limit_and_the_report(tmp_path: Any) -> None:
    step = estimated()
    table = summary(
        Net(), (3, 16, 16), 32, memory={"gpu": "RTX 4090", "optimizer": "adamw", "autocast": torch.float16}, verbose=0
    )
    rows = table.to_dataframe(columns=["time_ms", "time_percent"])
    time = table.memory.time() if table.memory is not None else None
    assert isinstance(time, StepTime)
    assert rows["time_ms"].sum() == pytest.approx(1e3 * time.seconds)
    assert rows["time_percent"].sum() == pytest.approx(100)
    on_cpu = summary(Net(), (3, 16, 16), 32, memory="train", verbose=0)
    assert on_cpu.to_dataframe(columns=["time_ms"])["time_ms"].isna().all()
    assert "Time (ms),time_ms,0," in compare({"a": step, "b": estimated(64)}).to_csv()
    limit = max_batch_size(Net(), (3, 16, 16), gpu="T4", mode="eval", cudnn="rule", progress=False)
    assert limit.samples_per_second is not None and "Samples per second" in str(limit)
    page = step.to_html_report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "By kind" in page and "Bound by" in page


def test_an_operator_of_ones_own() -> None:
    @torch.library.custom_op("step_time_tests::mix", mutates_args=())
    def mix(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @mix.register_fake
    def _(a: Tensor, b: Tensor) -> Tensor:
        return a.new_empty(a.shape[0], b.shape[1])

    class Mixing(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.ops.step_time_tests.mix(a, b)  # type: ignore[no-any-return]

    x = torch.zeros(64, 64)
    ask = partial(estimate_memory, Mixing(), input_data=(x, x), gpu="RTX 4090", mode="eval", progress=False)
    assert any("arithmetic unknown" in line for line in ask().time().assumptions)

    @register_mult_adds("step_time_tests::mix")
    def work(result: Tensor, a: Tensor, b: Tensor) -> int:
        return result.numel() * a.shape[1]

    def kinds(result: Tensor, a: Tensor, b: Tensor) -> str:
        return "attention"

    with work:
        assert set(ask().time().by_kind) == {"matmul"}
        with register_kernels("step_time_tests::mix")(kinds):
            assert set(ask().time().by_kind) == {"attention"}
            with pytest.raises(InputError, match="already has a formula"):
                register_kernels("step_time_tests::mix")(lambda result, *_: "norm")


def test_trials_of_convolutions_widen_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"gpu": "RTX 3090", "mode": "eval", "cudnn": "rule", "progress": False}
    plain = estimated(512, mode="eval", optimizer=None, gpu="RTX 3090").time()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    tuned = estimate_memory(Net(), (3, 16, 16), 512, autocast=torch.float16, **options).time()
    assert any("cudnn.benchmark" in line for line in tuned.assumptions) and not plain.assumptions
    assert tuned.high / tuned.low > plain.high / plain.low
    assert tuned.seconds == plain.seconds
    linear = estimate_time(nn.Linear(2048, 2048), (2048,), 4096, autocast=torch.float16, **options)
    assert not linear.assumptions
