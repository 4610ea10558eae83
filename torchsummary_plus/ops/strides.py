"""What strides say of a tensor's layout, without torch: the subprocess that queries cuDNN has none."""

from __future__ import annotations

from collections.abc import Sequence


def suggests_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides suggest channels-last; not if they fit row-major order as well.

    Source: c10/core/MemoryFormat.h, ``is_channels_last_strides_2d`` and ``_3d``.
    """
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True
