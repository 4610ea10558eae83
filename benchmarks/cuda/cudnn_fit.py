"""Fit trees to cuDNN's recorded workspaces: which tensors a convolution copies or transforms, by its sizes.

A tree's leaf stands for one formula, and its error is the sum of the errors of its samples under the best formula. A
split minimises this, and the mixture of formulas that suit the samples best (Gini impurity), of both parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsummary_plus.data.units import KIB
from torchsummary_plus.ops.scratch.cuda.cudnn.backend import Question
from torchsummary_plus.ops.scratch.cuda.cudnn.table import (
    SMALL,
    TRANSFORMS,
    UNIT,
    WINOGRAD,
    WINOGRAD_WEIGHTS,
    copied_bytes,
    features,
    tensor_bytes,
)

DEPTH = 12
FEWEST = 4
"""Fewest samples of a leaf."""
MIXTURE = 2.0
"""Weight of a split's impurity, relative to errors."""
MOST = 3.0
"""Errors, relative to the three tensors, count as at most this."""
ANCESTORS = 3
"""The bounds of a leaf come from all samples of its ancestor this many levels up."""

PARTIAL_SUMS = (0.0, 0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MULTIPLES = (1.5, 2, 2.5, 3, 4, 6, 8, 12)
FORMULAS: tuple[tuple[int, float], ...] = (
    *((UNIT + taken, rest) for taken in range(8) for rest in PARTIAL_SUMS),
    *((unit * UNIT + taken, 0.0) for unit in (4, 8) for taken in range(1, 8)),
    *((UNIT * UNIT + taken, 0.0) for taken in range(1, 8)),
    *((UNIT + mark, 0.0) for mark in (WINOGRAD_WEIGHTS, WINOGRAD)),
    *((UNIT + TRANSFORMS, multiple) for multiple in MULTIPLES),
)
"""Formulas of leaves, simple ones first, with the remainder as a multiple of the weights or of all three tensors."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """A convolution and its workspace in bytes."""

    question: Question
    answer: int

    @property
    def whole(self) -> int:
        """Bytes of the three tensors."""
        return sum(tensor_bytes(self.question, 1))

    def rest(self, formula: int) -> float:
        """Return the remainder with which a formula gives the workspace."""
        if formula % UNIT == TRANSFORMS:
            return self.answer / self.whole
        left = self.answer - copied_bytes(self.question, formula % UNIT, formula // UNIT)
        return left / tensor_bytes(self.question, 1)[1]


@dataclass
class Tree:
    """A tree being fitted, in arrays with a row for each sample: features, errors by formula, and best formulas."""

    samples: Sequence[Sample]
    values: Floats
    errors: Floats
    suited: Floats
    bounds: list[tuple[float, float, int]] = field(default_factory=list)

    def grown(self, rows: NDArray[np.int64], lineage: tuple[NDArray[np.int64], ...] = ()) -> list[Any]:
        """Return the node [feature, threshold, at or below, above], or leaf, for some samples."""
        split = self._best_split(rows) if len(lineage) < DEPTH else None
        if split is None:
            return self._leaf(rows, (*lineage, rows)[-1 - ANCESTORS :][0])
        feature, threshold = split
        is_below = self.values[rows, feature] <= threshold
        parts = [self.grown(rows[part], (*lineage, rows)) for part in (is_below, ~is_below)]
        is_same = all(len(part) == len(parts[0]) == 3 for part in parts) and parts[0] == parts[1]
        return parts[0] if is_same else [feature, threshold, *parts]

    def _best_split(self, rows: NDArray[np.int64]) -> tuple[int, float] | None:
        """Return the feature and threshold with the least cost; None if no split reduces it."""
        count, errors, suited = len(rows), self.errors[rows], self.suited[rows]
        total, kinds = errors.sum(0), suited.sum(0)
        best = total.min() + MIXTURE * (count - (kinds**2).sum() / count) - 1e-9
        split = None
        for feature in range(self.values.shape[1]):
            order = np.argsort(self.values[rows, feature], kind="stable")
            ordered = self.values[rows, feature][order]
            places = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
            places = places[(places >= FEWEST) & (places <= count - FEWEST)]
            if not len(places):
                continue
            below, sorts = (np.cumsum(array[order], 0)[places - 1] for array in (errors, suited))
            pure = (sorts**2).sum(1) / places + ((kinds - sorts) ** 2).sum(1) / (count - places)
            costs = below.min(1) + (total - below).min(1) + MIXTURE * (count - pure)
            least = int(costs.argmin())
            if costs[least] < best:
                middle = (ordered[places[least] - 1] + ordered[places[least]]) / 2
                best, split = costs[least], (feature, round(float(middle), 3))
        return split

    def _leaf(self, rows: NDArray[np.int64], around: NDArray[np.int64]) -> list[Any]:
        """Return the best formula, its remainder, and the number of the bounds of the samples around."""
        formula, rest = FORMULAS[int(self.errors[rows].sum(0).argmin())]
        near = [sample.rest(formula) for row in rows if (sample := self.samples[row]).whole >= SMALL]
        close = [value for value in near if abs(value - rest) <= 0.5 * max(1.0, rest)]
        rest = round(float(np.median(close)), 3) if close else rest
        bounds = self._bounds([self.samples[row] for row in around])
        if bounds not in self.bounds:
            self.bounds.append(bounds)
        return [formula, rest, self.bounds.index(bounds)]

    def _bounds(self, around: Sequence[Sample]) -> tuple[float, float, int]:
        """Return the range of workspaces relative to the three tensors, and the maximum in KiB if these are small."""
        ratios = [sample.answer / sample.whole for sample in around if sample.whole >= SMALL]
        small = [sample.answer for sample in around if sample.whole < SMALL]
        most = max(small or [sample.answer for sample in self.samples if sample.whole < SMALL])
        low, high = (min(ratios), max(ratios)) if ratios else (0.0, most / SMALL)
        return floor(100 * low) / 100, ceil(100 * high) / 100, ceil(most / KIB)


def fit(samples: Sequence[Sample]) -> list[Any]:
    """Return a tree and its bounds."""
    errors = np.array([list(_errors(sample)) for sample in samples])
    suited = np.eye(len(FORMULAS))[errors.argmin(1)]
    values = np.array([features(sample.question) for sample in samples])
    tree = Tree(samples, values, errors, suited[:, suited.any(0)])
    return [tree.grown(np.arange(len(samples))), tree.bounds]


def _errors(sample: Sample) -> Iterator[float]:
    """Yield the error of each formula, relative to the three tensors."""
    weights, whole = tensor_bytes(sample.question, 1)[1], sample.whole
    for formula, rest in FORMULAS:
        if formula % UNIT == TRANSFORMS:
            nbytes = rest * whole
        else:
            nbytes = copied_bytes(sample.question, formula % UNIT, formula // UNIT) + rest * weights
        yield min(MOST, abs(nbytes - sample.answer) / whole)
