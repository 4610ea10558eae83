"""Which integers in an ONNX graph are shapes, axes or indices, and so no parameters.

Source: the operators' inputs in github.com/onnx/onnx, docs/Operators.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

CONTROL = {
    "AffineGrid": (1,), "CenterCropPad": (1,), "Col2Im": (1, 2), "ConstantOfShape": (0,), "CumSum": (1,), "DFT": (1, 2),
    "Expand": (1,), "Gather": (1,), "GatherElements": (1,), "GatherND": (1,), "Loop": (0,), "MaxUnpool": (1, 2),
    "NonMaxSuppression": (2,), "OneHot": (1,), "Pad": (1, 3), "Range": (0, 1, 2), "ReduceL1": (1,), "ReduceL2": (1,),
    "ReduceLogSum": (1,), "ReduceLogSumExp": (1,), "ReduceMax": (1,), "ReduceMean": (1,), "ReduceMin": (1,),
    "ReduceProd": (1,), "ReduceSum": (1,), "ReduceSumSquare": (1,), "Reshape": (1,), "Resize": (3,),
    "ReverseSequence": (1,), "STFT": (1, 3), "Scatter": (1,), "ScatterElements": (1,), "ScatterND": (1,),
    "SequenceAt": (1,), "SequenceErase": (1,), "SequenceInsert": (2,), "Slice": (1, 2, 3, 4), "Split": (1,),
    "SplitToSequence": (1,), "Squeeze": (1,), "TensorScatter": (2,), "Tile": (1,), "TopK": (1,), "Trilu": (1,),
    "Unsqueeze": (1,),
}  # fmt: skip
"""The inputs of operators that are shapes, axes, counts or indices."""

SCALES = {
    "ConvInteger": (2, 3), "DequantizeLinear": (1, 2), "GatherBlockQuantized": (2, 3), "MatMulInteger": (2, 3),
    "MatMulNBits": (2, 3, 4), "QGemm": (1, 2, 4, 5, 7, 8), "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7), "QuantizeLinear": (1, 2),
}  # fmt: skip
"""The inputs of operators that are scales, zero points and orders of quantised values."""

ARITHMETIC = frozenset(
    {
        "Abs", "Add", "Cast", "CastLike", "Concat", "Div", "Equal", "Expand", "Flatten", "Gather", "Identity", "Less",
        "Greater", "Max", "Min", "Mod", "Mul", "Neg", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum",
        "Reshape", "Slice", "Split", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip
"""Operators that compute shapes and indices from others: their inputs are such if all their results are."""


def control_values(model: Any) -> set[str]:
    """Return the names of values that everything which reads them uses as a shape, axis, count or index."""
    results: set[str] = set()
    nodes = list(all_nodes(model, results))
    computed = {output: node for node in nodes if node.op_type in ARITHMETIC for output in node.output}
    read = {name for node in nodes for name in node.input}
    pending = [*results, *(name for name in computed if name not in read)]
    for node in nodes:
        if node.op_type not in ARITHMETIC:
            pending += _operands(node)
    data: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in data:
            data.add(name)
            pending += _operands(computed[name]) if name in computed else ()
    return read - data


def scales(model: Any) -> set[str]:
    """Return the names of values that everything which reads them uses as a scale, zero point or order."""
    data: set[str] = set()
    described: set[str] = set()
    for node in all_nodes(model, data):
        for place, name in enumerate(node.input):
            (described if place in SCALES.get(node.op_type, ()) else data).add(name)
    return described - data


def packed(model: Any) -> dict[str, int]:
    """Return the elements of weights that are packed into bytes, by name: those of onnxruntime's ``MatMulNBits``."""
    found: dict[str, int] = {}
    for node in all_nodes(model, set()):
        sizes = {attribute.name: attribute.i for attribute in node.attribute}
        if node.op_type == "MatMulNBits" and len(node.input) > 1 and min(sizes.get("K", 0), sizes.get("N", 0)) > 0:
            found[node.input[1]] = sizes["K"] * sizes["N"]
    return found


def _operands(node: Any) -> list[str]:
    """Return a node's inputs other than shapes, axes, counts and indices."""
    control = CONTROL.get(node.op_type, ())
    return [name for place, name in enumerate(node.input) if place not in control]


def all_nodes(model: Any, results: set[str]) -> Iterator[Any]:
    """Yield the nodes of a model's graphs and functions, adding the graphs' results to ``results``."""
    yield from _nodes(model.graph, results)
    for function in model.functions:
        yield from function.node


def _nodes(graph: Any, results: set[str]) -> Iterator[Any]:
    results.update(output.name for output in graph.output)
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _nodes(inner, results)
