"""Networks for the CPU memory benchmark of kinds, or sizes, that the model libraries lack."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Skip(nn.Module):
    """A block whose output is added to its input, or concatenated with it along an axis."""

    def __init__(self, *body: nn.Module, join: int | None = None) -> None:
        super().__init__()
        self.body, self.join = nn.Sequential(*body), join

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return x + y if self.join is None else torch.cat([x, y], self.join)


class Through(nn.Module):
    """A function as a layer."""

    def __init__(self, function: object, *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *xs: Tensor) -> Tensor:
        return self.function(*self.parts, *xs)  # type: ignore[operator,no-any-return]


def conv(width: int, out: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution, batch normalisation and ReLU."""
    layer = nn.Conv2d(width, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """A U-Net with two levels; ``up`` is a transposed convolution or an interpolation."""

    def __init__(self, up: str = "transposed", width: int = 16) -> None:
        super().__init__()
        w = width
        self.down = nn.ModuleList([self.twice(3, w), self.twice(w, 2 * w), self.twice(2 * w, 4 * w)])
        self.join = nn.ModuleList([self.twice(4 * w, 2 * w), self.twice(2 * w, w)])
        self.up = nn.ModuleList([self.grow(4 * w, 2 * w, up), self.grow(2 * w, w, up)])
        self.head = nn.Conv2d(w, 2, 1)

    @staticmethod
    def twice(width: int, out: int) -> nn.Sequential:
        return nn.Sequential(conv(width, out), conv(out, out))

    @staticmethod
    def grow(width: int, out: int, up: str) -> nn.Module:
        if up == "transposed":
            return nn.ConvTranspose2d(width, out, 2, 2)
        return nn.Sequential(nn.Upsample(scale_factor=2, mode=up), nn.Conv2d(width, out, 1))

    def forward(self, x: Tensor) -> Tensor:
        a = self.down[0](x)
        b = self.down[1](F.max_pool2d(a, 2))
        y = self.down[2](F.max_pool2d(b, 2))
        for skip, up, join in zip((b, a), self.up, self.join):
            y = join(torch.cat([skip, up(y)], 1))
        return self.head(y)  # type: ignore[no-any-return]


class TimeBlock(nn.Module):
    """A residual block of a diffusion model, conditioned on the time step."""

    def __init__(self, width: int, out: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, out, 3, padding=1))
        self.time = nn.Linear(time, out)
        self.second = nn.Sequential(nn.GroupNorm(4, out), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(out, out, 3, padding=1))
        self.skip = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(x) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(y)  # type: ignore[no-any-return]


class PixelAttention(nn.Module):
    """Self-attention over all pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(4, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, c, h * w).unbind(1)
        scores = (q.transpose(1, 2) @ k * c**-0.5).softmax(-1)
        return x + self.out((v @ scores.transpose(1, 2)).reshape(b, c, h, w))  # type: ignore[no-any-return]


class DiffusionUNet(nn.Module):
    """The U-Net of a diffusion model, with attention in the middle; its loss is the squared error of the noise."""

    def __init__(self, width: int = 16, time: int = 64) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.a, self.b = TimeBlock(width, width, time), TimeBlock(width, 2 * width, time)
        self.down = nn.Conv2d(width, width, 3, 2, 1)
        self.middle, self.attention = TimeBlock(2 * width, 2 * width, time), PixelAttention(2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.c = TimeBlock(2 * width, width, time)
        self.head = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        angles = step[:, None].float() * torch.exp(-torch.arange(self.width // 2, device=x.device) / 4.0)
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        a = self.a(self.stem(x), time)
        y = self.attention(self.middle(self.b(self.down(a), time), time))
        return F.mse_loss(self.head(self.c(torch.cat([a, self.up(y)], 1), time)), x)


class Recurrent(nn.Module):
    """A tagger: token ids through a recurrent layer to a label for each token."""

    def __init__(self, layer: nn.Module, width: int, words: int = 200) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(words, 32), layer, nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layer(self.words(ids))[0]).flatten(0, 1), ids.flatten())


class Experts(nn.Module):
    """A mixture of experts that computes all of them and keeps the best one, weighted by its gate."""

    def __init__(self, width: int = 48, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 96), nn.SiLU(), nn.Linear(96, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        best = F.one_hot(shares.argmax(-1), len(self.experts)).to(x.dtype)
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return (outputs * (shares * best)[..., None, :]).sum(-1)
