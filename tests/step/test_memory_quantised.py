"""Quantised and offloaded weights: bitsandbytes, peft, torchao, accelerate, and torch's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.truth.memory_truth import storage_bytes
from tests.truth.weights_truth import agree, everything, rows
from torchsummary_plus import summary
from torchsummary_plus.api.memory import estimate_memory, max_batch_size, measure_memory

WIDE, NARROW = 256, 128
WEIGHTS = 2 * WIDE * NARROW
BIASES = WIDE + NARROW

pytestmark = [pytest.mark.usefixtures("threads"), pytest.mark.filterwarnings("ignore")]


def mlp(make: Callable[..., nn.Module] = nn.Linear, **options: Any) -> nn.Sequential:
    return nn.Sequential(make(NARROW, WIDE, **options), nn.ReLU(), make(WIDE, NARROW, **options))


def four_bit(double: bool) -> nn.Module:
    """Packed weights after a plain layer, so that gradients go through them."""
    layers = pytest.importorskip("bitsandbytes.nn")
    packed = mlp(layers.LinearNF4, compress_statistics=double, compute_dtype=torch.float32)
    return nn.Sequential(nn.Linear(NARROW, NARROW), packed).to("cpu")


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = pytest.importorskip("bitsandbytes.nn")
        self.up = layers.LinearNF4(NARROW, WIDE, compute_dtype=torch.float32)
        self.down = layers.LinearNF4(WIDE, NARROW, compute_dtype=torch.float32)

    def forward(self, x: Tensor) -> Any:
        return self.down(self.up(x).relu())


def qlora() -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(Named().to("cpu"), peft.LoraConfig(r=8, target_modules=["up", "down"]))  # type: ignore[no-any-return]


def test_four_bits_in_a_training_step() -> None:
    agree(lambda: four_bit(True), rows(4, NARROW), "train", torch.optim.SGD)


def test_a_qlora_step() -> None:
    agree(qlora, rows(4, NARROW), "train", torch.optim.AdamW)
    trained = sum(p.numel() for p in qlora().parameters() if p.requires_grad)
    state = estimate_memory(qlora(), (NARROW,), 4, optimizer="adamw").at_peak["optimizer_state"]
    assert 8 * trained <= state <= 8 * trained + 64
    assert max_batch_size(qlora(), (NARROW,), "4GiB", optimizer="adamw").batch_size > 1000


def test_packed_weights_count_as_what_they_stand_for() -> None:
    model = four_bit(double=True)
    done = summary(model, (NARROW,), 2, verbose=0)
    assert done.total_params == WEIGHTS + BIASES + NARROW**2 + NARROW
    assert done.total_mult_adds == 2 * (WEIGHTS + NARROW**2)
    assert not done.unknown_ops
    states = [layer.weight.quant_state for layer in (model[1][0], model[1][2])]
    state_tensors = [t for s in states for t in (s.absmax, s.code, s.offset, s.state2.absmax, s.state2.code)]
    assert done.param_bytes == storage_bytes([*model.parameters(), *state_tensors])
    assert done.param_bytes < 4 * (NARROW**2 + BIASES + NARROW) + WEIGHTS


@pytest.mark.parametrize("name", ["AdamW8bit", "Lion32bit"])
def test_the_scratch_memory_of_an_operator_of_another_library(name: str) -> None:
    optim = pytest.importorskip("bitsandbytes.optim")
    options = {"min_8bit_size": 16} if "8" in name else {}
    agree(mlp, rows(4, NARROW), "train", lambda parameters: getattr(optim, name)(parameters, lr=1e-3, **options))


def test_what_a_run_on_zeros_has_told_is_said() -> None:
    pytest.importorskip("bitsandbytes")
    estimate = estimate_memory(four_bit(True), (NARROW,), 4)
    assert "bitsandbytes::gemm_4bit, 4 times: scratch memory measured on zeros" in estimate.assumptions
    assert not estimate.unknown


CONFIGS = ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"]


def torchao(config: str) -> nn.Module:
    quantization = pytest.importorskip("torchao.quantization")
    model = mlp()
    quantization.quantize_(model, getattr(quantization, config)())
    return model


@pytest.mark.parametrize("config", CONFIGS)
def test_torchao(config: str) -> None:
    agree(lambda: torchao(config), rows(4, NARROW), "eval")
    done = summary(torchao(config), (NARROW,), 2, verbose=0)
    assert (done.run.kind, done.total_params, done.total_mult_adds) == ("fake", WEIGHTS + BIASES, 2 * WEIGHTS)
    assert WEIGHTS <= done.param_bytes < 1.2 * WEIGHTS + 4 * BIASES
    weight: Any = torchao(config)[0].weight
    assert done.rows[1].num_params == weight.numel() + WIDE


def offloaded(how: str, folder: Path) -> nn.Module:
    accelerate = pytest.importorskip("accelerate")
    model = mlp()
    if how == "memory":
        return accelerate.cpu_offload(model, torch.device("cpu"))  # type: ignore[no-any-return]
    if how == "disk":
        return accelerate.disk_offload(model, folder, torch.device("cpu"))  # type: ignore[no-any-return]
    return accelerate.dispatch_model(model, {"0": "cpu", "1": "cpu", "2": "disk"}, "cpu", offload_dir=folder)  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["memory", "disk", "both"])
def test_weights_that_come_and_go(how: str, tmp_path: Path) -> None:
    agree(lambda: offloaded(how, tmp_path), rows(4, NARROW), "eval")
    model = offloaded(how, tmp_path)
    before = [(p.device, id(p)) for p in model.parameters()]
    done = summary(model, (NARROW,), 2, verbose=0)
    assert (done.total_params, done.total_mult_adds) == (WEIGHTS + BIASES, 2 * WEIGHTS)
    assert [(p.device, id(p)) for p in model.parameters()] == before
    in_memory = {"memory": WEIGHTS + BIASES, "disk": 0, "both": WEIGHTS // 2 + WIDE}[how]
    assert estimate_memory(model, (NARROW,), 2, mode="eval").at_peak["parameters"] == 4 * in_memory


@pytest.mark.skipif("qnnpack" not in torch.backends.quantized.supported_engines, reason="QNNPACK is not built in")
def test_a_first_call_that_packs_weights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """QNNPACK packs the weights in the first call, and the profiler does not see what it frees."""
    monkeypatch.setattr(torch.backends.quantized, "engine", "qnnpack")

    def build() -> nn.Module:
        plain = nn.Sequential(nn.Linear(NARROW, NARROW), nn.ReLU(), nn.Linear(NARROW, 10))
        return torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, torch.qint8)  # type: ignore[no-any-return]

    measured, predicted = (call(build(), (NARROW,), 8, mode="eval") for call in (measure_memory, estimate_memory))
    low, high = predicted.peak_range
    assert low <= measured.peak_bytes <= high
    assert "quantized::linear_dynamic" in dict(predicted.unknown)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_quantised_model_is_left_as_it_was(mode: str) -> None:
    model = qlora()
    before = everything(model)
    options = {"input_data": torch.rand(4, NARROW), "mode": mode}
    estimate_memory(model, **options)
    measure_memory(model, **options)
    for run in ("fake", "real"):
        summary(model, **options, verbose=0, run=run)
    assert everything(model) == before
    model(options["input_data"])
