"""Align sequences of layers so that matching layers share a row: a minimum-cost global alignment.

Two sequences are aligned by Needleman and Wunsch's algorithm (1970), in a band that is widened until no path outside it
can be cheaper (Ukkonen, 1985). Further sequences are aligned one by one with the rows so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, takewhile
from typing import NamedTuple

GAP = 10  # The cost of an unmatched layer. Two layers share a row if that costs less than two gaps.

OTHER_TYPE = 14
"""The cost of a type swap: same outputs, both with or both without parameters (an activation replaced by another)."""

UNLIKE = 2 * GAP + 1  # The cost of any other difference in type: more than two gaps, so such layers never share a row.

OTHER_OUTPUTS, OTHER_INPUTS, OTHER_PARAMS, OTHER_DETAILS, OTHER_PATH = 4, 1, 2, 1, 1
"""The costs of differences within a type. Their sum is below one gap, so a changed layer is never read as inserted."""

REACH = 16  # How far the initial band reaches from the diagonal.
FAR = 1 << 60  # More than the cost of any path.

BOTH, LEFT, RIGHT = range(3)
"""The steps of a path: a row with both layers, with the left one only, with the right one only."""

CELLS = 4_000_000
"""Maximum number of cells in a band (about a second): beyond it, the alignment is the cheapest within the band."""

Pair = tuple["int | None", "int | None"]

Kind = tuple[str, str, str, int, str]


@dataclass(frozen=True, slots=True, order=True)
class ComparedLayer:
    """The properties that layers are compared by: type, shapes, parameters, kernel and groups; the path breaks ties."""

    type: str
    outputs: str
    inputs: str = ""
    num_params: int = 0
    details: str = ""
    path: str = ""

    @property
    def kind(self) -> Kind:
        """Everything but the path."""
        return self.type, self.outputs, self.inputs, self.num_params, self.details


class _Item(NamedTuple):
    """The layers of a row: their kinds and paths."""

    kinds: frozenset[Kind]
    paths: frozenset[str]


def align(sequences: Sequence[Sequence[ComparedLayer]]) -> list[tuple[int | None, ...]]:
    """Return the rows of the alignment: for each sequence, the index of its layer, or None.

    Each layer is in one row, in the order of its sequence. Between two shared rows, layers of earlier sequences come
    first.

    >>> relu, gelu = ComparedLayer("ReLU", "[8]"), ComparedLayer("GELU", "[8]")
    >>> fc = ComparedLayer("Linear", "[8]", num_params=72)
    >>> align([[fc, relu, fc], [fc, gelu, fc, fc]])
    [(0, 0), (1, 1), (None, 2), (2, 3)]
    """
    first, *others = sequences
    rows: list[tuple[int | None, ...]] = [(place,) for place in range(len(first))]
    for count, sequence in enumerate(others, 1):
        items = [_item([sequences[s][p] for s, p in enumerate(row) if p is not None]) for row in rows]
        right = [_item([layer]) for layer in sequence]
        swapped = count == 1 and list(sequence) < list(first)  # Ties break the same way in both directions.
        pairs = [(i, j) for j, i in _pairs(right, items)] if swapped else _pairs(items, right)
        shared = accumulate(None not in pair for pair in pairs)  # How many pairs up to this one are full.
        in_order = sorted(zip(shared, pairs), key=lambda item: (item[0], None in item[1], item[1][0] is None))
        rows = [(*((None,) * count if i is None else rows[i]), j) for _, (i, j) in in_order]
    return rows


def _item(layers: Sequence[ComparedLayer]) -> _Item:
    return _Item(frozenset([layer.kind for layer in layers]), frozenset([layer.path for layer in layers]))


def _pairs(left: Sequence[_Item], right: Sequence[_Item]) -> list[Pair]:
    """Align two sequences. Free matches at both ends are paired first, since nothing can be cheaper."""
    start, end = _alike(left, right), _alike(left[::-1], right[::-1])
    end = min(end, min(len(left), len(right)) - start)
    inner = _inner(left[start : len(left) - end], right[start : len(right) - end])
    return [
        *((place, place) for place in range(start)),
        *((i if i is None else i + start, j if j is None else j + start) for i, j in inner),
        *((len(left) - place, len(right) - place) for place in range(end, 0, -1)),
    ]


def _alike(left: Sequence[_Item], right: Sequence[_Item]) -> int:
    """Return how many items at the start cost nothing in one row with their counterparts."""
    free = (not (a.kinds.isdisjoint(b.kinds) or a.paths.isdisjoint(b.paths)) for a, b in zip(left, right))
    return sum(1 for _ in takewhile(bool, free))


def _inner(left: Sequence[_Item], right: Sequence[_Item]) -> list[Pair]:
    """Return the cheapest pairs, as far as they are within the largest band, which is widened while it may matter."""
    n, m, reach, costs = len(left), len(right), REACH, _costs(left, right)
    while True:
        low, high = min(0, m - n) - reach, max(0, m - n) + reach
        total, moves = _band(costs, n, m, low, high)
        outside = GAP * (abs(m - n) + 2 * (reach + 1))
        if total <= outside or reach >= max(n, m) or n * (abs(m - n) + 8 * reach) > CELLS:
            break
        reach *= 4
    i, j, pairs = n, m, list[Pair]()
    while i or j:
        step = moves[i][j - i - low]
        i, j = i - (step != RIGHT), j - (step != LEFT)
        pairs.append((None if step == RIGHT else i, None if step == LEFT else j))
    return pairs[::-1]


Costs = Callable[[int, int, int], list[int]]
"""The costs of a left item in one row with each of the right items between two places."""


def _costs(left: Sequence[_Item], right: Sequence[_Item]) -> Costs:
    kinds = {kinds: number for number, kinds in enumerate(dict.fromkeys(item.kinds for item in right))}
    kind_of = [kinds[item.kinds] for item in right]
    places: dict[str, list[int]] = {}
    for place, item in enumerate(right):
        for path in item.paths:
            places.setdefault(path, []).append(place)

    @cache
    def by_kind(own: frozenset[Kind]) -> list[int]:
        return [min(_cost(a, b) for a in own for b in kind) + OTHER_PATH for kind in kinds]

    def row(i: int, start: int, stop: int) -> list[int]:
        table = by_kind(left[i].kinds)
        costs = [table[kind] for kind in kind_of[start:stop]]
        for place in {place for path in left[i].paths for place in places.get(path, ())}:
            if start <= place < stop:
                costs[place - start] -= OTHER_PATH
        return costs

    return row


def _cost(a: Kind, b: Kind) -> int:
    (a_type, a_outputs, _, a_params, _), (b_type, b_outputs, _, b_params, _) = a, b
    if a_type != b_type:
        related = len(a_type) > 3 < len(b_type) and (a_type in b_type or b_type in a_type)  # Linear, QuantizedLinear
        alike = a_outputs == b_outputs and (related or bool(a_params) == bool(b_params))
        return OTHER_TYPE if alike else UNLIKE
    costs = (0, OTHER_OUTPUTS, OTHER_INPUTS, OTHER_PARAMS, OTHER_DETAILS)
    return sum(cost for cost, own, other in zip(costs, a, b) if own != other)


def _band(costs: Costs, n: int, m: int, low: int, high: int) -> tuple[int, list[bytearray]]:
    """Return the least cost of a path between two diagonals and, row by row, the last step of the best to each cell.

    Ties prefer a gap, so that additional repeats of a layer are added at the end. The cell of ``j`` items on the right
    is at ``j - i - low`` in row ``i``.
    """
    width = high - low + 1
    above = [FAR] * (width + 1)
    above[-low : min(m, high) - low + 1] = [j * GAP for j in range(min(m, high) + 1)]
    moves = [bytearray([RIGHT]) * width]
    for i in range(1, n + 1):
        start, stop = max(1, i + low), min(m, i + high)
        here, steps, beside = [FAR] * (width + 1), bytearray(width), FAR
        if i + low <= 0:
            here[-i - low] = beside = i * GAP
            steps[-i - low] = LEFT
        place = start - i - low
        for cost, diagonal, up in zip(costs(i - 1, start - 1, stop), above[place:], above[place + 1 :]):
            best, step = diagonal + cost, BOTH
            if up + GAP <= best:
                best, step = up + GAP, LEFT
            if beside + GAP <= best:
                best, step = beside + GAP, RIGHT
            here[place] = beside = best
            steps[place] = step
            place += 1
        above = here
        moves.append(steps)
    return above[m - n - low], moves
