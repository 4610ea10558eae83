"""The memory of a batch by the textbook formula for CNNs: params + grads + bs x (I1 + 2 x sum Ii)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..data.records import tensors
from ..data.units import size_text
from ..memory.capacity import BatchSizeLimit
from ..table.rows import Report, Row
from .arithmetic import minus, number, product, quotient, total
from .explanation import ExplainedFigure, Explanation, bytes_of, in_words

MOST_MAPS = 20
"""Beyond this many maps only their sum is shown."""


@dataclass(frozen=True, repr=False)
class BatchExplanation(Explanation):
    """A batch's memory and the largest batch that fits, by the formula, with the engine's answer for comparison."""

    engine: BatchSizeLimit | None = None

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.engine is None else f"{text}\nBy max_batch_size: {self.engine}"

    __repr__ = __str__


def map_rows(report: Report) -> list[Row]:
    """Return the calls whose outputs are maps (leaf calls, not in place), in the order they finished."""
    parents = {row.parent for row in report.rows if row.called}
    calls = [row for row in report.rows if row.called and row.index not in parents]
    return sorted((row for row in calls if not _is_in_place(row)), key=lambda row: row.finished or 0)


def _is_in_place(row: Row) -> bool:
    return row.layer is not None and dict(row.layer.settings).get("inplace") is True


def batch_formula(
    report: Report, gradient_bytes: int, memory_bytes: int, batch: int, engine: BatchSizeLimit | None = None
) -> BatchExplanation:
    """Return a training step's memory by the formula, and the largest batch that fits in ``memory_bytes``.

    ``report`` has a batch of 1 or an open one. The formula ignores optimizers, workspaces and which tensors
    are really saved: each map counts twice, for the activation and for its gradient.
    """
    maps = [step for row in map_rows(report) for step in _maps(row)]
    inputs = total(0) if not report.input_bytes else total(*map(bytes_of, tensors(report.inputs)))
    summed = sum(step.expr.value for step in maps)
    sample = total(inputs.value, product(2, summed))
    whole = total(report.param_bytes, gradient_bytes, product(batch, sample.value))
    room = minus(memory_bytes, report.param_bytes, gradient_bytes)
    fits = quotient(room, sample.value) if sample.value and room.value > 0 else number(0)
    size = size_text(memory_bytes)
    steps = (
        ExplainedFigure("parameter_bytes", "Parameters", number(report.param_bytes), in_words(report.param_bytes)),
        ExplainedFigure("gradient_bytes", "Gradients", number(gradient_bytes), in_words(gradient_bytes)),
        ExplainedFigure("input_bytes", "Input I1", inputs, in_words(inputs.value)),
        *(maps if len(maps) <= MOST_MAPS else ()),
        ExplainedFigure("map_bytes", f"Sum of {len(maps):,} maps Ii", number(summed), in_words(summed)),
        ExplainedFigure("sample_bytes", "A sample", sample, in_words(sample.value)),
        ExplainedFigure("total_bytes", f"A batch of {batch:,}", whole, in_words(whole.value)),
        ExplainedFigure("largest_batch", f"Largest batch in {size}", fits),
    )
    return BatchExplanation("params + grads + bs x (I1 + 2 x sum Ii)", steps, engine)


def _maps(row: Row) -> Iterator[ExplainedFigure]:
    for place, spec in enumerate(tensors(row.outputs)):
        yield ExplainedFigure(
            f"map_{row.index}_{place}", row.path or row.class_name, bytes_of(spec), in_words(spec.nbytes)
        )
