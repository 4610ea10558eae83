"""The conventions of the counters behind published multiply-adds, and which of them explain a difference.

timm's figures come from fvcore, which adds normalisation layers (2 for each element that a BatchNorm reads, 5 for a
LayerNorm or GroupNorm), and has no formula for fused attention, RNNs, and convolutions with ``padding="same"``. The
multiply-adds of a detector's heads depend on the boxes it finds: up to 1000 with random weights, few with trained ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from math import prod

from torch import nn

from torchsummary_plus import ModelSummary
from torchsummary_plus.data.records import tensors
from torchsummary_plus.table.rows import Row

NORM_FLOPS = {"BatchNorm": 2, "LayerNorm": 5, "GroupNorm": 5}
OBJECT_HEADS = ("mask_head", "mask_predictor", "keypoint_head", "keypoint_predictor")
WEIGHT_NORM_FLOPS = 5
"""Per weight of a convolution that standardises its weights with a batch norm at every call."""


def habit(matches: Callable[[int], bool], model: nn.Module, result: ModelSummary) -> str:
    """Return the fewest conventions with which our count becomes one that ``matches``; "" if there are none."""
    total = result.total_mult_adds
    changes = {name: change for name, change in habits(model, result).items() if change}
    for number in range(1, len(changes) + 1):
        for names in combinations(changes, number):
            if matches(total + sum(changes[name] for name in names)):
                return "published " + " and ".join(names)
    return ""


def habits(model: nn.Module, result: ModelSummary) -> dict[str, int]:
    """Return by how much each convention changes the multiply-adds of this summary."""
    rows = result.rows

    def of_class(*names: str) -> int:
        return sum(row.own_mult_adds for row in rows if row.class_name in names)

    def of_attribute(*names: str) -> int:
        return sum(row.mult_adds for row in rows if row.var_name in names)

    modules = dict(model.named_modules())
    padded = (row for row in rows if isinstance(getattr(modules.get(row.path), "padding", None), str))
    return {
        "adds normalisation": sum(map(norm_flops, rows)),
        "misses fused attention": -of_class("scaled_dot_product_attention"),
        "misses RNNs": -of_class("LSTM", "GRU", "RNN"),
        'misses padding="same"': -sum(row.own_mult_adds for row in padded),
        "finds nothing in its image": -of_attribute("box_head", "box_predictor"),
        **{f"finds {number} objects in its image": change for number, change in enumerate(object_changes(result))},
    }


def object_changes(result: ModelSummary) -> Iterator[int]:
    """Yield the change for 0, 1, 2, ... objects, each of which costs a pass through the mask or keypoint heads."""
    heads = [row for row in result.rows if row.var_name in OBJECT_HEADS]
    for number in range(3):
        yield sum(row.mult_adds * number // next(tensors(row.outputs)).shape[0] - row.mult_adds for row in heads)


def norm_flops(row: Row) -> int:
    """Return what fvcore adds for a call of a normalisation layer."""
    tensor = next(tensors(row.inputs), None)
    if tensor is None or row.kind != "module":
        return 0
    if "StdConv" in row.class_name:
        return WEIGHT_NORM_FLOPS * row.num_params
    return prod(tensor.shape) * next((flops for name, flops in NORM_FLOPS.items() if name in row.class_name), 0)
