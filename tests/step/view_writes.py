"""Models that write to views in place. As a script, it prints each one's predicted and measured peak in bytes."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torchsummary_plus import estimate_memory, measure_memory

Write = Callable[[Tensor], object]


class Written(nn.Module):
    """A linear layer, what its output becomes when a part of it is written to, and another layer."""

    def __init__(self, write: Write, keep: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.write, self.keep = write, keep

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        view = self.write(y)
        out: Tensor = self.last(y)
        return out + view.sum() if self.keep and isinstance(view, Tensor) else out


class Bare(nn.Module):
    """A scaled input, a part of it that is written to, and the base as another view of it."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.write = write

    def forward(self, x: Tensor) -> list[Tensor]:
        y = x * self.scale
        before = y.view(-1)
        view = self.write(y)
        results = [y * 2, before.exp(), view if isinstance(view, Tensor) else y.flatten(1)]
        return [tensor * tensor for tensor in results]


def _add_to_item(y: Tensor) -> None:
    y[:, 0] += 1


def _multiply_item(y: Tensor) -> None:
    y[..., 1:3] *= 2.5


def _two_views(y: Tensor) -> Tensor:
    first, second = y[:2], y[2:]
    first.mul_(2)
    second.div_(3.0)
    return first


def _view_of_view(y: Tensor) -> Tensor:
    return y.view(-1)[8:].unflatten(0, (-1, 8)).mul_(2).add_(1)


class Filled(nn.Module):
    """A factory's tensor that is filled, multiplied through a view that nobody holds, and used by a large layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(20, 20), nn.Linear(20, 400)

    def forward(self, x: Tensor) -> Tensor:
        full = torch.zeros(len(x), 20)
        full[:, :10] = self.first(x)[:, :10]
        full[:, ::2].mul_(2)
        out: Tensor = self.last(full[:, :])
        return out


class Doubled(torch.autograd.Function):
    """Twice its input, which it keeps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x[:, 0] * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        full = torch.zeros_like(x)
        full[:, 0] = grad * 2
        return full


class Handed(nn.Module):
    """A view whose node torch must replace while it is passed to a function that no mode sees."""

    def __init__(self, use: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        view = y[:, ::2]
        y[:, 1:].mul_(y[:, 1:].detach().clone())
        return self.use(view) + view.sum()


class UsedLate(nn.Module):
    """A view whose node torch replaces where it is next used, after another layer: its number orders the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 256), nn.Linear(16, 256)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y[0] *= 0.5
        return (self.second(x) + y.mean()).relu()  # type: ignore[no-any-return]


USES: dict[str, Callable[[Tensor], Tensor]] = {
    "a function of one's own": lambda view: Doubled.apply(view),  # type: ignore[no-untyped-call]
    "a checkpoint": lambda view: checkpoint(lambda x: x.sigmoid() * 2, view, use_reentrant=False),
    "a checkpoint that is entered again": lambda view: checkpoint(lambda x: x.sigmoid() * 2, view, use_reentrant=True),
}

WRITES: dict[str, Write] = {
    "add to an item": _add_to_item,
    "multiply an item": _multiply_item,
    "two views": _two_views,
    "a view of a view": _view_of_view,
    "add_": lambda y: y[:, 0].add_(1),
    "sub_ alpha": lambda y: y.select(-1, 0).sub_(1, alpha=2),
    "mul_": lambda y: y.transpose(0, 1).mul_(True),
    "div_": lambda y: y.view(-1).div_(2),
    "div_ floor": lambda y: y.flatten().div_(2, rounding_mode="floor"),
    "pow_": lambda y: y.narrow(0, 0, 2).pow_(2),
    "clamp_": lambda y: y.unsqueeze(0).clamp_(0, 1),
    "fill_": lambda y: y[:1].fill_(0.5),
    "zero_": lambda y: y[:1].zero_(),
    "masked_fill_": lambda y: y[:2].masked_fill_(y[:2].detach() == 7, 0.0),
    "leaky_relu_": lambda y: F.leaky_relu(y.reshape(-1), 0.1, inplace=True),
    "elu_": lambda y: F.elu(y.permute(*reversed(range(y.dim()))), inplace=True),
    "hardtanh_": lambda y: F.relu6(y[:, 0], inplace=True),
    "a tensor": lambda y: y[:2].mul_(y[:2].detach().clone()),
    "copy_": lambda y: y[:1].copy_(y[1:2]),
}


def models() -> Iterator[tuple[str, nn.Module, tuple[int, ...]]]:
    """Each with its name and the size of its input."""
    for name, write in WRITES.items():
        yield f"{name}, flat", Written(write, keep=False), (16,)
        yield f"{name}, kept", Written(write, keep=True), (3, 16)
    for name, use in USES.items():
        yield f"a view for {name}", Handed(use), (16,)
    yield "a view that is dropped", Filled(), (20,)
    yield "a view that is used late", UsedLate(), (64, 16)
    leaky = nn.LeakyReLU(0.1, inplace=True)
    for name, write in WRITES.items():
        yield f"{name}, and its view", Bare(write), (5, 8)
    yield "an activation after a linear layer", nn.Sequential(nn.Linear(64, 64), leaky), (5, 64)
    for kind, conv, size in (
        (nn.InstanceNorm1d, nn.Conv1d, (3, 16)),
        (nn.InstanceNorm2d, nn.Conv2d, (3, 8, 8)),
        (nn.InstanceNorm3d, nn.Conv3d, (3, 6, 6, 6)),
    ):
        for layer in (leaky, nn.ReLU(inplace=True), nn.ELU(inplace=True), nn.Hardswish(inplace=True)):
            body = nn.Sequential(conv(3, 8, 3), kind(8, affine=True), layer, conv(8, 3, 3))
            yield f"{type(layer).__name__} after {kind.__name__}", body, size


def main() -> None:
    for name, model, size in models():
        gc.freeze()  # What was imported lasts: collections pass over it.
        predicted = estimate_memory(model, size, batch_size=4, optimizer="sgd")
        measured = measure_memory(model, size, batch_size=4, optimizer="sgd")
        print(json.dumps([name, *((e.peak_bytes, dict(e.phase_peaks)) for e in (predicted, measured))]), flush=True)


if __name__ == "__main__":
    main()
