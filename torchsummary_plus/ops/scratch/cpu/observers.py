"""Memory of quantisation-aware training on the CPU: observers that the kernel fits to the number of channels."""

from __future__ import annotations

from typing import Any

from ..registry import ALL_RESULTS, Phase, lasting, scratch
from ..sizes import INT64, NATIVE, elements, itemsize, nbytes

OPERATOR = "aten::_fused_moving_avg_obs_fq_helper"
SOURCE = f"{NATIVE}quantized/cpu/fused_obs_fake_quant.cpp"


def _is_per_channel(*settings: Any) -> bool:
    """Whether the settings from the averaging constant on ask for a scale per channel, which is the first axis."""
    return bool(settings[4:5] and settings[4])


@lasting("cpu", OPERATOR, source=SOURCE, band=0.0)
def _observers(out: Any, x: Any, is_on: Any, is_used: Any, *rest: Any) -> tuple[tuple[int, int], ...]:
    """The first call resizes the least and largest values, scales and zero points to one of each per channel."""
    buffers, settings = rest[:4], rest[4:]
    if not _is_per_channel(*settings) or elements(buffers[0]):
        return ()
    return tuple((each.untyped_storage()._cdata, len(x) * itemsize(each) - nbytes(each)) for each in buffers)


@scratch("cpu", OPERATOR, source=SOURCE, band=0.0)
def _observed(out: Any, x: Any, is_on: Any, is_used: Any, *rest: Any) -> tuple[Phase, ...]:
    """The extremes of each channel before the results; of a whole tensor, two numbers throughout."""
    if _is_per_channel(*rest[4:]):
        return (Phase(0, 2 * len(x) * itemsize(x)),)
    return (Phase(ALL_RESULTS, INT64),)
