"""Align sequences of layers so that matching layers share a row: Needleman and Wunsch's global alignment (1970)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

GAP = 10  # The cost of an unmatched layer. Two layers share a row if that costs less than two gaps.

OTHER_TYPE = 14
"""The cost of a type swap: same outputs, both with or both without parameters (an activation replaced by another)."""

UNLIKE = 2 * GAP + 1  # The cost of any other difference in type: more than two gaps, so such layers never share a row.

OTHER_OUTPUTS, OTHER_INPUTS, OTHER_PARAMS, OTHER_DETAILS, OTHER_PATH = 4, 1, 2, 1, 1
"""The costs of differences within a type. Their sum is below one gap, so a changed layer is never read as inserted."""

FAR = 1 << 60  # More than the cost of any path.

BOTH, LEFT, RIGHT = range(3)
"""The steps of a path: a row with both layers, with the left one only, with the right one only."""

REACH, CELLS = 16, 1_000_000
"""How far from its diagonal a longer table is filled at least, and how many cells are (about half a second)."""

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


def align(sequences: Sequence[Sequence[ComparedLayer]]) -> list[tuple[int | None, ...]]:
    """Return the rows of the alignment: for each sequence, the index of its layer, or None.

    Each layer is in one row, in the order of its sequence. Further sequences are aligned one by one with the first
    layer of each row so far. Between two shared rows, layers of earlier sequences come first.

    >>> relu, gelu = ComparedLayer("ReLU", "[8]"), ComparedLayer("GELU", "[8]")
    >>> fc = ComparedLayer("Linear", "[8]", num_params=72)
    >>> align([[fc, relu, fc], [fc, gelu, fc, fc]])
    [(0, 0), (1, 1), (2, 2), (None, 3)]
    """
    first, *others = sequences
    rows: list[tuple[int | None, ...]] = [(place,) for place in range(len(first))]
    left = list(first)
    for count, right in enumerate(others, 1):
        swapped = count == 1 and list(right) < left  # Ties break the same way in both directions.
        pairs = [(i, j) for j, i in _pairs(right, left)] if swapped else _pairs(left, right)
        shared = accumulate(None not in pair for pair in pairs)  # How many pairs up to this one are full.
        in_order = sorted(zip(shared, pairs), key=lambda item: (item[0], None in item[1], item[1][0] is None))
        rows = [(*((None,) * count if i is None else rows[i]), j) for _, (i, j) in in_order]
        left = [next(layers[at] for layers, at in zip(sequences, row) if at is not None) for row in rows]
    return rows


def _pairs(left: Sequence[ComparedLayer], right: Sequence[ComparedLayer]) -> list[Pair]:
    """Return the cheapest pairs; of long sequences, the cheapest that stay near the diagonal of the table of costs.

    Ties prefer a gap, so that additional repeats of a layer are added at the end.
    """
    n, m = len(left), len(right)
    reach = abs(n - m) + max(REACH, CELLS // (2 * n + 1))
    costs = cache(lambda kind: [_cost(kind, layer.kind) + OTHER_PATH for layer in right])
    paths = [layer.path for layer in right]
    above, moves = [j * GAP for j in range(m + 1)], [bytearray([RIGHT]) * (m + 1)]
    for i, layer in enumerate(left, 1):
        here, steps = [FAR] * (m + 1), bytearray([LEFT]) * (m + 1)
        here[0] = i * GAP
        own, path = costs(layer.kind), layer.path
        for j in range(max(1, i - reach), min(m, i + reach) + 1):
            best, step = above[j - 1] + own[j - 1] - OTHER_PATH * (paths[j - 1] == path), BOTH
            if above[j] + GAP <= best:
                best, step = above[j] + GAP, LEFT
            if here[j - 1] + GAP <= best:
                best, step = here[j - 1] + GAP, RIGHT
            here[j], steps[j] = best, step
        above = here
        moves.append(steps)
    i, j, pairs = n, m, list[Pair]()
    while i or j:
        step = moves[i][j]
        i, j = i - (step != RIGHT), j - (step != LEFT)
        pairs.append((None if step == RIGHT else i, None if step == LEFT else j))
    return pairs[::-1]


def _cost(a: Kind, b: Kind) -> int:
    (a_type, a_outputs, _, a_params, _), (b_type, b_outputs, _, b_params, _) = a, b
    if a_type != b_type:
        related = len(a_type) > 3 < len(b_type) and (a_type in b_type or b_type in a_type)  # Linear, QuantizedLinear
        alike = a_outputs == b_outputs and (related or bool(a_params) == bool(b_params))
        return OTHER_TYPE if alike else UNLIKE
    costs = (0, OTHER_OUTPUTS, OTHER_INPUTS, OTHER_PARAMS, OTHER_DETAILS)
    return sum(cost for cost, own, other in zip(costs, a, b) if own != other)
