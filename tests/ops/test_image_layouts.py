"""Kernels of images and volumes, with inputs and gradients in every layout, against their rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cpu.calls import Call, Kernels, wrong
from torchsummary_plus.ops.scratch.registry import UNMODELLED

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
IMAGES, VOLUMES = ((2, 4, 6, 8), (2, 1, 6, 8), (4, 6, 8)), ((2, 4, 4, 6, 4), (4, 4, 6, 4))


def layouts(shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Yield tensors of a shape: contiguous, transposed, strided, expanded, and the same in channels-last."""
    x = torch.rand(shape)
    yield x
    yield x.mT.contiguous().mT
    yield torch.rand(*shape[:-1], 2 * shape[-1])[..., ::2]
    yield torch.rand(()).expand(shape)
    yield torch.rand(*shape[:2], *[1] * (len(shape) - 2)).expand(shape)
    if (last := LAST.get(len(shape))) is not None:
        yield x.contiguous(memory_format=last)
        yield torch.rand(1, *shape[1:]).contiguous(memory_format=last).expand(shape)
        yield torch.rand(shape[0], 2 * shape[1], *shape[2:]).contiguous(memory_format=last)[:, : shape[1]]


def resized(mode: str, **options: bool) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, scale_factor=2, mode=mode, **options)


FUNCTIONS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[[Tensor], Tensor]]] = {
    "avg_pool2d": (IMAGES, lambda x: F.avg_pool2d(x, 2)),
    "max_pool2d": (IMAGES, lambda x: F.max_pool2d(x, 2)),
    "adaptive_avg_pool2d": (IMAGES, lambda x: F.adaptive_avg_pool2d(x, 2)),
    "adaptive_max_pool2d": (IMAGES, lambda x: F.adaptive_max_pool2d(x, 2)),
    "reflect 2d": (IMAGES, lambda x: F.pad(x, (1, 1, 1, 1), "reflect")),
    "replicate 2d": (IMAGES, lambda x: F.pad(x, (1, 1, 1, 1), "replicate")),
    "nearest 2d": (IMAGES[:2], resized("nearest")),
    "bilinear": (IMAGES[:2], resized("bilinear")),
    "bilinear antialiased": (IMAGES[:2], resized("bilinear", antialias=True)),
    "bicubic antialiased": (IMAGES[:2], resized("bicubic", antialias=True)),
    "avg_pool3d": (VOLUMES, lambda x: F.avg_pool3d(x, 2)),
    "max_pool3d": (VOLUMES[:1], lambda x: F.max_pool3d(x, 2)),
    "adaptive_avg_pool3d": (VOLUMES, lambda x: F.adaptive_avg_pool3d(x, 2)),
    "adaptive_max_pool3d": (VOLUMES, lambda x: F.adaptive_max_pool3d(x, 2)),
    "reflect 3d": (VOLUMES, lambda x: F.pad(x, (1,) * 6, "reflect")),
    "replicate 3d": (VOLUMES, lambda x: F.pad(x, (1,) * 6, "replicate")),
    "nearest 3d": (VOLUMES[:1], resized("nearest")),
    "nearest-exact 3d": (VOLUMES[:1], resized("nearest-exact")),
    "trilinear": (VOLUMES[:1], resized("trilinear")),
}


def kernels(name: str) -> Iterator[Call]:
    """Yield the kernels of a function and of its gradient, each call once."""
    shapes, function = FUNCTIONS[name]
    seen = set()
    for shape in shapes:
        for x in layouts(shape):
            x.requires_grad_()
            for grad in layouts(tuple(function(x).shape)):
                with Kernels() as mode:
                    torch.autograd.grad(function(x), x, grad)
                for call in mode.calls:
                    if call.operator.name() not in UNMODELLED["cpu"] and call.text not in seen:
                        seen.add(call.text)
                        yield call


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_rules_agree_with_the_profiler(name: str) -> None:
    assert not [f"{call.text}: {difference}" for call, difference in wrong(list(kernels(name)))]
