"""Estimates on any processor and build: kernels are tried there."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.truth.warm import python
from torchsummary_plus import estimate_memory, measure_memory
from torchsummary_plus.ops import backends as processor

ROOT = Path(__file__).parents[2]
IMAGE = (3, 20, 20)


@of_parts(lambda kind: {"layers": kind(16, 24, 2, batch_first=True)})
def Recurrent(self, x: Tensor) -> Any:
    return self.layers(x)[0]


@of_parts(lambda: {"rows": nn.Linear(12, 12)})
def Algebra(self, x: Tensor) -> Tensor:
    y = self.rows(x)
    square = y.mT @ y + torch.eye(12)
    sums = torch.linalg.inv(square).sum() + torch.logdet(square).sum() + torch.fft.rfft(y).abs().sum()
    return sums + torch.linalg.svdvals(square).sum() + torch.linalg.eigvalsh(square).sum()


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, 8, 3))


MODELS = {
    "convolutions": (convolutions, IMAGE),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3), nn.ConvTranspose3d(4, 4, 3)), (2, 8, 8, 8)),
    "LSTM": (lambda: Recurrent(nn.LSTM), (7, 16)),
    "GRU": (lambda: Recurrent(nn.GRU), (7, 16)),
    "transformer": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (9, 32)),
    "linear algebra": (Algebra, (20, 12)),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_kernels_are_tried(name: str, mode: str) -> None:
    build, size = MODELS[name]
    model = build().train(mode == "train")
    estimate = estimate_memory(model, size, 4, mode=mode)
    assert estimate.peak_bytes == measure_memory(model, size, 4, mode=mode).peak_bytes


@pytest.mark.skipif("INSIDE" in os.environ, reason="this is one of the processes")
def test_they_are_tried_on_narrower_processors() -> None:
    """The models above in a process that oneDNN keeps to other instructions."""
    limits = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1", "INSIDE": "1"}
    command = [*python(), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", "kernels_are_tried"]
    environment = {**os.environ, **limits, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"{2 * len(MODELS)} passed" in done.stdout


@pytest.mark.parametrize("is_available", [True, False])
def test_half_precision_without_onednn_runs_on_fakes(is_available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the expanded gradient of a sum nor a build without oneDNN needs a real step."""
    if not is_available:
        processor.multiplies.cache_clear()
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = convolutions().bfloat16()
    request: dict[str, Any] = {"input_size": IMAGE, "batch_size": 2, "dtypes": torch.bfloat16, "loss": torch.sum}
    try:
        with torch.backends.mkldnn.flags(enabled=False):
            estimate, measured = estimate_memory(model, **request), measure_memory(model, **request)
    finally:
        processor.multiplies.cache_clear()
    assert not any("real step" in line for line in estimate.assumptions)
    assert estimate.peak_bytes == measured.peak_bytes
