"""The examples: published parameter counts, and figures of the tools this project started from."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from examples import llama, will_it_fit
from examples.cnn3d import CNN3d
from examples.davenet import Audio, Image
from examples.gpt2 import GPT2, LARGE, MEDIUM, XL
from examples.mobilenet_v2 import MobileNetV2
from examples.modelsize_net import ModelsizeNet
from examples.resnet import Bottleneck, resnet18, resnet50
from examples.simple_cnn import PooledCNN
from examples.vgg import VGG, vgg16, vgg19, vgg19_features
from examples.vit import ViT, vit_b_16
from torchsummary_plus import summary

PUBLISHED: dict[str, tuple[Callable[[], nn.Module], int]] = {
    # torchvision's published counts
    "VGG-11": (lambda: VGG(11), 132_863_336),
    "VGG-13": (lambda: VGG(13), 133_047_848),
    "VGG-16": (vgg16, 138_357_544),
    "VGG-19": (vgg19, 143_667_240),
    "ResNet-18": (resnet18, 11_689_512),
    "ResNet-50": (resnet50, 25_557_032),
    "MobileNetV2": (MobileNetV2, 3_504_872),
    "ViT-B/16": (vit_b_16, 86_567_656),
    # the published checkpoints
    "GPT-2": (GPT2, 124_439_808),
    "GPT-2 medium": (lambda: GPT2(MEDIUM), 354_823_168),
    "GPT-2 large": (lambda: GPT2(LARGE), 774_030_080),
    "GPT-2 XL": (lambda: GPT2(XL), 1_557_611_200),
    "Llama 2 7B": (llama.llama2_7b, 6_738_415_616),
    "Llama 2 13B": (lambda: llama.Llama(llama.LLAMA2_13B), 13_015_864_320),
    "Llama 2 70B": (llama.llama2_70b, 68_976_648_192),
    "Llama 3 8B": (lambda: llama.Llama(llama.LLAMA3_8B), 8_030_261_248),
    "Llama 3 70B": (lambda: llama.Llama(llama.LLAMA3_70B), 70_553_706_496),
    "Llama 3.1 405B": (llama.llama3_405b, 405_853_388_800),
    # the source systems
    "DAVEnet, audio": (Audio, 15_965_570),
    "DAVEnet, image": (Image, 19_434_304),
    "pytorch_modelsize's": (ModelsizeNet, 4_800),
    "SimpleCNN": (PooledCNN, 421_642),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    build, published = PUBLISHED[name]
    with torch.device("meta"):
        model = build()
    assert sum(parameter.numel() for parameter in model.parameters()) == published
    assert summary(model, verbose=0).total_params == published


SMALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype, tuple[int, ...]]] = {
    "ResNet-18": (lambda: resnet18(10), (3, 32, 32), torch.float32, (10,)),
    "MobileNetV2": (lambda: MobileNetV2(10), (3, 32, 32), torch.float32, (10,)),
    "ViT": (lambda: ViT(32, 8, 32, 2, 4, 10), (3, 32, 32), torch.float32, (10,)),
    "GPT-2": (lambda: GPT2(type(XL)(32, 2, 4, 50, 16)), (12,), torch.int64, (12, 50)),
    "Llama": (lambda: llama.Llama(llama.Config(32, 2, 4, 2, 48, 50)), (12,), torch.int64, (12, 50)),
    "DAVEnet, image": (Image, (3, 16, 16), torch.float32, (1024, 1, 1)),
}


@pytest.mark.parametrize("name", SMALL)
def test_each_example_runs_and_its_summary_says_so(name: str) -> None:
    """One real pass of a small version has the summary's output shape, for two images and for any batch."""
    build, size, dtype, expected = SMALL[name]
    torch.manual_seed(0)
    model = build().eval()
    example = torch.rand(2, *size) if dtype.is_floating_point else torch.ones(2, *size, dtype=dtype)
    with torch.no_grad():
        assert tuple(model(example).shape) == (2, *expected)
    root = summary(model, size, dtypes=dtype, verbose=0).rows[0]
    assert root.outputs.shown == [-1, *expected]


def test_c_vgg19_features_take_76_4_mb() -> None:
    with torch.device("meta"):
        model = vgg19_features()
    assert f"{summary(model, verbose=0).param_bytes / 2**20:.1f}" == "76.4"


def test_d_the_3d_cnn_has_the_layers_of_the_notes() -> None:
    """Its first layer's figures are explained (tests/render/test_explain.py)."""
    result = summary(CNN3d(), (1, 193, 229, 193), batch_size=1, verbose=0)
    assert len([row for row in result.rows if row.path]) == 9
    assert result.total_params == 1_022_101


def _small_resnet() -> nn.Module:
    blocks = Bottleneck(3, 16, 1, nn.Conv2d(3, 64, 1)), Bottleneck(64, 16, 1, None)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def test_will_it_fit_shows_what_changes_save(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(will_it_fit, "CARDS", ("H200",))
    will_it_fit.report("A small ResNet", _small_resnet, (3, 64, 64), 64)
    printed = capsys.readouterr().out
    step = "Training step: Sequential, batch 64, AdamW, float32, cross_entropy, on an H200"
    assert printed.startswith(f"A small ResNet\n{step}\nFits: ")
    names = [change.__name__.replace("_", " ") for change in will_it_fit.CHANGES]
    matches = {name: re.search(rf"^{name} +([\d.]+) ", printed, flags=re.MULTILINE) for name in names}
    peaks = {name: float(match[1]) for name, match in matches.items() if match is not None}
    assert list(peaks) == names
    assert all(peaks[name] < peaks["as it is"] for name in names[1:])
