"""A row -> the arithmetic behind its figures, as text and LaTeX; a report -> a batch by the textbook formula."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..data.records import TensorSpec, tensors
from ..data.units import in_unit, one_line, size_text, structure_text
from ..formats.latex import escape
from ..formats.text import printable
from ..memory.capacity import BatchSizeLimit
from ..table.rows import Report, Row
from .explain_layers import Expr, Layer, minus, number, product, quotient, total


@dataclass(frozen=True, slots=True)
class ExplainedFigure:
    """A figure: its name in data, label, arithmetic, and trailing words."""

    name: str
    label: str
    expr: Expr
    words: str = ""

    def __str__(self) -> str:
        return f"{self.label}: {self.expr.equation}{f' {self.words}' if self.words else ''}"


@dataclass(frozen=True, repr=False)
class Explanation(Mapping[str, int]):
    """A mapping of figure names to values; ``str()`` and :meth:`to_latex` show the arithmetic."""

    title: str
    steps: tuple[ExplainedFigure, ...]
    engine: BatchSizeLimit | None = None
    """The answer of :func:`max_batch_size`, to compare a batch by the formula with."""

    def step(self, name: str) -> ExplainedFigure | None:
        """Return a figure with its arithmetic; None if there is none of this name."""
        return next((step for step in self.steps if step.name == name), None)

    def __getitem__(self, name: str) -> int:
        if (step := self.step(name)) is None:
            raise KeyError(name)
        return step.expr.value

    def __iter__(self) -> Iterator[str]:
        return iter([step.name for step in self.steps])

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        text = printable("\n".join(map(one_line, [self.title, *(f"  {step}" for step in self.steps)])))
        return text if self.engine is None else f"{text}\nBy max_batch_size: {self.engine}"

    __repr__ = __str__

    def to_text(self) -> str:
        """Return the same text as ``str()``: the title and a line per figure."""
        return str(self)

    def to_latex(self) -> str:
        """Return an amsmath ``align*`` environment with a line per figure."""
        lines = []
        for step in self.steps:
            result = "" if step.expr.text == f"{step.expr.value:,}" else f" = {step.expr.value:,}".replace(",", "{,}")
            words = rf"\ \text{{{escape(step.words)}}}" if step.words else ""
            lines.append(rf"\text{{{escape(step.label)}}} &= {step.expr.latex}{result}{words}")
        return "\n".join([r"\begin{align*}", " \\\\\n".join(lines), r"\end{align*}", ""])

    def _repr_latex_(self) -> str:
        return self.to_latex()


def bytes_of(spec: TensorSpec) -> Expr:
    """Return the bytes of a tensor as elements x element size; as a plain number if they are not proportional."""
    elements = prod(spec.shape)
    if not elements or spec.nbytes % elements:
        return number(spec.nbytes)
    return product(*spec.shape, spec.nbytes // elements)


def in_words(nbytes: int) -> str:
    """Return the words after a size in bytes; large sizes also in MiB (1024 x 1024 bytes) and MB (1,000,000 bytes).

    >>> in_words(3360), in_words(993_742_440)
    ('bytes', 'bytes = 947.71 MiB = 993.74 MB')
    """
    if nbytes < 100_000:
        return "bytes"
    return f"bytes = {in_unit(nbytes, 'MiB')[0]} MiB = {in_unit(nbytes, 'MB')[0]} MB"


UNLIKE = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a rule may raise for a layer without an expected setting or parameter."""

MOST_PARTS = 6  # Maximum number of parameters listed individually.
MOST_CHILDREN = 20  # Maximum number of children listed individually.
LONGEST = 80  # Arithmetic longer than this, in characters, is replaced by its value.

FIGURES = {"parameters": ("num_params", "total_params"), "mult_adds": ("own_mult_adds", "mult_adds")}
"""A figure, which is also the name of its arithmetic in a rule -> the fields of a row alone and with what is inside."""


