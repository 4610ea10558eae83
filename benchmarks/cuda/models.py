"""The recorded models that need only torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.cuda.libraries import Family, Shape
from examples import gpt2, llama
from examples.mobilenet_v2 import MobileNetV2
from examples.resnet import BasicBlock, Bottleneck, ResNet
from examples.vgg import VGG
from examples.vit import ViT


def conv_block(channels: int, out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner in (channels, out):
        layers += [nn.Conv2d(inner, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015) with padding: images (N, 3, H, W) -> maps (N, 2, H, W)."""

    def __init__(self, width: int, depth: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(map(conv_block, [3, *widths[:-1]], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(conv_block(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


class Residual(nn.Module):
    """A diffusion model's block: group norm, SiLU and convolution, twice, with the time embedding added in between."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, channels), nn.GroupNorm(8, out)
        self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class SpatialAttention(nn.Module):
    """Self-attention over the pixels of a map."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, channels)
        self.qkv, self.proj = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.qkv(self.norm(x)).flatten(2).unflatten(1, (3, self.heads, -1)).transpose(-1, -2)
        mixed = F.scaled_dot_product_attention(*flat.unbind(1))
        return x + self.proj(mixed.transpose(-1, -2).flatten(1, 2).unflatten(-1, x.shape[2:]))


class DiffusionUNet(nn.Module):
    """A small diffusion U-Net (Ho et al. 2020; Dhariwal, Nichol 2021): noisy latents (N, 4, H, W) -> their noise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        time, widths = 4 * width, (width, 2 * width, 4 * width)
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.width = width
        self.stem = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList(Residual(c, w, time) for c, w in zip((width, *widths), widths))
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths[:-1])
        self.attention = SpatialAttention(widths[-1])
        self.up = nn.ModuleList(Residual(c + w, w, time) for c, w in zip((widths[-1], *widths[:0:-1]), widths[::-1]))
        self.head = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.linspace(0, 1, len(x), device=x.device, dtype=x.dtype)
        time = self.time(steps[:, None] * torch.ones(self.width, device=x.device, dtype=x.dtype))
        x, skips = self.stem(x), []
        for level, block in enumerate(self.down):
            x = block(x, time)
            skips.append(x)
            x = self.shrink[level](x) if level < len(self.shrink) else self.attention(x)
        for level, block in enumerate(self.up):
            x = block(torch.cat([x if level == 0 else F.interpolate(x, scale_factor=2.0), skips.pop()], dim=1), time)
        return self.head(x)


class ConvNeXt(nn.Module):
    """A ConvNeXt block (Liu et al. 2022): a depthwise convolution, a norm and a two-layer perceptron."""

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 4, stride=4)
        self.stages = nn.ModuleList(
            nn.Sequential(*(ConvNeXtBlock(width) for _ in range(depth))) for width, depth in zip(widths, depths)
        )
        self.shrink = nn.ModuleList(nn.Conv2d(w, 2 * w, 2, stride=2) for w in widths[:-1])
        self.head = nn.Linear(widths[-1], 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for level, blocks in enumerate(self.stages):
            x = blocks(self.shrink[level - 1](x) if level else x)
        return self.head(x.mean((2, 3)))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        return x + self.narrow(F.gelu(self.widen(y))).permute(0, 3, 1, 2)


class Encoder(nn.Module):
    """A model of BERT's shape (Devlin et al. 2019): embeddings, ``nn.TransformerEncoderLayer``, and two scores."""

    def __init__(self, width: int, depth: int, heads: int, vocabulary: int = 30_522, length: int = 512) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)))
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


class BiasedAttention(nn.Module):
    """Attention with a bias on its scores that depends on the distance, as in T5 (Raffel et al. 2020)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = (
            proj(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for proj, y in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        mask = None if bias is None else bias.to(q.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(mixed.transpose(1, 2).flatten(2))


class T5Block(nn.Module):
    def __init__(self, width: int, heads: int, crosses: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3 if crosses else 2))
        self.own = BiasedAttention(width, heads)
        self.cross = BiasedAttention(width, heads) if crosses else None
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, memory: Tensor | None, bias: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.own(y, y, bias)
        if self.cross is not None and memory is not None:
            x = x + self.cross(self.norms[1](x), memory, None)
        return x + self.down(F.relu(self.up(self.norms[-1](x))))


class T5(nn.Module):
    """An encoder and a decoder over the same tokens, with a learned bias for each head and distance."""

    def __init__(self, width: int, depth: int, heads: int, vocabulary: int = 32_128, length: int = 512) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(1, heads, length, length)) for _ in range(2))
        self.encoder = nn.ModuleList(T5Block(width, heads, crosses=False) for _ in range(depth))
        self.decoder = nn.ModuleList(T5Block(width, heads, crosses=True) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = y = self.tokens(ids)
        for block in self.encoder:
            x = block(x, None, self.biases[0])
        for block in self.decoder:
            y = block(y, x, self.biases[1])
        return self.head(self.norm(y))


class Recurrent(nn.Module):
    """A recurrent language model: embedding, recurrent layers, logits."""

    def __init__(self, kind: type[nn.RNNBase], width: int, layers: int = 2, vocabulary: int = 10_000) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = kind(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(ids))[0])


def mlp(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(width, 1000))


class Checkpointed(nn.Module):
    """A checkpointed block, which runs again in the backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Tensor) -> Tensor:
        return checkpoint(self.block, *args, use_reentrant=False)


def checkpointed(model: nn.Module) -> nn.Module:
    """Checkpoint every block in the lists and sequences of a model."""
    for module in list(model.modules()):
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and all(_is_block(child) for child in module):
            for name, child in list(module.named_children()):
                setattr(module, name, Checkpointed(child))
    return model


def _is_block(module: nn.Module) -> bool:
    return type(module).__name__ in ("Block", "Layer", "BasicBlock", "Bottleneck", "TransformerEncoderLayer")


LLAMA = llama.Config(width=1024, depth=16, heads=16, kv_heads=4, hidden=2816)
IMAGE: dict[str, Shape] = {"x": ((3, 224, 224), 0)}


def words(length: int, vocabulary: int) -> dict[str, Shape]:
    return {"ids": ((length,), vocabulary)}


FAMILIES = {
    name: Family("torch", name, build, inputs, batches)
    for name, build, inputs, batches in (
        ("mlp", lambda: mlp(4096, 6), {"x": ((4096,), 0)}, (256, 2048)),
        ("vgg16", VGG, IMAGE, (16, 64)),
        ("resnet18", lambda: ResNet(BasicBlock, (2, 2, 2, 2)), IMAGE, (64, 256)),
        ("resnet50", lambda: ResNet(Bottleneck, (3, 4, 6, 3)), IMAGE, (32, 128)),
        ("mobilenet_v2", MobileNetV2, IMAGE, (64, 256)),
        ("convnext", lambda: ConvNeXt((96, 192, 384, 768), (3, 3, 9, 3)), IMAGE, (32, 128)),
        ("vit", ViT, IMAGE, (32, 128)),
        ("gpt2", gpt2.GPT2, words(1024, gpt2.SMALL.vocabulary), (4, 16)),
        ("llama", lambda: llama.Llama(LLAMA), words(1024, LLAMA.vocabulary), (4, 16)),
        ("bert", lambda: Encoder(768, 12, 12), words(512, 30_522), (8, 32)),
        ("t5", lambda: T5(512, 6, 8), words(512, 32_128), (8, 32)),
        ("lstm", lambda: Recurrent(nn.LSTM, 1024), words(256, 10_000), (32, 128)),
        ("gru", lambda: Recurrent(nn.GRU, 1024), words(256, 10_000), (32, 128)),
        ("unet", lambda: UNet(64), {"x": ((3, 256, 256), 0)}, (4, 16)),
        ("diffusion", lambda: DiffusionUNet(128), {"x": ((4, 64, 64), 0)}, (8, 32)),
    )
}
