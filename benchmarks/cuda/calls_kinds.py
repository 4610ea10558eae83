"""The single operators of ``benchmarks.cuda.calls``: a builder for each kind, and its random arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cuda.calls_operators import OPERATORS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Draw = random.Random


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
        "dtype": draw.choice(tuple(DTYPES)),
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


def draw_product(draw: Draw) -> dict[str, Any]:
    rows, inner, columns = (draw.choice((1, 7, 64, 300, 1024, 4096)) for _ in range(3))
    forms = ("plain", "linear", "expanded", "turned")
    return {"rows": rows, "inner": inner, "columns": columns, "batch": draw.choice((0, 0, 3)),
            "form": draw.choice(forms), "dtype": draw.choice(tuple(DTYPES))}  # fmt: skip


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "std": torch.std,
    "norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
    "logsumexp": torch.logsumexp,
    "softmax": lambda x, dim: torch.softmax(x, dim[0]),
    "log_softmax": lambda x, dim: torch.log_softmax(x, dim[0]),
    "cumsum": lambda x, dim: torch.cumsum(x, dim[0]),
    "max": lambda x, dim: torch.max(x, dim[0])[0],
    "topk": lambda x, dim: torch.topk(x, 3, dim[0])[0],
    "sort": lambda x, dim: torch.sort(x, dim[0])[0],
}


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
            "dtype": draw.choice(tuple(DTYPES))}  # fmt: skip


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "group": lambda width: nn.GroupNorm(4, width),
    "batch": nn.BatchNorm2d,
    "instance": lambda width: nn.InstanceNorm2d(width, affine=True),
}


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
    return {"norm": norm, "shape": shape, "turned": draw.random() < 0.3, "dtype": draw.choice(tuple(DTYPES))}


def looked_up(count: int, rows: int, width: int, how: str) -> nn.Module:
    def run(table: Tensor) -> Tensor:
        indices = torch.zeros(count, dtype=torch.long, device=table.device)
        if how == "embedding":
            return F.embedding(indices, table)
        if how == "select":
            return table.index_select(0, indices)
        if how == "gather":
            return table.gather(0, indices[:, None].expand(-1, width))
        if how == "scatter":
            return torch.zeros_like(table).scatter_add(
                0, indices[:, None].expand(-1, width), table[:1].expand(count, -1)
            )
        return table[indices]

    return Of(run, (rows, width))


def draw_looked_up(draw: Draw) -> dict[str, Any]:
    hows = ("embedding", "embedding", "embedding", "select", "gather", "index", "scatter")
    return {
        "count": draw.choice((10, 3072, 3073, 5000, 16_384, 100_000)),
        "rows": draw.choice((50, 1000, 32_000)),
        "width": draw.choice((16, 100, 768)),
        "how": draw.choice(hows),
        "dtype": draw.choice(tuple(DTYPES)),
    }


def lost(loss: str, batch: int, classes: int) -> nn.Module:
    def run(x: Tensor) -> Tensor:
        if loss == "cross_entropy":
            return F.cross_entropy(x, torch.zeros(batch, dtype=torch.long, device=x.device))
        if loss == "smoothed":
            targets = torch.zeros(batch, dtype=torch.long, device=x.device)
            return F.cross_entropy(x, targets, label_smoothing=0.1)
        return getattr(F, loss)(x, torch.zeros_like(x))  # type: ignore[no-any-return]

    return Of(run, (batch, classes))


def draw_lost(draw: Draw) -> dict[str, Any]:
    losses = ("cross_entropy", "smoothed", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits", "smooth_l1_loss")
    return {"loss": draw.choice(losses), "batch": draw.choice((1, 32, 4096)),
            "classes": draw.choice((10, 1000, 32_000)), "dtype": draw.choice(tuple(DTYPES))}  # fmt: skip


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
             "dtype": draw.choice(tuple(DTYPES))}  # fmt: skip
    deep, projects = drawn["layers"] > 1, drawn["kind"] == "LSTM" and drawn["dtype"] == "fp32"
    drawn["dropout"] = 0.1 if deep and draw.random() < 0.4 else 0.0
    return {**drawn, "projected": 48 if projects and draw.random() < 0.5 else 0}


def image(operator: str, shape: Sequence[int]) -> nn.Module:
    def run(x: Tensor) -> Tensor:
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "max": lambda x: F.max_pool2d(x, 2),
            "average": lambda x: F.avg_pool2d(x, 2),
            "global": lambda x: F.adaptive_avg_pool2d(x, 1),
            "adaptive": lambda x: F.adaptive_avg_pool2d(x, 5),
            "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
            "bilinear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
            "pad": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
            "dropout": lambda x: F.dropout(x, 0.1),
            "gelu": F.gelu,
            "silu": F.silu,
            "leaky": lambda x: F.leaky_relu(x, 0.1),
        }
        return functions[operator](x)

    return Of(run, shape)


def draw_image(draw: Draw) -> dict[str, Any]:
    pools = ("max", "average", "global", "adaptive", "nearest", "bilinear", "pad")
    side = draw.choice((8, 28, 57, 112))
    shape = [draw.choice((2, 16)), draw.choice((3, 64, 256)), side, side]
    operator = draw.choice((*pools, "dropout", "gelu", "silu", "leaky"))
    return {"operator": operator, "shape": shape, "dtype": draw.choice(tuple(DTYPES))}


KINDS: dict[str, tuple[Callable[[Draw], dict[str, Any]], Callable[..., nn.Module], int]] = {
    "looked_up": (draw_looked_up, looked_up, 14),
    "recurrent": (draw_recurrent, recurrent, 24),
    "normalised": (draw_normalised, normalised, 16),
    "attention": (draw_attention, attention, 40),
    "reduced": (draw_reduced, reduced, 40),
    "product": (draw_product, product, 16),
    "lost": (draw_lost, lost, 10),
    "image": (draw_image, image, 12),
    **OPERATORS,
}
"""How each kind is drawn and built, and the number of calls."""