def explain_rows(rows: Sequence[Row]) -> Explanation:
    """Explain the first row: parameters, output shape and bytes, and multiply-adds.

    With the rows inside it, its own figures and those of each child add up to the whole. If a layer deviates from its
    class and the arithmetic does not yield a figure, the figure is shown without it.
    """
    top = rows[0]
    inside: dict[int | None, list[Row]] = {}
    for row in rows[1:]:
        inside.setdefault(row.parent, []).append(row)
    layer = Layer(top)
    own = {step.name: step for step in (*_parameter_steps(layer), *_call_steps(layer))}
    if not inside:
        if top.total_params != top.num_params:
            whole = number(top.total_params)
            own["total"] = ExplainedFigure("total_parameters", "Parameters with submodules", whole)
        if top.mult_adds != top.own_mult_adds:
            whole = number(top.mult_adds)
            own["total_work"] = ExplainedFigure("total_mult_adds", "Multiply-adds with submodules", whole)
        return Explanation(_title(layer), tuple(own.values()))
    lazy = sum(row.uninitialised_params for row in rows)
    without_shape = f"{lazy:,} without a shape" if lazy else ""
    params = _whole("parameters", "Parameters", top, own, inside, without_shape)
    work = _whole("mult_adds", "Multiply-adds", top, own, inside, _operators(top.unknown_ops)) if top.called else []
    sizes = {_itemsize(dtype) for row in rows if row.layer for _, _, dtype in row.layer.parameters}
    if top.total_params and len(sizes) == 1:
        own["parameter_bytes"] = _parameter_bytes(top.total_params, sizes.pop())

    def named(*starts: str) -> list[ExplainedFigure]:
        return [step for name, step in own.items() if name.startswith(starts)]

    of_parameters = (*named("filter", "parameters."), *params, *named("parameter_bytes"))
    return Explanation(_title(layer), (*of_parameters, *named("axis", "output"), *work))


def _whole(
    figure: str, label: str, top: Row, own: Mapping[str, ExplainedFigure], inside: Mapping[int | None, Sequence[Row]],
    unknown: str,
) -> list[ExplainedFigure]:  # fmt: skip
    """Return a figure for each child, for the row itself if it is not 0, and their sum without what is unknown."""
    children: dict[str, list[Expr]] = {}
    for child in inside.get(top.index, ()):
        expr = _summed(figure, child, inside)
        if expr.value:
            children.setdefault(child.var_name or child.class_name, []).append(expr)
    if not children:
        return [own[figure]] if figure in own else []
    steps = [
        ExplainedFigure(f"{figure}.{name}", f"{label} of {name}", total(*exprs)) for name, exprs in children.items()
    ]
    itself, whole = (getattr(top, name) for name in FIGURES[figure])
    if itself and figure in own:
        steps.insert(0, ExplainedFigure(f"{figure}.own", f"{label} of its own", own[figure].expr))
    parts = [step.expr.value for step in steps]
    summed = total(*parts) if len(parts) <= MOST_CHILDREN and sum(parts) == whole else number(whole)
    shown = steps if len(steps) <= MOST_CHILDREN else []
    return [*shown, ExplainedFigure(figure, label, summed, f"(not counted: {unknown})" if unknown else "")]


def _summed(figure: str, row: Row, inside: Mapping[int | None, Sequence[Row]]) -> Expr:
    """Return the arithmetic of a row with all rows inside it; a plain number where it would be too long to read."""
    value = getattr(row, FIGURES[figure][0])
    exprs = [_figure(figure, Layer(row), value) or number(value)] if value else []
    exprs += [expr for child in inside.get(row.index, ()) if (expr := _summed(figure, child, inside)).value]
    expr = total(*exprs) if exprs else number(0)
    return expr if len(expr.text) <= LONGEST else number(expr.value)


def _title(layer: Layer) -> str:
    row = layer.row
    name = f"{row.path} ({row.class_name})" if row.path and row.kind != "function" else row.class_name
    if not row.called:
        return name
    opened = any(spec.batch_axes for spec in (*layer.inputs, *layer.outputs))
    shapes = f"{structure_text(row.inputs)} -> {structure_text(row.outputs)}"
    return f"{name}: {shapes}{', figures for a batch of 1' if opened else ''}"


