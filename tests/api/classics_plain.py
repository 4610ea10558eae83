"""Classics: plain stacks of layers, and convolutions in one and three dimensions."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from tests.api.classics_case import classic

# --- plain stacks -------------------------------------------------------------------------------------------


@classic(784)
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 10), nn.LogSoftmax(dim=1))


@classic(784)
def autoencoder() -> nn.Module:
    encoder = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 3))
    return nn.Sequential(encoder, nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 784), nn.Sigmoid()))


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


@classic(3, 224, 224)
def alexnet() -> nn.Module:
    def conv(i: int, o: int, k: int, s: int = 1, p: int = 0) -> list[nn.Module]:
        return [nn.Conv2d(i, o, k, s, p), nn.ReLU(inplace=True)]

    pool = nn.MaxPool2d(3, 2)
    features = [*conv(3, 64, 11, 4, 2), pool, *conv(64, 192, 5, 1, 2), pool, *conv(192, 384, 3, 1, 1)]
    features += [*conv(384, 256, 3, 1, 1), *conv(256, 256, 3, 1, 1), pool, nn.AdaptiveAvgPool2d((6, 6))]
    head = [nn.Dropout(), nn.Linear(9216, 512), nn.ReLU(), nn.Linear(512, 1000)]
    return nn.Sequential(nn.Sequential(*features), nn.Flatten(), nn.Sequential(*head))


def _vgg(plan: str, batch_norm: bool, side: int, head: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for word in plan.split():
        if word == "M":
            layers.append(nn.MaxPool2d(2, 2))
            continue
        layers.append(nn.Conv2d(channels, int(word), 3, padding=1))
        channels = int(word)
        layers += [nn.BatchNorm2d(channels)] * batch_norm + [nn.ReLU(inplace=True)]
    layers += [nn.AdaptiveAvgPool2d((side, side)), nn.Flatten()]
    layers += [nn.Linear(channels * side * side, head), nn.ReLU(True), nn.Dropout(), nn.Linear(head, head)]
    return nn.Sequential(*layers, nn.ReLU(True), nn.Dropout(), nn.Linear(head, 1000))


@classic(3, 224, 224)
def vgg16() -> nn.Module:
    return _vgg("64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M", False, 7, 4096)


@classic(3, 64, 64)
def vgg11_with_batch_norm() -> nn.Module:
    return _vgg("16 M 32 M 64 64 M 128 128 M 128 128 M", True, 2, 64)


@classic(3, 32, 32)
def network_in_network() -> nn.Module:
    def block(i: int, o: int, k: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(i, o, k, padding=k // 2), nn.ReLU(), nn.Conv2d(o, o, 1), nn.ReLU())

    pool = nn.Sequential(nn.MaxPool2d(3, 2, ceil_mode=True), nn.Dropout())
    return nn.Sequential(block(3, 24, 5), pool, block(24, 24, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


# --- one and three dimensions -------------------------------------------------------------------------------


@classic(1, 8000)
def speech_cnn() -> nn.Module:
    def block(i: int, o: int, k: int, s: int) -> list[nn.Module]:
        return [nn.Conv1d(i, o, k, s), nn.BatchNorm1d(o), nn.ReLU(), nn.MaxPool1d(4)]

    return nn.Sequential(
        *block(1, 16, 80, 16), *block(16, 32, 3, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 35)
    )


class _Dilated(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv, self.act = nn.Conv1d(channels, channels, 3, dilation=dilation), nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.conv(self.pad(x)))


@classic(8, 100)
def temporal_cnn() -> nn.Module:
    return nn.Sequential(*[_Dilated(8, 2**i) for i in range(4)], nn.Conv1d(8, 2, 1))


@classic(1, 24, 28, 24)
def cnn_3d() -> nn.Module:
    def conv(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv3d(i, o, 3), nn.BatchNorm3d(o), nn.ReLU()]

    head = [nn.Flatten(), nn.Linear(6 * 5 * 6 * 5, 1)]
    return nn.Sequential(*conv(1, 4), nn.MaxPool3d(2), *conv(4, 6), nn.AvgPool3d(2, ceil_mode=True), *head)
