"""Calls of older tools: their examples run with only the import changed, and return correct figures."""

import gc
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import torchsummary_plus
from examples.vgg import vgg19
from torchsummary_plus.legacy import modelsize, summary, summary_string

README_OF_PYTORCH_MODELSIZE = """
# Define a model
import torch
import torch.nn as nn
from torch.autograd import Variable
import numpy as np

class Model(nn.Module):

    def __init__(self):
        super(Model,self).__init__()

        self.conv0 = nn.Conv2d(1, 16, kernel_size=3, padding=5)
        self.conv1 = nn.Conv2d(16, 32, kernel_size=3)

    def forward(self, x):
        h = self.conv0(x)
        h = self.conv1(h)
        return h

model = Model()

# Estimate Size
from pytorch_modelsize import SizeEstimator

se = SizeEstimator(model, input_size=(16,1,256,256))
print(se.estimate_size())

print(se.param_bits) # bits taken up by parameters
print(se.forward_backward_bits) # bits stored for forward and backward
print(se.input_bits) # bits for input
"""


def test_the_readme_of_pytorch_modelsize_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """It printed (408.2833251953125, 3424928768): of 4,800 parameters it kept the last module's 4,640."""
    code = README_OF_PYTORCH_MODELSIZE.replace("from pytorch_modelsize", "from torchsummary_plus.legacy")
    exec(code, {"__name__": "readme"})
    total, *parts = capsys.readouterr().out.splitlines()
    assert list(map(int, parts)) == [153_600, 3_391_225_856, 33_554_432]
    bits = sum(map(int, parts))
    assert total == str((bits / 8 / 1024**2, bits)) and bits - 3_424_928_768 == 32 * 160


def six_layers() -> nn.Module:
    """The model of Pytorch-Memory-Utils' documentation."""
    model = nn.Sequential()
    model.add_module("conv_1", nn.Conv2d(3, 64, 3, padding=1))
    model.add_module("relu_1", nn.ReLU(inplace=True))
    model.add_module("conv_2", nn.Conv2d(64, 64, 3, padding=1))
    model.add_module("relu_2", nn.ReLU(inplace=True))
    model.add_module("pool_2", nn.MaxPool2d(2, 2))
    model.add_module("conv_3", nn.Conv2d(64, 128, 3, padding=1))
    return model


def test_modelsize_prints_what_its_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """Its README's figures are for an image of 682 x 700, which an earlier version states."""
    size = modelsize(six_layers(), torch.zeros(1, 3, 682, 700))
    assert capsys.readouterr().out == (
        "Model Sequential : params: 0.450304M\n"
        "Model Sequential : intermedite variables: 336.089600 M (without backward)\n"
        "Model Sequential : intermedite variables: 672.179200 M (with backward)\n"
    )
    assert size == (450_304, 336_089_600, 672_179_200)


def test_summary_string_is_torchsummarys() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    text, (total, trainable) = summary_string(model, (1, 8, 8), device="cpu")
    assert (total, trainable) == (20, 20) and text == str(summary(model, (1, 8, 8), verbose=0))
    assert (summary, summary_string) == (torchsummary_plus.summary, torchsummary_plus.summary_string)


README_OF_GPU_MEM_TRACK = """
import torch

from torchvision import models
from gpu_mem_track import MemTracker

device = torch.device('cuda:0')

gpu_tracker = MemTracker()         # define a GPU tracker

gpu_tracker.track()                     # run function between the code line where uses GPU
cnn = models.vgg19(pretrained=True).features.to(device).eval()
gpu_tracker.track()                     # run function between the code line where uses GPU

dummy_tensor_1 = torch.randn(30, 3, 512, 512).float().to(device)  # 30*3*512*512*4/1024/1024 = 90.00M
dummy_tensor_2 = torch.randn(40, 3, 512, 512).float().to(device)  # 40*3*512*512*4/1024/1024 = 120.00M
dummy_tensor_3 = torch.randn(60, 3, 512, 512).float().to(device)  # 60*3*512*512*4/1024/1024 = 180.00M

gpu_tracker.track()

dummy_tensor_4 = torch.randn(120, 3, 512, 512).float().to(device)  # 120*3*512*512*4/1024/1024 = 360.00M
dummy_tensor_5 = torch.randn(80, 3, 512, 512).float().to(device)  # 80*3*512*512*4/1024/1024 = 240.00M

gpu_tracker.track()

dummy_tensor_4 = dummy_tensor_4.cpu()
dummy_tensor_2 = dummy_tensor_2.cpu()
gpu_tracker.clear_cache() # or torch.cuda.empty_cache()

gpu_tracker.track()
"""
CUDA = pytest.param("cuda:0", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card here"))


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of torchvision, whose pretrained models are not fetched: the same layers."""
    package = ModuleType("torchvision")
    package.models = ModuleType("torchvision.models")  # type: ignore[attr-defined]
    package.models.vgg19 = lambda pretrained: vgg19()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", package)


@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_the_readme_of_gpu_mem_track_runs(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU only the import is changed; without one, also the device."""
    code = README_OF_GPU_MEM_TRACK.replace("from gpu_mem_track", "from torchsummary_plus.legacy")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    gc.collect()
    exec(code.replace("cuda:0", device).replace("512, 512", "128, 128"), names)
    (file,) = tmp_path.glob("*-gpu_mem_track.txt")
    opening, rest, weights, small, large, end = re.split(r"\nAt .*\n\n?", file.read_text())
    assert opening.startswith("GPU Memory Track | ") and not end
    assert (
        "+ |   7 * Size:(512, 512, 3, 3)     | Memory:  63.00 MiB | <class 'torch.nn.parameter.Parameter'> | " in rest
    )
    kind = "<class 'torch.Tensor'> | torch.float32"
    for count, lines in ((40, weights), (120, small)):
        mib = f"{count * 3 / 16:.2f} MiB"
        row = f"+ |   1 * Size:({count}, 3, 128, 128)".ljust(36) + f"| Memory: {mib:>10} | {kind}"
        assert row in lines
    assert ("- |   1 * Size:(120, 3, 128, 128)   | Memory:  22.50 MiB" in large) == (device != "cpu")
    levels = [point.tensor_bytes for point in names["gpu_tracker"].report().points]
    left = "138.3" if device == "cpu" else "108.3"
    assert [f"{(level - levels[0]) / 2**20:.1f}" for level in levels] == ["0.0", "76.4", "100.8", "138.3", left]
