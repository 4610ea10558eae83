"""Memory of quantisation-aware training on the CPU."""

from __future__ import annotations

from typing import Any

from ..observers import OPERATOR, fitted, is_per_channel
from ..registry import ALL_RESULTS, Phase, lasting, scratch
from ..sizes import INT64, NATIVE, itemsize

SOURCE = f"{NATIVE}quantized/cpu/fused_obs_fake_quant.cpp"


@lasting("cpu", OPERATOR, source=SOURCE, band=0.0)
def _observers(out: Any, x: Any, is_on: Any, is_used: Any, *rest: Any) -> tuple[tuple[int, int], ...]:
    return fitted(x, rest)


@scratch("cpu", OPERATOR, source=SOURCE, band=0.0)
def _observed(out: Any, x: Any, is_on: Any, is_used: Any, *rest: Any) -> tuple[Phase, ...]:
    """The extremes of each channel before the results; of a whole tensor, two numbers throughout."""
    if is_per_channel(*rest[4:]):
        return (Phase(0, 2 * len(x) * itemsize(x)),)
    return (Phase(ALL_RESULTS, INT64),)
