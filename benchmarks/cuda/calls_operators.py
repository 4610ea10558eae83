"""More single operators of ``benchmarks.cuda.calls``: those that copy, sort, select or accumulate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cuda.calls_bounded import bounded_call, draw_bounded_call

LAYOUTS = ("plain", "plain", "last", "every other", "turned")
DTYPES = ("fp32", "fp32", "bf16", "fp16")

IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool2d(x, (5, 7)),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool2d(x, (5, 7)),
    "fractional_max_pool": lambda x: F.fractional_max_pool2d(x, 2, output_size=(6, 6)),
    "reflect": lambda x: F.pad(x, (1, 2, 3, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 2, 3, 1), mode="replicate"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "nearest-exact": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"),
    "antialiased": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
    "unfold": lambda x: F.unfold(x, 3),
    "fold": lambda x: F.fold(x.flatten(2).repeat(1, 9, 1), (x.shape[2] + 2, x.shape[3] + 2), 3),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "sampled": lambda x: F.grid_sample(x, F.affine_grid(x[:, 0, :2, :3], x.shape, align_corners=False)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros_like(x[:, 0], dtype=torch.long)),
    "channel_dropout": lambda x: F.dropout2d(x, 0.2),
}


def laid_out(x: Tensor, layout: str) -> Tensor:
    """Return a tensor in another layout, derived from a contiguous one by a differentiable function."""
    if layout == "last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "every other":
        return x.repeat_interleave(2, -1)[..., ::2]
    return x.transpose(-1, -2) if layout == "turned" else x


def image_call(operator: str, shape: Sequence[int], layout: str, expands: bool) -> tuple[Any, ...]:
    def run(x: Tensor) -> Tensor:
        image = IMAGES[operator](laid_out(x, layout))
        return image.sum() if expands else image

    return run, shape


def draw_image_call(draw: Any) -> dict[str, Any]:
    shape = [draw.choice((1, 4)), draw.choice((4, 16, 32)), draw.choice((16, 30, 56)), draw.choice((16, 25, 56))]
    return {"operator": draw.choice(tuple(IMAGES)), "shape": shape, "layout": draw.choice(LAYOUTS),
            "expands": draw.random() < 0.4, "dtype": draw.choice(DTYPES)}  # fmt: skip


LOSSES: dict[str, Callable[..., Tensor]] = {
    "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "l1": F.l1_loss,
    "bce": lambda x, target, **how: F.binary_cross_entropy(x.sigmoid(), target, **how),
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "weighted_bce_with_logits": lambda x, target, **how: F.binary_cross_entropy_with_logits(
        x, target, pos_weight=target[0] + 1, **how
    ),
    "soft_margin": F.soft_margin_loss,
    "kl_div": F.kl_div,
    "poisson": F.poisson_nll_loss,
    "multilabel_soft_margin": F.multilabel_soft_margin_loss,
    "distance": lambda x, target, **_: torch.dist(x, target),
}


def loss_call(loss: str, rows: int, columns: int, reduction: str) -> tuple[Any, ...]:
    def run(x: Tensor) -> Tensor:
        return LOSSES[loss](x, torch.zeros_like(x), reduction=reduction)

    return run, (rows, columns)


def draw_loss_call(draw: Any) -> dict[str, Any]:
    return {"loss": draw.choice(tuple(LOSSES)), "rows": draw.choice((1, 32, 700)),
            "columns": draw.choice((10, 1000, 9000)), "reduction": draw.choice(("mean", "mean", "sum", "none")),
            "dtype": draw.choice(DTYPES)}  # fmt: skip


ROWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sort": lambda x, _: x.sort(-1)[0],
    "sort_columns": lambda x, _: x.sort(0)[0],
    "argsort": lambda x, _: x.gather(-1, x.argsort(-1)),
    "median": lambda x, _: x.median(),
    "medians": lambda x, _: x.median(-1)[0],
    "kthvalue": lambda x, _: x.kthvalue(2, -1)[0],
    "mode": lambda x, _: x.mode(-1)[0],
    "cumsum": lambda x, _: x.cumsum(0),
    "logsumexp": lambda x, _: x.logsumexp(-1),
    "logsumexp_all": lambda x, _: x.logsumexp((0, 1)),
    "renorm": lambda x, _: x.renorm(2, 0, 1.0),
    "nonzero": lambda x, _: x * (x > 0).nonzero().sum(),
    "masked_select": lambda x, _: x.masked_select(x > 0),
    "masked_scatter": lambda x, _: x.masked_scatter(x > 2, x.detach()),
    "masked": lambda x, _: x[x > 0],
    "looked_up": lambda x, i: x[i],
    "added": lambda x, i: x.index_add(0, i, x[: len(i)]),
    "put": lambda x, i: x.index_put((i,), x[: len(i)], accumulate=True),
    "scattered_mean": lambda x, i: x.scatter_reduce(0, i[:, None].expand(-1, x.shape[1]), x[: len(i)], "mean"),
    "shuffled": lambda x, _: x[torch.randperm(len(x), device=x.device)],
    "unique": lambda x, i: x * torch.unique(i).sum(),
    "unique_inverse": lambda x, i: x * torch.unique(i, return_inverse=True)[1].sum(),
    "drawn": lambda x, _: x.gather(-1, torch.multinomial(x.detach().abs() + 1, 2)),
    "normal": lambda x, _: x + torch.normal(x.detach(), 1.0),
    "distances": lambda x, _: torch.cdist(x[:200, :40], x[:100, :40]),
    "taxicab": lambda x, _: torch.cdist(x[:200, :40], x[:100, :40], p=1.0),
    "bags": lambda x, i: F.embedding_bag(i.view(-1, 2), x, mode="sum"),
    "bag_means": lambda x, i: F.embedding_bag(i.view(-1, 2), x, mode="mean"),
    "vector": lambda x, _: x @ x[0],
    "expanded_vector": lambda x, _: x @ x[0, :1].expand(x.shape[1]),
}


def rows_call(operator: str, rows: int, columns: int, turned: bool) -> tuple[Any, ...]:
    def run(x: Tensor) -> Tensor:
        read = x.mT if turned else x
        return ROWS[operator](read, torch.zeros(len(read) // 2 * 2, dtype=torch.long, device=x.device))

    return run, (rows, columns)


def draw_rows_call(draw: Any) -> dict[str, Any]:
    sizes = draw.choice(((40, 30), (300, 200), (2, 5000), (5000, 2), (20_000, 8), (200, 6000), (100_000, 4)))
    return {"operator": draw.choice(tuple(ROWS)), "rows": sizes[0], "columns": sizes[1],
            "turned": draw.random() < 0.25, "dtype": draw.choice(("fp32", "fp32", "fp32", "bf16"))}  # fmt: skip


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "renorm_columns": lambda x: x.renorm(1, 1, 1.0),
}
"""Operators whose gradient formulas depend on the device or the class of tensors."""


def formula_call(operator: str, rows: int, columns: int) -> tuple[Any, ...]:
    return FORMULAS[operator], (rows, columns)


def draw_formula_call(draw: Any) -> dict[str, Any]:
    return {"operator": draw.choice(tuple(FORMULAS)), "rows": draw.choice((3, 200, 5000)),
            "columns": draw.choice((4, 70, 900)), "dtype": draw.choice(DTYPES)}  # fmt: skip


class Called(nn.Module):
    """A function of one parameter, as a loss if its result is a scalar, otherwise with the input as its gradient."""

    def __init__(self, function: Callable[[Tensor], Tensor], shape: Sequence[int]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.empty(*shape))

    def forward(self, x: Tensor) -> Tensor:
        result = self.function(self.weight)
        return result if result.dim() == 0 else result * x


OPERATORS: dict[str, tuple[Callable[[Any], dict[str, Any]], Callable[..., nn.Module], int]] = {
    "image_call": (draw_image_call, lambda **how: Called(*image_call(**how)), 60),
    "loss_call": (draw_loss_call, lambda **how: Called(*loss_call(**how)), 30),
    "rows_call": (draw_rows_call, lambda **how: Called(*rows_call(**how)), 80),
    "formula_call": (draw_formula_call, lambda **how: Called(*formula_call(**how)), 20),
    "bounded_call": (draw_bounded_call, lambda **how: Called(*bounded_call(**how)), 150),
}
"""How each kind is drawn and built, and the number of calls."""
