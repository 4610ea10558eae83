"""The single operators of ``benchmarks.cuda.calls``: a builder for each kind, and its random arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ANY, OFTEN_FP32 = tuple(DTYPES), ("fp32", "fp32", "bf16", "fp16")
LAYOUTS = ("plain", "plain", "last", "every other", "turned")
Draw = random.Random
Function = Callable[[Tensor], Any]


class Of(nn.Module):
    """A function of parameters, multiplied by the input so that its gradient is contiguous."""

    def __init__(
        self, function: Callable[..., Tensor], *shapes: Sequence[int], parts: Sequence[nn.Module] = ()
    ) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(*shape)) for shape in shapes)
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(*self.parts, *self.weights) * x


class Called(nn.Module):
    """A function of one parameter, as a loss if its result is a scalar, otherwise with the input as its gradient."""

    def __init__(self, function: Callable[[Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.empty(*shape))

    def forward(self, x: Tensor) -> Tensor:
        result = self.function(self.weight)
        return result if result.dim() == 0 else result * x


def drawn(**choices: Any) -> Callable[[Draw], dict[str, Any]]:
    """Return a function that draws one of each of several choices, in order."""
    return lambda draw: {name: draw.choice(tuple(values)) for name, values in choices.items()}


def labels(x: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.long, device=x.device)


def attention(
    batch: int, heads: int, shared: int, rows: int, columns: int, width: int, wide: int, causal: bool, mask: str,
    dropout: float, turned: bool,
) -> nn.Module:  # fmt: skip
    def mix(query: Tensor, key: Tensor, value: Tensor, *masks: Tensor) -> Tensor:
        if turned:
            query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
        attention_mask = masks[0] if masks else None
        if attention_mask is not None and mask == "kept":
            attention_mask = attention_mask.detach()
        if attention_mask is not None and mask == "bool":
            attention_mask = attention_mask.detach() > 0
        return F.scaled_dot_product_attention(
            query, key, value, attention_mask, dropout, causal and not masks, enable_gqa=heads != shared
        )

    def shape(count: int, length: int, size: int) -> tuple[int, ...]:
        return (batch, length, count, size) if turned else (batch, count, length, size)

    masks = [] if mask == "none" else [(rows, columns)]
    return Of(mix, shape(heads, rows, width), shape(shared, columns, width), shape(shared, columns, wide), *masks)


def draw_attention(draw: Draw) -> dict[str, Any]:
    width = draw.choice((16, 32, 40, 64, 64, 72, 80, 96, 100, 128, 160, 192, 200, 256, 512))
    heads = draw.choice((2, 4, 8, 12))
    rows = draw.choice((1, 17, 64, 100, 128, 512, 1000))
    mask = draw.choice(("none", "none", "none", "kept", "bool", "trained"))
    return {
        "batch": draw.choice((1, 2, 8, 32)), "heads": heads, "shared": draw.choice((heads, heads, heads // 2)),
        "rows": rows, "columns": draw.choice((rows, rows, 77)), "width": width,
        "wide": draw.choice((width, width, width, 64)), "causal": draw.random() < 0.3, "mask": mask,
        "dropout": draw.choice((0.0, 0.0, 0.1, 0.125)), "turned": draw.random() < 0.5,
        "dtype": draw.choice(ANY),
    }  # fmt: skip


def product(rows: int, inner: int, columns: int, batch: int, form: str) -> nn.Module:
    def multiply(left: Tensor, right: Tensor) -> Tensor:
        if form == "linear":
            return F.linear(left, right.mT, None if batch else right[0] * 1)
        if form == "expanded":
            return left.sum(-1, keepdim=True).expand_as(left) @ right
        if form == "turned":
            return (right.mT @ left.mT).mT
        return left @ right

    lead = (batch,) if batch else ()
    if form == "linear":
        return Of(multiply, (*lead, rows, inner), (inner, columns))
    return Of(multiply, (*lead, rows, inner), (*lead, inner, columns))


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "std": torch.std,
    "norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
    "logsumexp": torch.logsumexp, "softmax": lambda x, dim: torch.softmax(x, dim[0]),
    "log_softmax": lambda x, dim: torch.log_softmax(x, dim[0]),
    "cumsum": lambda x, dim: torch.cumsum(x, dim[0]), "max": lambda x, dim: torch.max(x, dim[0])[0],
    "topk": lambda x, dim: torch.topk(x, 3, dim[0])[0], "sort": lambda x, dim: torch.sort(x, dim[0])[0],
}  # fmt: skip


def reduced(operator: str, shape: Sequence[int], dim: Sequence[int], turned: bool) -> nn.Module:
    def reduce(x: Tensor) -> Tensor:
        return REDUCTIONS[operator](x.transpose(0, -1) if turned else x, dim=tuple(dim))  # type: ignore[no-any-return]

    return Of(reduce, shape)


def draw_reduced(draw: Draw) -> dict[str, Any]:
    axes = draw.choice((1, 2, 2, 3, 4))
    shape = [draw.choice((3, 8, 33, 128, 257, 1000)) for _ in range(axes)]
    if draw.random() < 0.5:
        shape[draw.randrange(axes)] = draw.choice((4096, 10_000, 70_000))
    while torch.Size(shape).numel() > 1 << 28:
        shape[shape.index(max(shape))] //= 16
    dim = sorted(draw.sample(range(axes), draw.randint(1, axes)))
    return {"operator": draw.choice(tuple(REDUCTIONS)), "shape": shape, "dim": dim, "turned": draw.random() < 0.3,
            "dtype": draw.choice(ANY)}  # fmt: skip


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm, "rms": nn.RMSNorm, "group": lambda width: nn.GroupNorm(4, width), "batch": nn.BatchNorm2d,
    "instance": lambda width: nn.InstanceNorm2d(width, affine=True),
}  # fmt: skip


def normalised(norm: str, shape: Sequence[int], turned: bool) -> nn.Module:
    def run(module: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = module(x.transpose(0, 1) if turned and norm in ("layer", "rms") else x)
        return out

    return Of(run, shape, parts=[NORMS[norm](shape[-1] if norm in ("layer", "rms") else shape[1])])


def draw_normalised(draw: Draw) -> dict[str, Any]:
    norm = draw.choice(tuple(NORMS))
    if norm in ("layer", "rms"):
        shape = [draw.choice((4, 32, 200)), draw.choice((7, 128, 1024)), draw.choice((64, 100, 768, 1024, 4096))]
    else:
        side = draw.choice((1, 7, 28, 56))
        shape = [draw.choice((2, 16, 64)), draw.choice((32, 64, 512)), side, side]
    return {"norm": norm, "shape": shape, "turned": draw.random() < 0.3, "dtype": draw.choice(ANY)}


def looked_up(count: int, rows: int, width: int, how: str) -> nn.Module:
    def run(table: Tensor) -> Tensor:
        indices = labels(table, count)
        columns = indices[:, None].expand(-1, width)
        if how == "scatter":
            return torch.zeros_like(table).scatter_add(0, columns, table[:1].expand(count, -1))
        ways: dict[str, Function] = {
            "embedding": lambda table: F.embedding(indices, table), "select": lambda x: x.index_select(0, indices),
            "gather": lambda table: table.gather(0, columns), "index": lambda table: table[indices],
        }  # fmt: skip
        return ways[how](table)  # type: ignore[no-any-return]

    return Of(run, (rows, width))


def recurrent(
    kind: str, width: int, layers: int, steps: int, batch: int, both: bool, dropout: float, projected: int
) -> nn.Module:
    def run(module: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = module(x)[0]
        return out

    size = {"proj_size": projected} if projected else {}
    module = getattr(nn, kind)(width, width, layers, bidirectional=both, dropout=dropout, **size)
    return Of(run, (steps, batch, width), parts=[module])


def draw_recurrent(draw: Draw) -> dict[str, Any]:
    drawn = {"kind": draw.choice(("LSTM", "LSTM", "GRU", "RNN")), "width": draw.choice((64, 256, 320, 1024)),
             "layers": draw.choice((1, 2, 3)), "steps": draw.choice((10, 64, 256, 600)),
             "batch": draw.choice((8, 32, 128)), "both": draw.random() < 0.3,
             "dtype": draw.choice(ANY)}  # fmt: skip
    deep, projects = drawn["layers"] > 1, drawn["kind"] == "LSTM" and drawn["dtype"] == "fp32"
    drawn["dropout"] = 0.1 if deep and draw.random() < 0.4 else 0.0
    return {**drawn, "projected": 48 if projects and draw.random() < 0.5 else 0}


IMAGES: dict[str, Function] = {
    "max_pool": lambda x: F.max_pool2d(x, 2), "avg_pool": lambda x: F.avg_pool2d(x, 2),
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
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2), "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "sampled": lambda x: F.grid_sample(x, F.affine_grid(x[:, 0, :2, :3], x.shape, align_corners=False)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros_like(x[:, 0], dtype=torch.long)),
    "channel_dropout": lambda x: F.dropout2d(x, 0.2),
}  # fmt: skip


def laid_out(x: Tensor, layout: str) -> Tensor:
    """Return a tensor in another layout, derived from a contiguous one by a differentiable function."""
    if layout == "last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "every other":
        return x.repeat_interleave(2, -1)[..., ::2]
    return x.transpose(-1, -2) if layout == "turned" else x


def image_call(operator: str, shape: Sequence[int], layout: str, expands: bool) -> nn.Module:
    def run(x: Tensor) -> Tensor:
        image: Tensor = IMAGES[operator](laid_out(x, layout))
        return image.sum() if expands else image

    return Called(run, *shape)


def draw_image_call(draw: Draw) -> dict[str, Any]:
    shape = [draw.choice((1, 4)), draw.choice((4, 16, 32)), draw.choice((16, 30, 56)), draw.choice((16, 25, 56))]
    return {"operator": draw.choice(tuple(IMAGES)), "shape": shape, "layout": draw.choice(LAYOUTS),
            "expands": draw.random() < 0.4, "dtype": draw.choice(OFTEN_FP32)}  # fmt: skip


LOSSES: dict[str, Callable[..., Tensor]] = {
    "mse": F.mse_loss, "smooth_l1": F.smooth_l1_loss, "huber": F.huber_loss, "l1": F.l1_loss,
    "bce": lambda x, target, **how: F.binary_cross_entropy(x.sigmoid(), target, **how),
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "weighted_bce_with_logits": lambda x, target,
        **how: F.binary_cross_entropy_with_logits(x, target, pos_weight=target[0] + 1, **how),
    "soft_margin": F.soft_margin_loss, "kl_div": F.kl_div, "poisson": F.poisson_nll_loss,
    "multilabel_soft_margin": F.multilabel_soft_margin_loss,
    "distance": lambda x, target, **_: torch.dist(x, target),
}  # fmt: skip


def loss_call(loss: str, rows: int, columns: int, reduction: str) -> nn.Module:
    return Called(lambda x: LOSSES[loss](x, torch.zeros_like(x), reduction=reduction), rows, columns)


ROWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sort": lambda x, _: x.sort(-1)[0], "sort_columns": lambda x, _: x.sort(0)[0],
    "argsort": lambda x, _: x.gather(-1, x.argsort(-1)), "median": lambda x, _: x.median(),
    "medians": lambda x, _: x.median(-1)[0], "kthvalue": lambda x, _: x.kthvalue(2, -1)[0],
    "mode": lambda x, _: x.mode(-1)[0], "cumsum": lambda x, _: x.cumsum(0), "logsumexp": lambda x, _: x.logsumexp(-1),
    "logsumexp_all": lambda x, _: x.logsumexp((0, 1)), "renorm": lambda x, _: x.renorm(2, 0, 1.0),
    "nonzero": lambda x, _: x * (x > 0).nonzero().sum(), "masked_select": lambda x, _: x.masked_select(x > 0),
    "masked_scatter": lambda x, _: x.masked_scatter(x > 2, x.detach()),
    "masked": lambda x, _: x[x > 0], "looked_up": lambda x, i: x[i],
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
}  # fmt: skip


def rows_call(operator: str, rows: int, columns: int, turned: bool) -> nn.Module:
    def run(x: Tensor) -> Tensor:
        read = x.mT if turned else x
        return ROWS[operator](read, labels(x, len(read) // 2 * 2))

    return Called(run, rows, columns)


def draw_rows_call(draw: Draw) -> dict[str, Any]:
    sizes = draw.choice(((40, 30), (300, 200), (2, 5000), (5000, 2), (20_000, 8), (200, 6000), (100_000, 4)))
    return {"operator": draw.choice(tuple(ROWS)), "rows": sizes[0], "columns": sizes[1],
            "turned": draw.random() < 0.25, "dtype": draw.choice(("fp32", "fp32", "fp32", "bf16"))}  # fmt: skip


L = torch.linalg


def regular(x: Tensor) -> Tensor:
    """Return square matrices that are symmetric and positive."""
    return x[..., : x.shape[-2]] + torch.eye(x.shape[-2], device=x.device)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper rows."""
    return x[: len(x) // 2], x[len(x) // 2 :]


MATRICES: dict[str, Function] = {
    "inverse": lambda x: L.inv(regular(x)), "solve": lambda x: L.solve(regular(x), x), "lu": lambda x: L.lu(regular(x)),
    "lu_solve": lambda x: L.lu_solve(*L.lu_factor(regular(x)), x),
    "det": lambda x: L.det(regular(x)), "slogdet": lambda x: L.slogdet(regular(x))[1],
    "cholesky": lambda x: L.cholesky(regular(x)),
    "cholesky_solve": lambda x: torch.cholesky_solve(x, regular(x)),
    "cholesky_inverse": lambda x: torch.cholesky_inverse(regular(x)),
    "triangular": lambda x: L.solve_triangular(regular(x), x, upper=True),
    "qr": L.qr, "householder": lambda x: torch.geqrf(x.mT)[0], "svd": lambda x: L.svd(x, full_matrices=False),
    "svdvals": L.svdvals, "eigh": lambda x: L.eigh(regular(x)), "eigvalsh": lambda x: L.eigvalsh(regular(x)),
    "eigvals": lambda x: L.eigvals(regular(x)), "pinv": L.pinv, "ldl": lambda x: L.ldl_factor(regular(x))[0],
    "exponential": lambda x: torch.matrix_exp(regular(x)), "rfft": torch.fft.rfft, "fft2": torch.fft.fft2,
}  # fmt: skip
BOUNDED_ROWS: dict[str, Function] = {
    "search": lambda x: torch.searchsorted(x[0].double(), x),
    "bucketize": lambda x: torch.bucketize(x.mT, x[0]), "median": torch.median, "nanmedian": torch.nanmedian,
    "mode": lambda x: x.mode(0)[0], "unique_consecutive": torch.unique_consecutive,
    "unique_rows": lambda x: torch.unique(x, dim=0, return_inverse=True),
    "count_nonzero": lambda x: torch.count_nonzero(x, 0), "ldexp": lambda x: torch.ldexp(x, x.int()),
    "mvlgamma": lambda x: torch.mvlgamma(x + 9, 3), "bernoulli": torch.bernoulli,
    "normal": lambda x: torch.normal(x, x), "cummax": lambda x: x.mT.cummax(0)[0],
    "logcumsumexp": lambda x: x.mT.logcumsumexp(0),
    "segments": lambda x: torch.segment_reduce(x, "sum", lengths=labels(x, len(x)) + 1, unsafe=True),
    "dist": lambda x: torch.dist(x, x[0]), "renorm": lambda x: x.renorm(2, 1, 1.0),
    "distances": lambda x: torch.cdist(*halves(x[:500])),
    "taxicab": lambda x: torch.cdist(*halves(x[:500].mT.contiguous().mT), p=1.0),
    "renormed": lambda x: F.embedding(labels(x, 5000), x.clone(), max_norm=1.0),
    "places": lambda x: torch.nonzero_static(x.mT, size=9),
    "bilinear": lambda x: F.bilinear(x, x, x[: x.shape[1], None].expand(-1, x.shape[1], -1)[:9]),
    "margin": lambda x: F.multi_margin_loss(x.mT.contiguous().mT, labels(x, len(x))),
    "soft_margin": lambda x: F.soft_margin_loss(x, x),
}  # fmt: skip


def bounded_call(operator: str, shape: Sequence[int]) -> nn.Module:
    """Return a function that a parameter's gradient does not pass through: the operator has only a bound."""

    def run(x: Tensor) -> Tensor:
        total = x.sum()
        value = (MATRICES | BOUNDED_ROWS)[operator](x.detach())
        parts = [value] if isinstance(value, Tensor) else value
        return total + sum((part.abs().float().sum() for part in parts), start=torch.zeros((), device=x.device))

    return Called(run, *shape)


def draw_bounded_call(draw: Draw) -> dict[str, Any]:
    operator = draw.choice((*MATRICES, *BOUNDED_ROWS))
    matrices = (
        (20, 30), (300, 400), (1000, 1000), (3, 40, 50), (64, 32, 32), (5, 300, 300), (256, 32, 32), (10_000, 3, 3),
    )  # fmt: skip
    sizes = matrices if operator in MATRICES else ((40, 30), (300, 200), (5000, 20), (20, 5000))
    return {"operator": operator, "shape": list(draw.choice(sizes))}


SIDES = (1, 7, 64, 300, 1024, 4096)
KINDS: dict[str, tuple[Callable[[Draw], dict[str, Any]], Callable[..., nn.Module], int]] = {
    "looked_up": (
        drawn(
            count=(10, 3072, 3073, 5000, 16_384, 100_000), rows=(50, 1000, 32_000), width=(16, 100, 768),
            how=("embedding", "embedding", "embedding", "select", "gather", "index", "scatter"), dtype=ANY,
        ), looked_up, 14,
    ),
    "recurrent": (draw_recurrent, recurrent, 24),
    "normalised": (draw_normalised, normalised, 16),
    "attention": (draw_attention, attention, 40),
    "reduced": (draw_reduced, reduced, 40),
    "product": (
        drawn(rows=SIDES, inner=SIDES, columns=SIDES, batch=(0, 0, 3), form=("plain", "linear", "expanded", "turned"),
              dtype=ANY), product, 16,
    ),
    "image_call": (draw_image_call, image_call, 60),
    "loss_call": (
        drawn(loss=LOSSES, rows=(1, 32, 700), columns=(10, 1000, 9000), reduction=("mean", "mean", "sum", "none"),
              dtype=OFTEN_FP32), loss_call, 30,
    ),
    "rows_call": (draw_rows_call, rows_call, 80),
    "bounded_call": (draw_bounded_call, bounded_call, 150),
}  # fmt: skip
"""How each kind is drawn and built, and the number of calls."""
