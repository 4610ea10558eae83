"""torch's own counters as an oracle for parameters and multiply-adds."""

from __future__ import annotations

import copy
from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

MISSING = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._grouped_mm: lambda a, b, *_, **__: 2 * prod(a) * b[-1],
    torch.ops.aten.mv: lambda a, *_, **__: 2 * prod(a),
}
"""Formulas that torch's flop counter lacks: fused attention on a CPU, mixtures of experts, a matrix times a vector."""

SEED = 0
"""Set before each forward, because random draws may decide how much it computes."""


def parameters(model: nn.Module) -> int:
    """Return the number of elements of the distinct parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def multiply_adds(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, str]:
    """Return half of the flops that torch's counter sees in a forward, and where it ran: on "meta" or for "real"."""
    try:
        twin = copy.deepcopy(model).to("meta")
        data = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        return _count(twin, *data), "meta"
    except Exception:
        return _count(model, args, kwargs), "real"


def _count(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Count one forward, without the fast paths that the counter cannot look into."""
    counter = FlopCounterMode(display=False, custom_mapping=MISSING)
    counter.mod_tracker = _NoTracker()  # type: ignore[assignment]  # torch's fails under no_grad where a leaf parameter is an argument
    torch.manual_seed(SEED)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), counter:
            model(*args, **kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops()) // 2


class _NoTracker:
    """A module tracker that attributes all flops to one place."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
