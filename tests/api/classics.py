"""Models that torchsummary 1.5.1 reads correctly: one input tensor, plain layers, torch alone.

``CLASSICS`` maps a name to (builder, input size without the batch axis). Widths are small where size teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.mobilenet_v2 import MobileNetV2
from examples.resnet import resnet18
from examples.vgg import vgg16

Builder = Callable[[], nn.Module]
CLASSICS: dict[str, tuple[Builder, tuple[int, ...]]] = {
    builder.__name__: (builder, (3, 224, 224)) for builder in (resnet18, vgg16, MobileNetV2)
}


def classic(*size: int) -> Callable[[Builder], Builder]:
    """Register a builder with the size of its input."""

    def add(builder: Builder) -> Builder:
        CLASSICS[builder.__name__] = (builder, size)
        return builder

    return add


def without_weights(builder: Builder) -> nn.Module:
    """The model with memory for its weights and nothing written there: no time goes into random numbers."""
    with torch.device("meta"):
        model = builder()
    return model.to_empty(device="cpu")


@classic(1, 28, 28)
class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.view(-1, 320)))), dim=1)


@classic(1, 8000)
def speech_cnn() -> nn.Module:
    def block(i: int, o: int, k: int, s: int) -> list[nn.Module]:
        return [nn.Conv1d(i, o, k, s), nn.BatchNorm1d(o), nn.ReLU(), nn.MaxPool1d(4)]

    return nn.Sequential(
        *block(1, 16, 80, 16), *block(16, 32, 3, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 35)
    )


@classic(1, 24, 28, 24)
def cnn_3d() -> nn.Module:
    def conv(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv3d(i, o, 3), nn.BatchNorm3d(o), nn.ReLU()]

    head = [nn.Flatten(), nn.Linear(6 * 5 * 6 * 5, 1)]
    return nn.Sequential(*conv(1, 4), nn.MaxPool3d(2), *conv(4, 6), nn.AvgPool3d(2, ceil_mode=True), *head)


class Inception(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = self._unit(channels, 8, 1)
        self.three = nn.Sequential(self._unit(channels, 8, 1), self._unit(8, 12, 3))
        self.five = nn.Sequential(self._unit(channels, 4, 1), self._unit(4, 8, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), self._unit(channels, 4, 1))

    @staticmethod
    def _unit(inner: int, outer: int, k: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inner, outer, k, padding=k // 2), nn.BatchNorm2d(outer), nn.ReLU(True))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


@classic(3, 64, 64)
def inception() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 7, 2, 3), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*stem, Inception(16), Inception(32), nn.MaxPool2d(3, 2), Inception(32), *head)


class DoubleConv(nn.Sequential):
    def __init__(self, inner: int, outer: int, conv: type[nn.Module], norm: type[nn.Module]) -> None:
        half = [conv(inner, outer, 3, padding=1), norm(outer), nn.ReLU(inplace=True)]
        super().__init__(*half, conv(outer, outer, 3, padding=1), norm(outer), nn.ReLU(inplace=True))


class Up(nn.Module):
    def __init__(self, inner: int, outer: int, conv: type[nn.Module], norm: type[nn.Module], up: nn.Module) -> None:
        super().__init__()
        self.up, self.conv = up, DoubleConv(inner, outer, conv, norm)

    def forward(self, low: Tensor, skip: Tensor) -> Tensor:
        return self.conv(torch.cat([skip, self.up(low)], dim=1))


@classic(3, 64, 64)
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kind = (nn.Conv2d, nn.BatchNorm2d)
        self.first, self.pool = DoubleConv(3, 8, *kind), nn.MaxPool2d(2)
        self.down1, self.down2 = DoubleConv(8, 16, *kind), DoubleConv(16, 32, *kind)
        self.up1 = Up(32, 16, *kind, nn.ConvTranspose2d(32, 16, 2, 2))
        self.up2 = Up(24, 8, *kind, nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True))
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.down1(self.pool(a))
        return self.out(self.up2(self.up1(self.down2(self.pool(b)), b), a))


@classic(20, 1, 1)
def gan_generator() -> nn.Module:
    def unit(i: int, o: int, s: int, p: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(i, o, 4, s, p, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]

    last = nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False)
    return nn.Sequential(*unit(20, 32, 1, 0), *unit(32, 16, 2, 1), *unit(16, 8, 2, 1), last, nn.Tanh())


@classic(3, 64, 64)
class FullyConvolutional(nn.Module):
    """Two outputs at the root, which has no row."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)])
        self.score, self.norm = nn.Conv2d(8, 2, 1), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for stage in self.stages:
            x = F.relu(stage(x))
        y = self.score(self.norm(x))
        return y, F.interpolate(y, scale_factor=4)
