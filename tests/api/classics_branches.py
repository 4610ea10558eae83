"""Classics: networks with branches, and mobile networks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.api.classics_case import classic

# --- branches -----------------------------------------------------------------------------------------------


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


class DenseLayer(nn.Module):
    def __init__(self, inner: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inner), nn.Conv2d(inner, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


class Transition(nn.Sequential):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__(nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, outer, 1), nn.AvgPool2d(2))


@classic(3, 32, 32)
def densenet() -> nn.Module:
    first = [DenseLayer(8 + 4 * i, 4) for i in range(4)]
    second = [DenseLayer(12 + 4 * i, 4) for i in range(4)]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), *first, Transition(24, 12), *second, nn.AvgPool2d(16), nn.Flatten()
    )


class Fire(nn.Module):
    def __init__(self, inner: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze, self.act = nn.Conv2d(inner, squeeze, 1), nn.ReLU(inplace=True)
        self.expand1, self.expand3 = nn.Conv2d(squeeze, expand, 1), nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.squeeze(x))
        return torch.cat([self.act(self.expand1(x)), self.act(self.expand3(x))], 1)


@classic(3, 64, 64)
def squeezenet() -> nn.Module:
    body = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(16, 4, 8), Fire(16, 8, 16)]
    return nn.Sequential(*body, nn.Dropout(), nn.Conv2d(32, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


# --- mobile networks ----------------------------------------------------------------------------------------


@classic(3, 64, 64)
def mobilenet_v1() -> nn.Module:
    def separable(i: int, o: int, s: int) -> nn.Module:
        deep = [nn.Conv2d(i, i, 3, s, 1, groups=i, bias=False), nn.BatchNorm2d(i), nn.ReLU6()]
        return nn.Sequential(*deep, nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU6())

    return nn.Sequential(separable(3, 16, 2), separable(16, 32, 1), separable(32, 32, 2), nn.AvgPool2d(16))


class InvertedResidual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int, expand: int) -> None:
        super().__init__()
        mid = inner * expand
        layers: list[nn.Module] = [nn.Conv2d(inner, mid, 1, bias=False), nn.BatchNorm2d(mid), nn.ReLU6(True)] * (
            expand > 1
        )
        layers += [nn.Conv2d(mid, mid, 3, stride, 1, groups=mid, bias=False), nn.BatchNorm2d(mid), nn.ReLU6(True)]
        self.conv = nn.Sequential(*layers, nn.Conv2d(mid, outer, 1, bias=False), nn.BatchNorm2d(outer))
        self.residual = stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


@classic(3, 224, 224)
class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        plan = [
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ]
        features: list[nn.Module] = [self._unit(3, 32, 3, 2)]
        inner = 32
        for expand, outer, count, stride in plan:
            for i in range(count):
                features.append(InvertedResidual(inner, outer, stride if i == 0 else 1, expand))
                inner = outer
        self.features = nn.Sequential(*features, self._unit(320, 1280, 1, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    @staticmethod
    def _unit(i: int, o: int, k: int, s: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.ReLU6(True))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class ShuffleUnit(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False), nn.BatchNorm2d(half),
        )  # fmt: skip
        self.shuffle = nn.ChannelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        still, moved = x.chunk(2, 1)
        return self.shuffle(torch.cat([still, self.branch(moved)], 1))


@classic(3, 32, 32)
def shufflenet() -> nn.Module:
    units = [ShuffleUnit(16) for _ in range(3)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), *units, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 5))
