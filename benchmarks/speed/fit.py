"""Time against the number of calls, and its linear fit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.speed.models import Subject, chain
from benchmarks.speed.tools import Effort, best, ours


def fit(sizes: Sequence[int], effort: Effort) -> None:
    """Print the least-squares fit of time against number of calls, on chains of layers at a batch of 1."""
    print("\nTIME against number of calls, batch 1")
    points = []
    for calls in sizes:
        model, subject = chain(calls), Subject("chain", partial(chain, calls), (8,))
        times, _ = best({"ours": partial(ours, model, subject, 1)}, effort)
        points.append((calls, times["ours"]))
        each = times["ours"] / calls
        print(f"{calls:9,} calls {1000 * times['ours']:10.1f} ms {1e6 * each:8.2f} us per call", flush=True)
    slope, start, r2 = least_squares(points)
    print(f"fit: {1e6 * slope:.2f} us per call + {1000 * start:.1f} ms, r2 = {r2:.5f}")


def least_squares(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the slope, intercept and r2 of the line through points (x, y).

    >>> least_squares([(0, 1), (1, 3), (2, 5)])
    (2.0, 1.0, 1.0)
    """
    mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    start = mean_y - slope * mean_x
    left = sum((y - start - slope * x) ** 2 for x, y in points)
    return slope, start, 1 - left / sum((y - mean_y) ** 2 for _, y in points)
