"""Quantisation-aware training: observers that a kernel fits to the number of channels, on any device."""

from __future__ import annotations

from typing import Any

from ...data.rounding import round_up
from .registry import lasting
from .sizes import NATIVE, elements, itemsize, nbytes

OPERATOR = "aten::_fused_moving_avg_obs_fq_helper"


def is_per_channel(*settings: Any) -> bool:
    """Whether the settings from the averaging constant on ask for a scale per channel, which is the first axis."""
    return bool(settings[4:5] and settings[4])


def fitted(x: Any, rest: tuple[Any, ...], block: int = 1) -> tuple[tuple[int, int], ...]:
    """Return the storages that the first call enlarges, and by how many bytes, in blocks of so many.

    It resizes the least and largest values, scales and zero points to one of each per channel. ``rest`` are the
    operator's arguments after the two switches.
    """
    buffers, settings = rest[:4], rest[4:]
    if not is_per_channel(*settings) or elements(buffers[0]):
        return ()
    growth = [round_up(len(x) * itemsize(each), block) - round_up(nbytes(each), block) for each in buffers]
    return tuple((each.untyped_storage()._cdata, more) for each, more in zip(buffers, growth) if more)


@lasting("cpu", OPERATOR, source=f"{NATIVE}quantized/cpu/fused_obs_fake_quant.cpp", band=0.0)
def _observers(out: Any, x: Any, is_on: Any, is_used: Any, *rest: Any) -> tuple[tuple[int, int], ...]:
    return fitted(x, rest)
