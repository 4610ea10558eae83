"""Models drawn at random for ``benchmarks.cuda.drawn``: of images, sequences, signals and volumes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cuda.models import Checkpointed, SpatialAttention

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
UPWARDS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BATCH_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE_NORMS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
POOLS = {1: (nn.MaxPool1d, nn.AvgPool1d), 2: (nn.MaxPool2d, nn.AvgPool2d), 3: (nn.MaxPool3d, nn.AvgPool3d)}


def activation(rng: random.Random) -> Callable[[], nn.Module]:
    return rng.choice(
        [
            lambda: nn.ReLU(inplace=True),
            nn.ReLU,
            nn.GELU,
            nn.SiLU,
            lambda: nn.SiLU(inplace=True),
            nn.Hardswish,
            nn.Mish,
            lambda: nn.LeakyReLU(0.1),
            nn.ELU,
            lambda: nn.GELU("tanh"),
        ]
    )


def norm(rng: random.Random, axes: int) -> Callable[[int], nn.Module]:
    """Return what makes a norm of a number of channels, a multiple of 8, over maps of ``axes`` axes."""
    return rng.choice(
        [
            BATCH_NORMS[axes],
            BATCH_NORMS[axes],
            lambda channels: nn.GroupNorm(8, channels),
            lambda channels: INSTANCE_NORMS[axes](channels, affine=True),
            lambda channels: nn.Identity(),
            lambda channels: ChannelNorm(channels),
        ]
    )


class ChannelNorm(nn.Module):
    """Layer norm over the channels of maps."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


class Plus(nn.Module):
    """A residual connection, in place or not, with a stochastic depth or a learned scale."""

    def __init__(self, rng: random.Random, inner: nn.Module, channels: int, axes: int) -> None:
        super().__init__()
        self.inner = inner
        self.in_place = rng.random() < 0.3
        self.drops = rng.random() < 0.15
        scaled = rng.random() < 0.2
        self.scale = nn.Parameter(torch.ones(channels, *[1] * axes)) if scaled else None
        self.after = activation(rng)() if rng.random() < 0.3 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        if self.scale is not None:
            y = self.scale * y
        if self.drops and self.training:
            y = y * torch.empty(len(y), *[1] * (y.dim() - 1), device=y.device, dtype=y.dtype).bernoulli_(0.9).div_(0.9)
        if self.in_place:
            y += x
            return self.after(y)
        return self.after(x + y)


