"""Classics: networks that return images, and networks for other kinds of data."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.api.classics_case import classic
from tests.api.classics_residual import PreActivation

# --- images out ---------------------------------------------------------------------------------------------


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


@classic(1, 16, 16, 16)
class UNet3d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kind = (nn.Conv3d, nn.InstanceNorm3d)
        self.first, self.pool, self.down = DoubleConv(1, 4, *kind), nn.MaxPool3d(2), DoubleConv(4, 8, *kind)
        self.up = Up(8, 4, *kind, nn.ConvTranspose3d(8, 4, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        return self.up(self.down(self.pool(a)), a)


@classic(1, 28, 28)
def convolutional_autoencoder() -> nn.Module:
    down = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*down, nn.ConvTranspose2d(4, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2), nn.Tanh())


@classic(20, 1, 1)
def gan_generator() -> nn.Module:
    def unit(i: int, o: int, s: int, p: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(i, o, 4, s, p, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]

    last = nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False)
    return nn.Sequential(*unit(20, 32, 1, 0), *unit(32, 16, 2, 1), *unit(16, 8, 2, 1), last, nn.Tanh())


@classic(3, 64, 64)
class GANDiscriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, o in [(3, 8), (8, 16), (16, 32), (32, 64)]:
            layers += [nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, inplace=True)]
        self.body, self.out = nn.Sequential(*layers), nn.Conv2d(64, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.out(self.body(x))).view(-1, 1)


@classic(1, 16, 16)
def super_resolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), nn.Conv2d(8, 9, 3, padding=1), nn.PixelShuffle(3))


@classic(3, 32, 32)
def style_transfer() -> nn.Module:
    first = [nn.ReflectionPad2d(4), nn.Conv2d(3, 8, 9), nn.InstanceNorm2d(8, affine=True), nn.ReLU()]
    return nn.Sequential(*first, PreActivation(8), nn.Upsample(scale_factor=2), nn.ZeroPad2d(1), nn.Conv2d(8, 3, 3))


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


class Mixer(nn.Module):
    def __init__(self, tokens: int, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.tokens = nn.Sequential(nn.Linear(tokens, 8), nn.GELU(), nn.Linear(8, tokens))
        self.channels = nn.Sequential(nn.Linear(channels, 16), nn.GELU(), nn.Linear(16, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


@classic(3, 32, 32)
def mlp_mixer() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 12, 8, 8), nn.Flatten(2), _Swap(), Mixer(16, 12), Mixer(16, 12))


class _Swap(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


@classic(10, 8)
class LinearAttention(nn.Module):
    """A transformer block of plain linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.k, self.v = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.softmax, self.out = nn.Softmax(dim=-1), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.out(self.softmax(self.q(y) @ self.k(y).transpose(1, 2)) @ self.v(y))
