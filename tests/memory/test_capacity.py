"""The search for the largest batch, on logs whose bytes grow in many ways with the batch."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchsummary_plus import max_batch_size
from torchsummary_plus.data.memory_records import MemoryLog, Moment, StorageSpec
from torchsummary_plus.memory.capacity import LARGEST_BATCH, Search, at_batch, largest, scales

Law = Callable[[int], list[int]]
"""The bytes that are live together, by the batch."""


def log_of(sizes: list[int]) -> MemoryLog:
    """A log in which all these storages are live at once."""
    allocated = [(0, number, size) for number, size in enumerate(sizes)]
    freed = [(0, number, 0) for number in range(len(sizes))]
    storages = tuple(StorageSpec(size, None, -1) for size in sizes)
    return MemoryLog((Moment("", -1, "forward", 0),), tuple(allocated + freed), storages, ("",), (), (), ())


def search(law: Law, memory: int) -> tuple[int, Search]:
    def peak(log: MemoryLog) -> int:
        return sum(size for _, _, size in log.events)

    done = Search(lambda batch: log_of(law(batch)), lambda log: peak(log) <= memory, lambda log: memory - peak(log))
    return done.run(), done


def truth(law: Law, memory: int) -> int:
    return largest(lambda batch: sum(law(batch)) <= memory)


LAWS: dict[str, tuple[Law, int]] = {
    "a line": (lambda b: [1000, 7 * b, 13 * b + 5], 4),
    "a square": (lambda b: [1000, 3 * b * b, 8 * b], 5),
    "one storage more from a batch of 97 on": (lambda b: [50, 9 * b, *([4 * b] if b >= 97 else [])], 6),
    "one storage less from a batch of 97 on": (lambda b: [50, 9 * b, *([4 * b] if b < 97 else [])], 6),
    "kinked at 40": (lambda b: [50, max(9 * b, 20 * b - 440)], 6),
    "in steps of 8 and 100": (lambda b: [50, 24 * 8 * -(-b // 8), 9 * b, 300 * (b // 100) ** 2], 16),
}


@pytest.mark.parametrize("memory", [10_007, 10_000_019])
@pytest.mark.parametrize("law", LAWS)
def test_the_largest_batch_is_proved_by_its_trace_and_the_next(law: str, memory: int) -> None:
    bytes_of, most = LAWS[law]
    answer, done = search(bytes_of, memory)
    assert answer == truth(bytes_of, memory)
    assert {answer, answer + 1} <= set(done.logs)
    assert len(done.logs) <= most


@settings(deadline=None, max_examples=60)
@given(
    jumps=st.lists(st.tuples(st.integers(2, 2000), st.integers(1, 10**4)), max_size=12),
    slope=st.integers(1, 1000),
    memory=st.integers(1, 10**7),
)
def test_the_answer_is_proved_by_few_traces(jumps: list[tuple[int, int]], slope: int, memory: int) -> None:
    def law(batch: int) -> list[int]:
        return [slope * batch, *(size for at, size in jumps if batch >= at)]

    answer, done = search(law, memory)
    assert answer == truth(law, memory) and {answer, answer + 1} - {0} <= set(done.logs)
    assert len(done.logs) <= 24


def test_a_batch_of_one_is_traced_where_two_do_not_fit() -> None:
    for memory, expected in ((15, 1), (9, 0)):
        answer, done = search(lambda batch: [10 * batch], memory)
        assert answer == expected
        assert set(done.logs) == {1, 2}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=5))
def test_the_polynomial_through_three_logs_gives_every_other(coefficients: list[tuple[int, int, int]]) -> None:
    def log(batch: int) -> MemoryLog:
        return log_of([a * batch * batch + b * batch + c for a, b, c in coefficients])

    points = {batch: log(batch) for batch in (2, 3, 100)}
    assert all(scales(points[2], point) for point in points.values())
    for batch in (1, 5, 64, 1000):
        assert at_batch(points, batch) == log(batch)


def test_only_a_limit_that_was_reached_blames_fragmentation() -> None:
    """A search that ends at its upper limit, or a CPU, leaves memory for other reasons."""
    capped = max_batch_size(nn.Linear(3, 3), (3,), "4GiB", optimizer="adamw", autocast="bfloat16", progress=False)
    assert capped.batch_size == LARGEST_BATCH
    assert "more than 16,777,216" in str(capped) and "fragmentation" not in str(capped)
    reached = max_batch_size(nn.Linear(3, 3), (3,), 1 << 20, device="cpu", progress=False)
    assert reached.next_peak_bytes > 1 << 20 and "fragmentation" not in str(reached)
