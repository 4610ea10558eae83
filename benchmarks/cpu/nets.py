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


class Mixer(nn.Module):
    """MLP-Mixer: a hidden layer across patches, then one across channels."""

    def __init__(self, patches: int = 16, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.across = nn.ModuleList(self.hidden(patches) for _ in range(2))
        self.along = nn.ModuleList(self.hidden(width) for _ in range(2))
        self.head = nn.Linear(width, 10)

    @staticmethod
    def hidden(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for number, (across, along) in enumerate(zip(self.across, self.along)):
            x = x + across(self.norms[2 * number](x).transpose(1, 2)).transpose(1, 2)
            x = x + along(self.norms[2 * number + 1](x))
        return self.head(self.norms[4](x).mean(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A tagger: token ids through a recurrent layer to a label for each token."""

    def __init__(self, layer: nn.Module, width: int, words: int = 200) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(words, 32), layer, nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layer(self.words(ids))[0]).flatten(0, 1), ids.flatten())


class Translator(nn.Module):
    """An LSTM encoder and an LSTM decoder, with attention from the decoder to the encoder."""

    def __init__(self, words: int = 200, width: int = 48) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder, self.decoder = (nn.LSTM(width, width, batch_first=True) for _ in range(2))
        self.head = nn.Linear(2 * width, words)

    def forward(self, ids: Tensor) -> Tensor:
        source, state = self.encoder(self.words(ids))
        target, _ = self.decoder(self.words(ids), state)
        context = torch.bmm(torch.bmm(target, source.transpose(1, 2)).softmax(-1), source)
        return F.cross_entropy(self.head(torch.cat([target, context], -1)).flatten(0, 1), ids.flatten())


class CellByCell(nn.Module):
    """A recurrent cell called in a loop."""

    def __init__(self, cell: nn.Module, width: int) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for part in x.unbind(1):
            state = self.cell(part, state)
        return self.head(state[0] if isinstance(state, tuple) else state)  # type: ignore[no-any-return]


class VAE(nn.Module):
    """A variational autoencoder with its loss."""

    def __init__(self, features: int = 256, hidden: int = 96, code: int = 16) -> None:
        super().__init__()
        self.encode, self.to_code = nn.Linear(features, hidden), nn.Linear(hidden, 2 * code)
        self.decode = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, features))

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.to_code(F.relu(self.encode(x))).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        loss = F.binary_cross_entropy_with_logits(self.decode(z), x.sigmoid(), reduction="sum")
        return loss - 0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum()


class GAN(nn.Module):
    """A generator and its discriminator in one model."""

    def __init__(self, code: int = 32, width: int = 16) -> None:
        super().__init__()
        w = width
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(code, 4 * w, 4, bias=False), nn.BatchNorm2d(4 * w), nn.ReLU(True),
            nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * w), nn.ReLU(True),
            nn.ConvTranspose2d(2 * w, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        self.critic = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, w, 4, 2, 1)), nn.LeakyReLU(0.2, True),
            nn.Conv2d(w, 2 * w, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Flatten(), nn.Linear(2 * w * 16, 1),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        return F.softplus(-self.critic(self.generator(z))).mean()


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


class Spectral(nn.Module):
    """A Fourier neural operator, which mixes a few frequencies of an image."""

    def __init__(self, width: int = 12, modes: int = 6) -> None:
        super().__init__()
        self.modes = modes
        self.lift, self.head = nn.Conv2d(1, width, 1), nn.Conv2d(width, 1, 1)
        self.mix = nn.Parameter(torch.randn(width, width, modes, modes, 2) / width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        waves = torch.fft.rfft2(x)
        low_modes = torch.einsum(
            "bixy,ioxy->boxy", waves[:, :, : self.modes, : self.modes], torch.view_as_complex(self.mix)
        )
        out = torch.zeros_like(waves)
        out[:, :, : self.modes, : self.modes] = low_modes
        return self.head(F.gelu(x + torch.fft.irfft2(out, s=x.shape[-2:])))  # type: ignore[no-any-return]


class Graph(nn.Module):
    """Two rounds of message passing along the edges of a ring, summed at each node."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        nodes = torch.arange(x.shape[1], device=x.device)
        for layer in self.layers:
            messages = layer(x.index_select(1, nodes))
            x = F.relu(torch.zeros_like(x).index_add(1, (nodes + 1) % x.shape[1], messages))
        return x.mean(1)


class Transformed(nn.Module):
    """A spatial transformer: a network predicts where to look, and another one classifies what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Sequential(conv(3, 8, 3, 2), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 6))
        self.what = nn.Sequential(conv(3, 16), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        grid = F.affine_grid(self.where(x).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.what(F.grid_sample(x, grid, align_corners=False))  # type: ignore[no-any-return]


class Contrastive(nn.Module):
    """Two views of the same samples through one network, and a contrastive loss over all pairs."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        first, second = F.normalize(self.body(a)), F.normalize(self.body(b))
        pairs = first @ second.t() * self.scale.exp()
        same = torch.arange(len(a), device=a.device)
        return (F.cross_entropy(pairs, same) + F.cross_entropy(pairs.t(), same)) / 2


class Field(nn.Module):
    """A radiance field: Fourier features of positions, and an MLP with a skip connection."""

    def __init__(self, waves: int = 6, width: int = 64) -> None:
        super().__init__()
        size = 3 * 2 * waves
        self.waves = waves
        self.first = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(width + size, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, x: Tensor) -> Tensor:
        angles = (x[..., None] * 2.0 ** torch.arange(self.waves, device=x.device)).flatten(-2)
        seen = torch.cat([angles.sin(), angles.cos()], -1)
        return self.second(torch.cat([self.first(seen), seen], -1))  # type: ignore[no-any-return]


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter."""

    def __init__(self, width: int, out: int, rank: int = 4) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, out).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x)) * 0.5  # type: ignore[no-any-return]
