"""Predicted against measured peaks of real steps on the CPU, from torch's profiler."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from examples.gpt2 import GPT2
from examples.gpt2 import Config as gpt2_config
from examples.llama import Config, Llama
from examples.resnet import Bottleneck
from examples.vit import ViT
from tests.parts import of_parts
from tests.truth.memory_truth import OptimizerMaker, cpu_deltas, highest, measure
from torchsummary_plus import MemoryEstimate, measure_memory
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("threads")


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(256, 10),
    )  # fmt: skip


def resnet() -> nn.Module:
    blocks = Bottleneck(16, 16, 1, nn.Conv2d(16, 64, 1)), Bottleneck(64, 16, 1, None)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.MaxPool2d(3, 2, 1), *blocks, *head)


def gpt2() -> nn.Module:
    return GPT2(gpt2_config(48, 2, 4, 199, 32))


@of_parts(lambda: {"blocks": nn.ModuleList(nn.TransformerEncoderLayer(48, 4, 192, batch_first=True) for _ in range(4))})
def Checkpointed(self, x: torch.Tensor) -> torch.Tensor:
    for block in self.blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x


def image(side: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(4, 3, side, side)


def words() -> torch.Tensor:
    return torch.randint(1, 199, (3, 32))


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    example: Callable[[], torch.Tensor]
    autocast: torch.dtype | None = None


EXACT = 1e-4

CASES = {
    "resnet": Case(resnet, image(64)),
    "vit": Case(lambda: ViT(32, 8, 32, 2, 4, 10), image(32)),
    "gpt": Case(gpt2, words),
    "llama": Case(lambda: Llama(Config(48, 1, 4, 2, 128, 199)), words),
    "checkpointed": Case(Checkpointed, lambda: torch.randn(3, 32, 48)),
    "autocast": Case(mlp, lambda: torch.randn(32, 64), torch.bfloat16),
}

MODES: dict[str, tuple[str, OptimizerMaker | None]] = {
    "eval": ("eval", None),
    "train": ("train", None),
    "momentum": ("train", lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)),
    "adamw": ("train", lambda parameters: torch.optim.AdamW(parameters, lr=0.001)),
}


def estimate_of(name: str, mode_name: str, steps: int = 2) -> tuple[MemoryEstimate, int]:
    case, (mode, optimizer) = CASES[name], MODES[mode_name]
    torch.manual_seed(0)
    model, x = case.build(), case.example()
    predicted = estimate_memory(
        model, input_data=x, mode=mode, optimizer=optimizer, autocast=case.autocast, steps=steps
    )
    return predicted, measure(model, (x,), mode, optimizer, case.autocast, steps).peak_bytes


@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "adamw") for name in CASES), ("resnet", "eval"), ("gpt", "momentum")]
)
def test_the_peak_of_two_steps(name: str, mode: str) -> None:
    estimate, measured = estimate_of(name, mode)
    assert not estimate.unknown
    assert abs(estimate.peak_bytes - measured) <= EXACT * measured, f"{estimate.peak_bytes:,} of {measured:,}"


def test_the_oracle_sees_every_allocation_and_free() -> None:
    def run() -> None:
        a = torch.empty(1000, dtype=torch.uint8)
        b = torch.empty(500, dtype=torch.uint8)
        del a
        c = torch.empty(200, dtype=torch.uint8)
        del b, c

    deltas = cpu_deltas(run)
    assert deltas == [1000, 500, -1000, 200, -500, -200]
    assert highest(deltas) == (1500, 0)


def test_settings_of_the_cuda_allocator_in_the_environment_are_not_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    predicted = estimate_memory(nn.Linear(8, 8), (8,), 4, "cpu", progress=False)
    assert predicted.peak_bytes == measure_memory(nn.Linear(8, 8), (8,), 4, "cpu").peak_bytes
    with pytest.raises(UnsupportedError, match="PYTORCH_CUDA_ALLOC_CONF is set"):
        estimate_memory(nn.Linear(8, 8), (8,), 4, "cuda", progress=False)
