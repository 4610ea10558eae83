"""A row -> its figures, each with the arithmetic that gives it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from ..report import Row
from ..units import structure_text
from . import explain_layers as _explain_layers  # noqa: F401  (importing it fills the registry)
from .arithmetic import Expr, number, product, total
from .explain_registry import Figure, Layer, Rule, rule_of
from .explanation import Explanation, Step, bytes_of, in_words

Told = TypeVar("Told")

UNLIKE = (LookupError, TypeError, ValueError)
"""What a rule raises for a layer that lacks a setting or a parameter, or has one of another kind."""

MOST_PARTS = 6
"""More parameters than that are not listed one by one."""


def explain_row(row: Row) -> Explanation:
    """The parameters, the output's shape and bytes, and the multiply-adds of a row, written out.

    Each figure is the row's own. Arithmetic that does not give it, where a layer does something of its own, is left
    out, and the figure stands alone.
    """
    layer = Layer(row)
    rule = rule_of(row)
    return Explanation(_title(layer), (*_parameter_steps(layer, rule), *_call_steps(layer, rule)))


def _title(layer: Layer) -> str:
    row = layer.row
    name = f"{row.path} ({row.class_name})" if row.path and row.kind != "function" else row.class_name
    if not row.called:
        return name
    opened = any(spec.batch_axes for spec in (*layer.inputs, *layer.outputs))
    shapes = f"{structure_text(row.inputs)} -> {structure_text(row.outputs)}"
    return f"{name}: {shapes}{', figures for a batch of 1' if opened else ''}"


def _parameter_steps(layer: Layer, rule: Rule) -> Iterator[Step]:
    if not layer.shapes:
        return
    row = layer.row
    for name, label, expr in _tried(rule.parts, layer) or ():
        yield Step(name, label, expr)
    if 1 < len(layer.shapes) <= MOST_PARTS:
        for name, shape in layer.shapes.items():
            yield Step(f"parameters.{name}", f"Parameters of {name}", product(*shape) if shape else number(1))
    plain = total(*(product(*shape) if shape else number(1) for shape in layer.shapes.values()))
    counted = "" if row.num_params == layer.held() else f"({row.num_params:,} of them counted in this row)"
    yield Step("parameters", "Parameters", _checked(rule.parameters, layer, layer.held()) or plain, counted)
    sizes = {_itemsize(dtype) for _, _, dtype in row.layer.parameters} if row.layer is not None else set()
    if len(sizes) == 1:
        size = sizes.pop()
        yield Step("parameter_bytes", "Bytes of parameters", product(layer.held(), size), in_words(layer.held() * size))


def _call_steps(layer: Layer, rule: Rule) -> Iterator[Step]:
    row = layer.row
    if not row.called:
        return
    if layer.outputs:
        for axis, (label, expr) in _axes(layer, rule).items():
            yield Step(f"axis_{axis}", label, expr)
        nbytes = total(*map(bytes_of, layer.outputs))
        yield Step("output_bytes", "Bytes of the output", nbytes, in_words(nbytes.value))
    work = _checked(rule.mult_adds, layer, row.own_mult_adds) or number(row.own_mult_adds)
    unknown = ", ".join(f"{name} x {count:,}" for name, count in row.own_unknown_ops)
    yield Step("mult_adds", "Multiply-adds", work, f"(not counted: {unknown})" if unknown else "")


def _axes(layer: Layer, rule: Rule) -> dict[int, tuple[str, Expr]]:
    """The axes of the first output that a rule works out, by number, where it gives what came out."""
    found = _tried(rule.axes, layer) or {}
    axes = {axis % len(layer.y): told for axis, told in found.items() if -len(layer.y) <= axis < len(layer.y)}
    return {axis: axes[axis] for axis in sorted(axes) if axes[axis][1].value == layer.y[axis]}


def _checked(figure: Figure | None, layer: Layer, value: int) -> Expr | None:
    """The arithmetic of a figure where it gives the value that the row has."""
    expr = _tried(figure, layer)
    return expr if expr is not None and expr.value == value else None


def _tried(part: Callable[[Layer], Told] | None, layer: Layer) -> Told | None:
    """What a part of a rule says; None where there is none, or the layer is not what its class says."""
    try:
        return None if part is None else part(layer)
    except UNLIKE:
        return None


def _itemsize(dtype: str) -> int:
    """The bytes of an element by the name of its dtype.

    >>> [_itemsize(name) for name in ("float32", "bfloat16", "bool", "complex64", "float8_e4m3fn")]
    [4, 2, 1, 8, 1]
    """
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) // 8 if bits else 1
