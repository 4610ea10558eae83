"""Random convolutions of the kinds that networks have, for which cuDNN's workspaces are recorded."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SCALES = (0.5, 0.75, 1.0, 1.0, 1.0, 1.15, 1.5, 2.0)
"""Size of a network's image, relative to the usual 224 pixels a side."""
MOST = 3e9
"""Limit of the bytes of the input, and of the output, in fp32."""


class Layer(NamedTuple):
    """A convolution of a network: input and output channels, groups, kernel, stride, dilation, and the image's axes."""

    inner: int
    outer: int
    kernel: int
    axes: tuple[int, ...]
    stride: int = 1
    groups: int = 1
    dilation: int = 1


def _resnet(dice: random.Random) -> Layer:
    """Draw a convolution of a bottleneck, a basic block or a shortcut."""
    stage = dice.randrange(4)
    width, axes = 64 << stage, (56 >> stage,) * 2
    kind = dice.randrange(5)
    if kind < 2:
        return Layer(width, width, 3, axes, 1 + kind * (stage > 0))
    if kind == 2:
        return Layer(4 * width, width, 1, axes)
    return Layer(width, 4 * width, 1, axes) if kind == 3 else Layer(2 * width, 4 * width, 1, axes, 2)


def _vgg(dice: random.Random) -> Layer:
    stage = dice.randrange(5)
    width = min(512, 64 << stage)
    return Layer(max(width // dice.choice((1, 2)), 3), width, 3, (224 >> stage,) * 2)


def _unet(dice: random.Random) -> Layer:
    """Draw a convolution of a U-Net, also for diffusion: on the way down or up, upsampling, or the output."""
    stage, width = dice.randrange(5), dice.choice((16, 32, 64, 320))
    inner, axes = width << stage, (256 >> stage,) * 2
    outer = dice.choice((inner, 2 * inner, max(width, inner // 2)))
    kernel, stride = dice.choice(((3, 1), (3, 1), (3, 1), (2, 2), (1, 1), (3, 2), (0, 1)))
    if not kernel:
        return Layer(inner, dice.choice((1, 2, 4, 21)), 1, axes)
    return Layer(inner, outer, kernel, axes, stride)


def _mobile(dice: random.Random) -> Layer:
    """Draw a depthwise convolution, or one that expands or projects."""
    stage = dice.randrange(5)
    width, axes = (16, 24, 40, 112, 320)[stage], (112 >> stage,) * 2
    wide = width * dice.choice((3, 4, 6))
    kind = dice.randrange(4)
    if kind < 2:
        return Layer(wide, wide, dice.choice((3, 5, 7)), axes, 1 + kind, groups=wide)
    return Layer(width, wide, 1, axes) if kind == 2 else Layer(wide, width, 1, axes)


def _grouped(dice: random.Random) -> Layer:
    """Draw a grouped convolution, as in RegNet and ResNeXt."""
    stage, each, kind = dice.randrange(4), dice.choice((4, 8, 16, 24, 32, 48, 64)), dice.randrange(2)
    groups = dice.choice((2, 4, 8, 14, 32)) << max(0, stage - 1)
    return Layer(each * groups, each * groups, 3, (56 >> stage,) * 2, 1 + kind, groups=groups)


def _stem(dice: random.Random) -> Layer:
    """Draw the first convolution of a network, or the patch embedding of a transformer."""
    kernel, stride = dice.choice(((3, 1), (3, 2), (7, 2), (7, 4), (4, 4), (14, 14), (16, 16), (32, 32), (11, 4)))
    outer = dice.choice((32, 48, 64, 96)) if kernel < 14 else dice.choice((192, 384, 768, 1024))
    return Layer(dice.choice((1, 3, 3, 3, 4)), outer, kernel, (224, 224), stride)


def _dilated(dice: random.Random) -> Layer:
    """Draw a dilated convolution, as in segmentation."""
    inner, outer = dice.choice(((256, 256), (512, 512), (512, 256), (2048, 256), (128, 128)))
    return Layer(inner, outer, 3, (28, 28), dilation=dice.choice((2, 4, 6, 12, 18)))


def _volume(dice: random.Random) -> Layer:
    stage, width = dice.randrange(4), dice.choice((8, 16, 32))
    inner, axes = width << stage, (64 >> stage,) * 3
    outer = dice.choice((inner, 2 * inner, inner // 2, 2))
    kernel, stride = dice.choice(((3, 1), (3, 1), (3, 2), (2, 2), (1, 1), (5, 1)))
    return Layer(1 if not stage and kernel > 2 else inner, outer, kernel, axes, stride)


def _sound(dice: random.Random) -> Layer:
    width = dice.choice((32, 64, 128, 256, 384, 512))
    kernel, stride, dilation = dice.choice(
        ((3, 1, 1), (3, 2, 1), (5, 1, 1), (7, 1, 1), (1, 1, 1), (8, 4, 1), (10, 5, 1), (3, 1, 2), (3, 1, 16))
    )
    inner = dice.choice((1, 80, width, width)) if dilation == 1 else width
    return Layer(inner, width, kernel, (dice.choice((100, 500, 1500, 3000, 16000, 64000)),), stride, 1, dilation)


def _long(dice: random.Random) -> Layer:
    """Draw a convolution over a spectrogram or waveform, with a long kernel."""
    inner, outer = dice.choice(((1, 64), (64, 64), (128, 256), (256, 512), (512, 512), (512, 1024)))
    kernel, axis = dice.choice((11, 17, 25, 31, 41)), dice.choice((128, 256, 512, 1024, 2048, 8000))
    return Layer(inner, outer, kernel, (axis,), dice.choice((1, 1, 2, 4)))


def _any(dice: random.Random) -> Layer:
    """Draw a two-dimensional convolution of no particular network."""
    inner, outer = (_multiple(dice, 3, 1024) for _ in range(2))
    side, kernel = round(7 * 2 ** dice.uniform(0, 5)), dice.choice((1, 1, 3, 3, 3, 5, 7))
    return Layer(inner, outer, kernel, (side, side), dice.choice((1, 1, 2)))


def _multiple(dice: random.Random, least: int, most: int) -> int:
    """Draw a number between two, spread evenly over their orders of magnitude, mostly a multiple of 4, 8 or 16."""
    unit = dice.choice((1, 4, 8, 8, 16, 16))
    return max(least, round(least * (most / least) ** dice.random() / unit) * unit)


KINDS_OF_LAYERS = (
    *(_resnet, _vgg, _unet, _mobile, _grouped, _resnet, _stem, _volume, _unet, _mobile, _grouped, _sound, _dilated),
    *(_any, _long),
)
"""The kinds, drawn in turn. Their number is odd, because every other convolution is held out."""


def draw(dice: random.Random, kind: Callable[[random.Random], Layer]) -> list[Any]:
    """Draw a convolution of a kind: the sizes of x, w and y, padding, stride and dilation."""
    while True:
        layer = kind(dice)
        conv = _sized(layer, dice.choice(BATCHES), dice.choice(SCALES))
        if max(prod(conv[0]), prod(conv[2])) * 4 < MOST and min(conv[2]) > 0:
            return conv


def _sized(layer: Layer, batch: int, scale: float) -> list[Any]:
    axes = len(layer.axes)
    shape = [max(1, round(scale * size)) for size in layer.axes]
    batch = min(batch, 4) if axes == 3 else batch
    padding = 0 if layer.kernel == layer.stride else (layer.kernel - 1) // 2 * layer.dilation
    reach = layer.dilation * (layer.kernel - 1) + 1
    lengths = [(size + 2 * padding - reach) // layer.stride + 1 for size in shape]
    line = [1] * (axes == 1)
    return [
        [batch, layer.inner, *line, *shape], [layer.outer, layer.inner // layer.groups, *line, *[layer.kernel] * axes],
        [batch, layer.outer, *line, *lengths], [*[0] * (axes == 1), *[padding] * axes], [*line, *[layer.stride] * axes],
        [*line, *[layer.dilation] * axes],
    ]  # fmt: skip
