"""Classics: residual networks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.api.classics_case import classic

# --- residual networks --------------------------------------------------------------------------------------


class BasicBlock(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.down: nn.Module | None = None
        if stride != 1 or inner != outer:
            self.down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.down is None else self.down(x)))


class Bottleneck(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        mid = outer // 4
        self.conv1, self.bn1 = nn.Conv2d(inner, mid, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv2, self.bn2 = nn.Conv2d(mid, mid, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(mid)
        self.conv3, self.bn3 = nn.Conv2d(mid, outer, 1, bias=False), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.down: nn.Module | None = None
        if stride != 1 or inner != outer:
            self.down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        return self.relu(self.bn3(self.conv3(y)) + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    def __init__(self, block: Callable[..., nn.Module], counts: list[int], widths: list[int], classes: int) -> None:
        super().__init__()
        first = widths[0] if block is BasicBlock else widths[0] // 4
        self.conv1, self.bn1 = nn.Conv2d(3, first, 7, 2, 3, bias=False), nn.BatchNorm2d(first)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        stages = []
        for stage, (count, width) in enumerate(zip(counts, widths, strict=True)):
            before = first if stage == 0 else widths[stage - 1]
            stages.append(
                nn.Sequential(block(before, width, 1 + (stage > 0)), *[block(width, width) for _ in range(count - 1)])
            )
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool, self.fc = nn.AvgPool2d(7), nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


@classic(3, 224, 224)
def resnet18() -> nn.Module:
    return ResNet(BasicBlock, [2, 2, 2, 2], [64, 128, 256, 512], 1000)


@classic(3, 224, 224)
def resnet34() -> nn.Module:
    return ResNet(BasicBlock, [3, 4, 6, 3], [64, 128, 256, 512], 1000)


@classic(3, 224, 224)
def resnet50() -> nn.Module:
    return ResNet(Bottleneck, [3, 4, 6, 3], [256, 512, 1024, 2048], 1000)


@classic(3, 224, 224)
def resnext() -> nn.Module:
    def block(inner: int, outer: int, stride: int = 1) -> nn.Module:
        return Bottleneck(inner, outer, stride, groups=4)

    return ResNet(block, [1, 1, 2, 1], [32, 64, 96, 128], 10)


class PreActivation(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))


@classic(3, 32, 32)
def preactivation_resnet() -> nn.Module:
    blocks = [PreActivation(12) for _ in range(3)]
    return nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), *blocks, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(192, 10))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(nn.Linear(channels, 4), nn.ReLU(), nn.Linear(4, channels), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        n, c = x.shape[:2]
        return x * self.fc(self.pool(x).view(n, c)).view(n, c, 1, 1)


@classic(3, 32, 32)
def squeeze_excite() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.Hardswish(), SqueezeExcite(16), nn.Conv2d(16, 8, 3), SqueezeExcite(8))
