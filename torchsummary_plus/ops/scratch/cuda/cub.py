"""Temporary storage of CUB's sorts, scans and selections, in bytes.

Source: cub/device/dispatch/dispatch_radix_sort.cuh, dispatch_scan.cuh, dispatch_select_if.cuh, dispatch_reduce.cuh and
agent/single_pass_scan_operators.cuh. Every part is rounded up to 256 bytes; 255 more align the whole. The numbers of
items per tile are those of the policies that CUB tunes by compute capability, read off torch's own requests.
"""

from __future__ import annotations

from ....data.rounding import ceil_div, round_up
from .chips import Chip

ALIGNED = 256
SLACK = ALIGNED - 1
DIGITS = 256
"""Buckets of one pass over 8 bits."""
LEAST = 1
"""Bytes requested if no storage is needed."""
SINGLE_TILE, SINGLE_TILE_OF_FOUR = 2304, 4864
"""Items that one thread block sorts without temporary storage; the second with keys and values of 4 bytes."""
SINGLE_SUM = 4096
"""Items that one thread block adds up without temporary storage."""
FULL_SORT = 45_056
"""Bytes of a sort of keys of 1 or 2 bytes besides copies and the blocks' counters, before compute capability 9.0."""
PADDING = 32
"""Tile states ahead of the first tile."""


def _generation(chip: Chip) -> int:
    """Return the place of a GPU's policy in the tables below: before 8.0, 8.x, or 9.0 and later."""
    return (chip >= (8, 0)) + (chip >= (9, 0))


_PAIRS_OF_FOUR, _PAIRS_OF_EIGHT, _KEYS_OF_EIGHT = (2816, 3072, 5376), (2816, 3840, 4608), (2816, 3840, 5760)
_PAIRS_OF_SHORT, _BOTH_OF_FOUR = {1: 3456, 2: 5632}, (11_776, 6528, 6528)
_KEYS_OF_FOUR, _INTEGERS_OF_FOUR, _KEYS_OF_SHORT = (5888, 8064, 6912), (5888, 8064, 7296), 9728


def _sorted_items(chip: Chip, key: int, value: int, is_float: bool) -> int:
    """Return the items per tile of a sort."""
    generation = _generation(chip)
    if key <= 2:
        return _PAIRS_OF_SHORT[key] if value else _KEYS_OF_SHORT
    if not value:
        return (_KEYS_OF_EIGHT if key > 4 else _KEYS_OF_FOUR if is_float else _INTEGERS_OF_FOUR)[generation]
    return (_BOTH_OF_FOUR if key == value == 4 else _PAIRS_OF_FOUR if key <= 4 else _PAIRS_OF_EIGHT)[generation]


def radix_sort(
    chip: Chip,
    count: int,
    key: int,
    value: int,
    bits: int | None = None,
    overwrites: bool = False,
    is_float: bool = False,
) -> int:
    """Return the storage of a sort of ``count`` keys of ``key`` bytes, with values of ``value`` bytes, 0 for none.

    A sort that ``overwrites`` its input needs no copies. On compute capability 9.0, tiles of 4-byte keys without values
    depend on whether they are floating-point numbers.

    >>> radix_sort(Chip((9, 0)), 1_000_000, 4, 8), radix_sort(Chip((8, 0)), 100_000, 8, 8)
    (12200191, 1644543)

    One pass reads the input and writes the output, so it needs no copies:

    >>> radix_sort(Chip((9, 0)), 20_000, 8, 8, bits=6)
    7679
    """
    both_of_four = key == value == 4
    if count <= (SINGLE_TILE_OF_FOUR if both_of_four else SINGLE_TILE):
        return LEAST
    passes = ceil_div(bits or 8 * key, 8)
    copies = round_up(count * key, ALIGNED) + round_up(count * value, ALIGNED)
    generation = _generation(chip)
    if key <= 2 and generation < 2:
        counters = chip.multiprocessors * chip.threads * 10 * key
        return (0 if overwrites else copies) + counters + FULL_SORT + SLACK
    tiles = ceil_div(count, _sorted_items(chip, key, value, is_float))
    copies = 0 if overwrites or passes == 1 else copies
    return SLACK + passes * DIGITS * 8 + ALIGNED + tiles * DIGITS * 4 + copies


def _states(count: int, items: int, state: int) -> int:
    """Return the storage of a pass over tiles, with a state for each."""
    return 2 * ALIGNED - 1 + round_up((ceil_div(count, items) + PADDING) * state, ALIGNED)


def scan(count: int) -> int:
    """Return the storage of a running sum of 4-byte numbers.

    >>> scan(1_000_000)
    5119
    """
    return _states(count, 1920, 8)


def long_scan(count: int) -> int:
    """Return the storage of a running sum of 8-byte numbers.

    >>> long_scan(100_000)
    2815
    """
    return _states(count, 896, 16)


def half_scan(count: int) -> int:
    """Return the storage of a running sum of 2-byte numbers.

    >>> half_scan(1_000_000)
    3327
    """
    return _states(count, 7680, 16)


def scan_by_key(chip: Chip, count: int) -> int:
    """Return the storage of running sums of 4-byte numbers, a new one for each key.

    >>> scan_by_key(Chip((8, 0)), 20_000)
    1279
    """
    items = 4032 if chip >= (9, 0) else 3840 if tuple(chip) == (8, 0) else 2304
    return _states(count, items, 16)


def select(chip: Chip, count: int) -> int:
    """Return the storage of finding the places of non-zero elements.

    >>> select(Chip((9, 0)), 10_000_000)
    19711
    """
    items = 4224 if chip >= (9, 0) else 2304 if tuple(chip) == (8, 0) else 640
    return _states(count, items, 8)


def unique_by_key(chip: Chip, count: int, key: int) -> int:
    """Return the storage of finding where runs of equal keys of 4 or 8 bytes start.

    >>> unique_by_key(Chip((9, 0)), 1_000_000, 8), unique_by_key(Chip((7, 5)), 100_000, 4)
    (4351, 3327)
    """
    later, ampere, others = (7168, 2816, 704) if key == 4 else (4928, 1344, 320)
    items = later if chip >= (9, 0) else ampere if tuple(chip) == (8, 0) else others
    return _states(count, items, 16)


def count_sum(chip: Chip, count: int) -> int:
    """Return the storage of counting non-zero elements: a sum for each of five blocks for each resident block.

    >>> count_sum(Chip((8, 0)), 5000)
    17663
    """
    if count <= SINGLE_SUM:
        return LEAST
    return SLACK + round_up(chip.multiprocessors * (chip.threads // DIGITS) * 5 * 4, ALIGNED)
