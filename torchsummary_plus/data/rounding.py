"""Integer rounding, as kernels use it to size blocks and buffers."""

from __future__ import annotations

from .units import MIB

MIN_BLOCK = 512
"""Every block of CUDA's allocator is a multiple of this, unless ``roundup_power2_divisions`` says otherwise."""

SMALL_REQUEST = MIB  # Largest rounded request in bytes that the allocator's pool of small blocks serves.


def ceil_div(number: int, step: int) -> int:
    """Return a number divided by a step, rounded up.

    >>> ceil_div(9, 4), ceil_div(8, 4)
    (3, 2)
    """
    return -(-number // step)


def round_up(number: int, step: int) -> int:
    """Return the smallest multiple of a step that is at least a number.

    >>> round_up(9, 4), round_up(8, 4)
    (12, 8)
    """
    return ceil_div(number, step) * step


def power_of_two_below(number: int) -> int:
    """Return the largest power of 2 up to a number, 1 for 0.

    >>> power_of_two_below(9), power_of_two_below(8), power_of_two_below(0)
    (8, 8, 1)
    """
    return 1 << max(0, number.bit_length() - 1)