class Squeeze(nn.Module):
    """Squeeze-and-excitation."""

    def __init__(self, channels: int, axes: int) -> None:
        super().__init__()
        self.down = CONVOLUTIONS[axes](channels, max(8, channels // 4), 1)
        self.up = CONVOLUTIONS[axes](max(8, channels // 4), channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(tuple(range(2, x.dim())), keepdim=True)
        return x * self.up(F.silu(self.down(pooled))).sigmoid()


class Gated(nn.Module):
    """WaveNet's gated activation of dilated convolutions."""

    def __init__(self, channels: int, axes: int, dilation: int) -> None:
        super().__init__()
        self.conv = CONVOLUTIONS[axes](channels, 2 * channels, 3, padding=dilation, dilation=dilation)
        self.out = CONVOLUTIONS[axes](channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        signal, gate = self.conv(x).chunk(2, 1)
        return self.out(signal.tanh() * gate.sigmoid())


def block(rng: random.Random, channels: int, axes: int) -> nn.Module:
    """Draw a block of maps that keeps their shape."""
    make, act = norm(rng, axes), activation(rng)
    conv = CONVOLUTIONS[axes]
    kind = rng.choice(["basic", "bottleneck", "inverted", "depthwise", "gated", "before", "attention", "mixed"])
    if kind == "attention" and axes == 2:
        return SpatialAttention(channels, rng.choice([1, 4, 8]))
    if kind == "bottleneck":
        inner, groups = max(8, channels // rng.choice([1, 2, 4]) // 8 * 8), rng.choice([1, 2, 8])
        layers = [conv(channels, inner, 1, bias=False), make(inner), act()]
        layers += [conv(inner, inner, 3, padding=1, groups=groups, bias=False), make(inner), act()]
        layers += [Squeeze(inner, axes)] if rng.random() < 0.3 else []
        layers += [conv(inner, channels, 1, bias=False), make(channels)]
    elif kind == "inverted":
        inner, size = channels * rng.choice([2, 4, 6]), rng.choice([3, 5])
        layers = [conv(channels, inner, 1, bias=False), make(inner), act()]
        layers += [conv(inner, inner, size, padding=size // 2, groups=inner, bias=False), make(inner), act()]
        layers += [Squeeze(inner, axes)] if rng.random() < 0.5 else []
        layers += [conv(inner, channels, 1, bias=False), make(channels)]
    elif kind == "depthwise":
        size = rng.choice([3, 7])
        layers = [conv(channels, channels, size, padding=size // 2, groups=channels), ChannelNorm(channels)]
        layers += [conv(channels, 4 * channels, 1), act(), conv(4 * channels, channels, 1)]
    elif kind == "gated":
        layers = [Gated(channels, axes, rng.choice([1, 2, 4, 8]))]
    elif kind == "before":
        layers = [make(channels), act(), conv(channels, channels, 3, padding=1)]
        layers += [make(channels), act(), nn.Dropout(0.1), conv(channels, channels, 3, padding=1)]
    elif kind == "mixed":
        wide = [[1, 3], [3, 1]] if axes == 2 else [[3] * axes]
        layers = [
            layer
            for sides in wide
            for layer in (conv(channels, channels, tuple(sides), padding=tuple(s // 2 for s in sides)), act())
        ]
    else:
        layers = [conv(channels, channels, 3, padding=1, bias=False), make(channels), act()]
        layers += [conv(channels, channels, 3, padding=1, bias=False), make(channels)]
    return Plus(rng, nn.Sequential(*layers), channels, axes)


class Maps(nn.Module):
    """A stem, stages of blocks that halve their maps, and a head: classes, or a decoder with skip connections."""

    def __init__(self, rng: random.Random, axes: int, channels: int, repeats: bool) -> None:
        super().__init__()
        self.axes = axes
        conv, width = CONVOLUTIONS[axes], rng.choice([16, 24, 32, 48, 64, 96])
        size, stride = rng.choice([(3, 1), (3, 2), (7, 2), (4, 4)])
        self.stem = conv(channels, width, size, stride=stride, padding=0 if stride == 4 else size // 2)
        stages, downs, widths = [], [], [width]
        for _ in range(rng.choice([2, 3])):
            layers = [block(rng, widths[-1], axes) for _block in range(rng.choice([1, 2, 3]))]
            stages.append(nn.Sequential(*(Checkpointed(layer) if repeats else layer for layer in layers)))
            wider = widths[-1] * rng.choice([1, 2])
            downs.append(self._down(rng, widths[-1], wider))
            widths.append(wider)
        self.stages, self.downs = nn.ModuleList(stages), nn.ModuleList(downs)
        self.decodes = rng.random() < 0.4
        self.ups = nn.ModuleList()
        if self.decodes:
            self.ups.extend(self._up(rng, above, below) for above, below in zip(widths[:0:-1], widths[-2::-1]))
            self.joins = nn.ModuleList(conv(2 * below, below, 3, padding=1) for below in widths[-2::-1])
            self.head = conv(widths[0], rng.choice([1, 2, 21]), 1)
        else:
            drops = [nn.Dropout(0.2)] if rng.random() < 0.5 else []
            self.head = nn.Sequential(*drops, nn.Linear(widths[-1], rng.choice([10, 100, 1000])))

    def _down(self, rng: random.Random, channels: int, out: int) -> nn.Module:
        conv = CONVOLUTIONS[self.axes]
        if rng.random() < 0.5:
            size = rng.choice([2, 3])
            return conv(channels, out, size, stride=2, padding=size // 2 if size == 3 else 0)
        return nn.Sequential(rng.choice(POOLS[self.axes])(2), conv(channels, out, 1, bias=False))

    def _up(self, rng: random.Random, channels: int, out: int) -> nn.Module:
        if rng.random() < 0.5:
            return UPWARDS[self.axes](channels, out, 2, stride=2)
        linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[self.axes]
        grow = nn.Upsample(scale_factor=2.0, mode=rng.choice(["nearest", linear]))
        return nn.Sequential(grow, CONVOLUTIONS[self.axes](channels, out, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        x, skips = self.stem(x), []
        for blocks, down in zip(self.stages, self.downs):
            x = blocks(x)
            skips.append(x)
            x = down(x)
        if not self.decodes:
            return self.head(x.mean(tuple(range(2, x.dim()))))
        for up, join in zip(self.ups, self.joins):
            skip = skips.pop()
            y = up(x)
            if y.shape[2:] != skip.shape[2:]:
                y = F.interpolate(y, size=skip.shape[2:])
            x = join(torch.cat([y, skip], 1))
        return self.head(x)


def rotated(x: Tensor) -> Tensor:
    """Rotary position embedding."""
    half = x.shape[-1] // 2
    frequencies = 1e4 ** (-torch.arange(half, device=x.device).float() / half)
    angles = torch.outer(torch.arange(x.shape[-2], device=x.device).float(), frequencies)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    """Self-attention: fused or written out, causal or not, with rotary positions and shared keys or not."""

    def __init__(self, rng: random.Random, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.shared = rng.choice([heads, heads, max(1, heads // 4)])
        self.rotates, self.written_out = rng.random() < 0.4, rng.random() < 0.25
        self.repeats_keys = rng.random() < 0.5
        self.normed = nn.RMSNorm(width // heads) if rng.random() < 0.2 else None
        side, bias = width // heads, rng.random() < 0.5
        self.q, self.out = nn.Linear(width, width, bias=bias), nn.Linear(width, width, bias=bias)
        self.kv = nn.Linear(width, 2 * self.shared * side, bias=bias)
        self.drop = rng.choice([0.0, 0.0, 0.1])

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.shared, -1)).permute(2, 0, 3, 1, 4)
        if self.normed is not None:
            q, k = self.normed(q), self.normed(k)
        if self.rotates:
            q, k = rotated(q), rotated(k)
        grouped = self.shared != self.heads
        if grouped and (self.repeats_keys or self.written_out):
            k, v = (heads.repeat_interleave(self.heads // self.shared, 1) for heads in (k, v))
            grouped = False
        drop = self.drop if self.training else 0.0
        if self.written_out:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            if self.causal:
                ones = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
                scores = scores.masked_fill(ones.triu(1), float("-inf"))
            y = F.dropout(scores.softmax(-1), drop, self.training) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=drop, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__()
        inner = width * rng.choice([2, 3, 4])
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.gate = nn.Linear(width, inner, bias=False) if rng.random() < 0.4 else None
        self.act, self.drop = activation(rng)(), nn.Dropout(rng.choice([0.0, 0.1]))

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.up(x))
        return self.drop(self.down(y if self.gate is None else y * self.gate(x)))


class Experts(nn.Module):
    """A layer of experts, each of which sees every token, weighted by a router."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(FeedForward(rng, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).float().softmax(-1).to(x.dtype)
        total = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            total = total + weights[..., number : number + 1] * expert(x)
        return total


class Causal(nn.Module):
    """A causal depthwise convolution over time with a gate, as in state-space models."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.conv = nn.Conv1d(width, width, 4, padding=3, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.wide(x).chunk(2, -1)
        y = self.conv(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return self.out(F.silu(y) * F.silu(gate))


class Layer(nn.Module):
    def __init__(self, rng: random.Random, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        make = rng.choice([nn.LayerNorm, nn.RMSNorm])
        self.first = rng.random() < 0.8
        mixer = rng.choice([Attention, Attention, Attention, Causal])
        mixed = mixer(width) if mixer is Causal else Attention(rng, width, heads, causal)
        self.parts = nn.ModuleList([mixed, rng.choice([FeedForward, FeedForward, Experts])(rng, width)])
        self.norms = nn.ModuleList([make(width), make(width)])

    def forward(self, x: Tensor) -> Tensor:
        for part, norm in zip(self.parts, self.norms):
            x = x + part(norm(x)) if self.first else norm(x + part(x))
        return x


class Sequences(nn.Module):
    """Token ids (N, T) -> logits of a vocabulary or of classes: attention, recurrence, convolution, or experts."""

    def __init__(self, rng: random.Random, vocabulary: int, length: int, repeats: bool) -> None:
        super().__init__()
        heads, side = rng.choice([1, 2, 4, 8]), rng.choice([16, 32, 48, 64, 96, 128])
        width = min(768, heads * side) // heads * heads
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=rng.choice([None, 0]))
        learned = rng.random() < 0.5
        self.positions = nn.Parameter(torch.zeros(length, width)) if learned else None
        causal, kind = rng.random() < 0.6, rng.choice(["own", "own", "own", "torch", "recurrent"])
        layers: Sequence[nn.Module]
        if kind == "torch":
            how = {"activation": rng.choice(["relu", "gelu"]), "norm_first": rng.random() < 0.5}
            layers = [nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, **how) for _ in range(2)]
        elif kind == "recurrent":
            recurrent = rng.choice([nn.LSTM, nn.GRU])
            layers = [recurrent(width, width, rng.choice([1, 2]), batch_first=True)]
        else:
            layers = [Layer(rng, width, heads, causal) for _ in range(rng.choice([1, 2, 4]))]
        wraps = repeats and kind != "recurrent"
        self.layers = nn.ModuleList(Checkpointed(layer) if wraps else layer for layer in layers)
        self.pools = rng.random() < 0.3
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10 if self.pools else vocabulary, bias=False)
        if not self.pools and rng.random() < 0.4:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        x = self.norm(x)
        return self.head(x.mean(1) if self.pools else x)