def _parameter_steps(layer: Layer) -> Iterator[ExplainedFigure]:
    row = layer.row
    if row.layer is None or not layer.shapes:
        return
    weights = _tried(layer.rule.filter, layer)
    if weights is not None:
        yield ExplainedFigure("filter", "Weights of a filter", weights)
    counts = {name: product(*shape) if shape else number(1) for name, shape in layer.shapes.items()}
    if 1 < len(counts) <= MOST_PARTS:
        for name, count in counts.items():
            yield ExplainedFigure(f"parameters.{name}", f"Parameters of {name}", count)
    whole = _figure("parameters", layer, layer.numel) or total(*counts.values())
    counted = "" if row.num_params == layer.numel else f"({row.num_params:,} of them counted in this row)"
    yield ExplainedFigure("parameters", "Parameters", whole, counted)
    sizes = {_itemsize(dtype) for _, _, dtype in row.layer.parameters}
    if len(sizes) == 1:
        yield _parameter_bytes(layer.numel, sizes.pop())


def _parameter_bytes(count: int, itemsize: int) -> ExplainedFigure:
    nbytes = product(count, itemsize)
    return ExplainedFigure("parameter_bytes", "Bytes of parameters", nbytes, in_words(nbytes.value))


def _call_steps(layer: Layer) -> Iterator[ExplainedFigure]:
    """Yield the figures of a call: the axes of its first output that match the actual shape, bytes, multiply-adds."""
    row = layer.row
    if not row.called:
        return
    if layer.outputs:
        count, axes = len(layer.y), _tried(layer.rule.axes, layer) or {}
        for axis, (label, expr) in sorted((axis % count, axes[axis]) for axis in axes if -count <= axis < count):
            if expr.value == layer.y[axis]:
                yield ExplainedFigure(f"axis_{axis}", label, expr)
        nbytes = total(*map(bytes_of, layer.outputs))
        yield ExplainedFigure("output_bytes", "Bytes of the output", nbytes, in_words(nbytes.value))
    work = _figure("mult_adds", layer, row.own_mult_adds) or number(row.own_mult_adds)
    unknown = _operators(row.own_unknown_ops)
    yield ExplainedFigure("mult_adds", "Multiply-adds", work, f"(not counted: {unknown})" if unknown else "")


def _operators(unknown: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} x {count:,}" for name, count in unknown)


def _figure(figure: str, layer: Layer, value: int) -> Expr | None:
    """Return the arithmetic of a figure if it yields the row's value, else None."""
    expr: Expr | None = _tried(getattr(layer.rule, figure), layer)
    return expr if expr is not None and expr.value == value else None


def _tried(part: Callable[[Layer], Any] | None, layer: Layer) -> Any:
    """Return the result of a part of a rule; None if there is none or it does not apply to the layer."""
    try:
        return None if part is None else part(layer)
    except UNLIKE:
        return None


def _itemsize(dtype: str) -> int:
    """Return the size of an element in bytes, by the number in its dtype's name: 4 for "float32", 1 for "bool"."""
    bits = re.search(r"\d{1,4}", dtype)
    return int(bits[0]) // 8 if bits else 1


MOST_MAPS = 20  # Beyond this many maps only their sum is shown.


def map_rows(report: Report) -> list[Row]:
    """Return the calls whose outputs are maps (leaf calls, not in place), in the order they finished."""
    parents = {row.parent for row in report.rows if row.called}
    calls = [row for row in report.rows if row.called and row.index not in parents]
    maps = (row for row in calls if row.layer is None or dict(row.layer.settings).get("inplace") is not True)
    return sorted(maps, key=lambda row: row.finished or 0)


def batch_formula(
    report: Report, gradient_bytes: int, memory_bytes: int, batch: int, engine: BatchSizeLimit | None = None
) -> Explanation:
    """Return a training step's memory by the formula, and the largest batch that fits in ``memory_bytes``.

    ``report`` has a batch of 1 or an open one. The formula ignores optimizers, workspaces and which tensors
    are really saved: each map counts twice, for the activation and for its gradient.
    """
    maps = [
        ExplainedFigure(f"map_{row.index}_{place}", row.path or row.class_name, bytes_of(spec), in_words(spec.nbytes))
        for row in map_rows(report)
        for place, spec in enumerate(tensors(row.outputs))
    ]
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
    return Explanation("params + grads + bs x (I1 + 2 x sum Ii)", steps, engine)
