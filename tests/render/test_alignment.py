"""Alignments of layers: of least cost, each layer once and in order, the same in both directions."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchsummary_plus.render import tables as alignment
from torchsummary_plus.render.tables import GAP, OTHER_PATH, UNLIKE, ComparedLayer, align

Rows = list[tuple[int | None, ...]]

layers = st.builds(
    ComparedLayer,
    st.sampled_from(["Conv2d", "ReLU", "Linear"]),
    st.sampled_from(["[8]", "[16]"]),
    st.sampled_from(["[8]", "[16]"]),
    st.integers(0, 1),
    st.just(""),
    st.sampled_from(["", "a", "b", "c"]),
)
sequences = st.lists(layers, max_size=24)


def pair_cost(a: ComparedLayer, b: ComparedLayer) -> int:
    """What it costs that two layers share a row, said once more in words: by what differs, never more than allowed."""
    path = OTHER_PATH * (a.path != b.path)
    if a.type != b.type:
        like = a.outputs == b.outputs and (a.num_params > 0) == (b.num_params > 0)
        return path + (alignment.OTHER_TYPE if like else UNLIKE)
    return (
        path
        + (a.outputs != b.outputs) * alignment.OTHER_OUTPUTS
        + (a.inputs != b.inputs) * alignment.OTHER_INPUTS
        + (a.num_params != b.num_params) * alignment.OTHER_PARAMS
        + (a.details != b.details) * alignment.OTHER_DETAILS
    )


def cost(a: Sequence[ComparedLayer], b: Sequence[ComparedLayer], rows: Rows) -> int:
    return sum(GAP if i is None or j is None else pair_cost(a[i], b[j]) for i, j in rows)


def least_cost(a: Sequence[ComparedLayer], b: Sequence[ComparedLayer]) -> int:
    """Needleman and Wunsch's table in full, without a band or a path."""
    above = [GAP * j for j in range(len(b) + 1)]
    for i, layer in enumerate(a, 1):
        here = [GAP * i]
        for j, other in enumerate(b, 1):
            here.append(min(above[j - 1] + pair_cost(layer, other), above[j] + GAP, here[-1] + GAP))
        above = here
    return above[-1]


def assert_each_once_and_in_order(rows: Rows, models: Sequence[Sequence[ComparedLayer]]) -> None:
    for place, sequence in enumerate(models):
        assert [row[place] for row in rows if row[place] is not None] == list(range(len(sequence)))
    assert all(len(row) == len(models) and any(place is not None for place in row) for row in rows)


@given(sequences, sequences)
def test_no_alignment_is_cheaper_and_each_layer_is_there_once(a: list[ComparedLayer], b: list[ComparedLayer]) -> None:
    rows = align([a, b])
    assert_each_once_and_in_order(rows, [a, b])
    assert cost(a, b, rows) == least_cost(a, b)


@given(sequences, sequences)
def test_swapped_sequences_give_the_mirrored_pairs(a: list[ComparedLayer], b: list[ComparedLayer]) -> None:
    assert {(j, i) for i, j in align([a, b])} == set(align([b, a]))


@given(st.lists(sequences, min_size=1, max_size=10))
def test_up_to_ten_sequences_keep_each_layer_once_and_in_order(models: list[list[ComparedLayer]]) -> None:
    rows = align(models)
    assert_each_once_and_in_order(rows, models)
    assert [row[:2] for row in rows if len(models) > 1 and any(place is not None for place in row[:2])] == (
        align(models[:2]) if len(models) > 1 else []
    )


@given(sequences, sequences)
def test_what_is_removed_stands_before_what_is_added(a: list[ComparedLayer], b: list[ComparedLayer]) -> None:
    rows = align([a, b])
    assert not any(first[0] is None and second[1] is None for first, second in pairwise(rows))


def test_sequences_too_long_for_the_whole_table_are_aligned_near_its_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    a = [ComparedLayer("Conv2d", f"[{n}]", path=f"{n}") for n in range(300)]
    b = [ComparedLayer("ReLU", f"[{n + 1000}]", path=f"{n}") for n in range(290)]
    monkeypatch.setattr(alignment, "CELLS", 0)
    assert_each_once_and_in_order(align([a, b]), [a, b])
    assert align([a, a[7:200] + a[210:]]) == [
        *((n, None) for n in range(7)),
        *((n, n - 7) for n in range(7, 200)),
        *((n, None) for n in range(200, 210)),
        *((n, n - 17) for n in range(210, 300)),
    ]


def test_like_stands_beside_like() -> None:
    """A changed width stays one row; an exchanged activation too; another layer does not."""
    conv, wide, relu, gelu, fc = (
        ComparedLayer("Conv2d", "[8, 4, 4]", num_params=80),
        ComparedLayer("Conv2d", "[16, 4, 4]", num_params=160),
        ComparedLayer("ReLU", "[8, 4, 4]"),
        ComparedLayer("GELU", "[8, 4, 4]"),
        ComparedLayer("Linear", "[10]", num_params=90),
    )
    assert align([[conv, relu, fc], [wide, gelu, fc]]) == [(0, 0), (1, 1), (2, 2)]
    assert align([[conv, fc], [conv, relu]]) == [(0, 0), (1, None), (None, 1)]
