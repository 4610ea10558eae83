"""Names, shapes and bytes of the weights in an ONNX file, by the ``onnx`` package; external data is not read.

Integers that are only shapes, axes or indices are no parameters. Sources: the ONNX format (github.com/onnx/onnx,
onnx/onnx.proto: ``TensorProto``, ``external_data``; docs/Operators.md: the operators' inputs).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from .errors import InputError, need_extra
from .regular_files import content
from .stored_weights import WeightEntry
from .units import ceil_div, describe, one_line
from .weight_files import MOST_AXES

MOST_BYTES = 2**31 - 1  # Maximum size of a file in bytes: protobuf's own limit (``onnx.checker.MAXIMUM_PROTOBUF``).

BITS = {
    "FLOAT": 32, "UINT8": 8, "INT8": 8, "UINT16": 16, "INT16": 16, "INT32": 32, "INT64": 64, "BOOL": 8, "FLOAT16": 16,
    "DOUBLE": 64, "UINT32": 32, "UINT64": 64, "COMPLEX64": 64, "COMPLEX128": 128, "BFLOAT16": 16, "FLOAT8E4M3FN": 8,
    "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "FLOAT8E8M0": 8,
    "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
}  # fmt: skip
"""Bits per element of each ONNX type except strings."""

NUMBERS = {
    "value_float": ("f", "FLOAT"), "value_floats": ("floats", "FLOAT"), "value_int": ("i", "INT64"),
    "value_ints": ("ints", "INT64"),
}  # fmt: skip
"""The attributes of a ``Constant`` that are plain numbers, with the field and type of their values."""

LEARNED = "ai.onnx.ml"
"""The domain of trees, support vectors and linear models, whose weights are lists of floats in attributes."""

HYPERPARAMETERS = ("kernel_params", "nodes_hitrates", "class_nodehitrates")  # Lists of floats that are no weights.


def read_onnx(path: Path) -> tuple[WeightEntry, ...]:
    """Return the initializers and constants of an ONNX file, including those of nested graphs and functions.

    Raises :class:`InputError` for a file that is malformed, contradicts itself or exceeds the limits, and
    :class:`MissingExtraError` without the ``onnx`` package.
    """
    onnx = need_extra("onnx", "onnx")
    data = content(path, MOST_BYTES, ": save its tensors as external data")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError, whose module differs between its releases.
        raise _refused(path, str(error) or type(error).__name__) from None
    if not model.ir_version or not model.HasField("graph"):
        raise _refused(path, "it is not an ONNX model: it has no version or no graph")
    graphs = list(all_graphs(model.graph))
    nodes = [node for graph in (*graphs, *model.functions) for node in graph.node]
    results = {output.name for graph in graphs for output in graph.output}
    control: Collection[str | bytes] = read_only_at(CONTROL, nodes, results, ARITHMETIC)
    params = packed(nodes) | dict.fromkeys(read_only_at(SCALES, nodes, results), 0)
    entries = []
    for name, tensor, is_index in [own for graph in (model.graph, *model.functions) for own in _tensors(onnx, graph)]:
        entry = _entry(onnx, path, tensor, name)
        is_index = is_index or (entry.dtype in ("INT32", "INT64") and name in control)
        entries.append(replace(entry, params=0 if is_index else params.get(entry.name)))
    return tuple(entries)


def _refused(path: Path, why: str) -> InputError:
    return InputError(f"{one_line(path.name)} cannot be read: {why}")


def _tensors(onnx: Any, graph: Any) -> Iterator[tuple[str | bytes, Any, bool]]:
    """Yield the tensors of a graph or function, and those inside the graphs of control flow.

    Each has its name, and whether it is the indices of a sparse one. Constants that are plain numbers become tensors.
    """
    yield from ((tensor.name, tensor, False) for tensor in getattr(graph, "initializer", ()))
    for sparse in getattr(graph, "sparse_initializer", ()):
        yield from _sparse(sparse, sparse.values.name)
    for node in graph.node:
        name = node.output[0] if node.output else node.name
        for attribute in node.attribute:
            yield from ((name, tensor, False) for tensor in ([attribute.t] if attribute.HasField("t") else []))
            yield from ((name, tensor, False) for tensor in attribute.tensors)
            if attribute.HasField("sparse_tensor"):
                yield from _sparse(attribute.sparse_tensor, name)
            field = dtype = ""
            if node.op_type == "Constant":
                field, dtype = NUMBERS.get(attribute.name, ("", ""))
            elif node.domain == LEARNED and attribute.name not in HYPERPARAMETERS and attribute.floats:
                field, dtype = "floats", "FLOAT"
            if field:
                shape = (len(getattr(attribute, field)),) if field.endswith("s") else ()
                data, kind = bytes(prod(shape) * BITS[dtype] // 8), onnx.TensorProto.DataType.Value(dtype)
                yield name, onnx.TensorProto(dims=shape, data_type=kind, raw_data=data), False
            for inner in inner_graphs(attribute):
                yield from _tensors(onnx, inner)


def _sparse(tensor: Any, name: str | bytes) -> Iterator[tuple[str | bytes, Any, bool]]:
    yield name, tensor.values, False
    yield f"{name!s} (indices)", tensor.indices, True


def _entry(onnx: Any, path: Path, tensor: Any, name: str | bytes) -> WeightEntry:
    """Return the entry of a tensor. Raises :class:`InputError` if its bytes do not match its shape."""

    def text(value: str | bytes) -> str:
        if isinstance(value, bytes):  # As protobuf gives a string that is not UTF-8.
            raise _refused(path, f"the name {describe(value)} is not UTF-8")
        return value

    kinds = onnx.TensorProto.DataType
    dtype = kinds.Name(tensor.data_type) if tensor.data_type in kinds.values() else str(tensor.data_type)
    shape = tuple(tensor.dims)
    if len(shape) > MOST_AXES or any(size < 0 for size in shape) or prod(shape) >= 1 << 63:
        raise _refused(path, f"{describe(name)} has an invalid shape")
    if dtype == "STRING":
        return WeightEntry(text(name), shape, dtype, sum(map(len, tensor.string_data)), path.name)
    if dtype not in BITS:
        raise _refused(path, f"{describe(name)} has the unknown type {dtype}")
    file, nbytes = path.name, ceil_div(prod(shape) * BITS[dtype], 8)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        external = {text(entry.key): text(entry.value) for entry in tensor.external_data}
        file, matches = external.get("location", ""), external.get("length", str(nbytes)) == str(nbytes)
    elif tensor.HasField("raw_data"):
        matches = len(tensor.raw_data) == nbytes
    else:
        matches = not nbytes or bool(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type)))
    if not matches:
        raise _refused(path, f"the bytes of {describe(name)} do not match its shape")
    return WeightEntry(text(name), shape, dtype, nbytes, file)


def inner_graphs(attribute: Any) -> list[Any]:
    """Return the graphs of an attribute: those that control flow runs."""
    return ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)


def all_graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and those inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in inner_graphs(attribute):
                yield from all_graphs(inner)


_PLACES = {
    (0,): "ConstantOfShape Loop",
    (1,): """
        AffineGrid CenterCropPad CumSum Expand Gather GatherElements GatherND OneHot ReduceL1 ReduceL2 ReduceLogSum
        ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Reshape ReverseSequence
        Scatter ScatterElements ScatterND SequenceAt SequenceErase Split SplitToSequence Squeeze Tile TopK Trilu
        Unsqueeze
    """,
    (2,): "NonMaxSuppression SequenceInsert TensorScatter", (3,): "Resize", (1, 2): "Col2Im DFT MaxUnpool",
    (1, 3): "Pad STFT", (0, 1, 2): "Range", (1, 2, 3, 4): "Slice",
}  # fmt: skip
CONTROL = {name: places for places, names in _PLACES.items() for name in names.split()}
"""The inputs of operators that are shapes, axes, counts or indices."""

SCALES = {
    "ConvInteger": (2, 3), "DequantizeLinear": (1, 2), "GatherBlockQuantized": (2, 3), "MatMulInteger": (2, 3),
    "MatMulNBits": (2, 3, 4), "QGemm": (1, 2, 4, 5, 7, 8), "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7), "QuantizeLinear": (1, 2),
}  # fmt: skip
"""The inputs of operators that are scales, zero points and orders of quantised values."""

ARITHMETIC = {
    "Abs", "Add", "Cast", "CastLike", "Concat", "Div", "Equal", "Expand", "Flatten", "Gather", "Identity", "Less",
    "Greater", "Max", "Min", "Mod", "Mul", "Neg", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum",
    "Reshape", "Slice", "Split", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
"""Operators that compute shapes and indices from others: their inputs are such if all their results are."""


def read_only_at(
    places: Mapping[str, Sequence[int]], nodes: Sequence[Any], results: Collection[str], through: Collection[str] = ()
) -> set[str]:
    """Return the values that nodes read at these places alone, also by way of the results of operators ``through``."""

    def operands(node: Any) -> list[str]:
        return [name for place, name in enumerate(node.input) if place not in places.get(node.op_type, ())]

    computed = {output: node for node in nodes if node.op_type in through for output in node.output}
    read = {name for node in nodes for name in node.input}
    pending = [*results, *(name for name in computed if name not in read)]
    for node in nodes:
        if node.op_type not in through:
            pending += operands(node)
    elsewhere: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in elsewhere:
            elsewhere.add(name)
            pending += operands(computed[name]) if name in computed else ()
    return read - elsewhere


def packed(nodes: Collection[Any]) -> dict[str, int]:
    """Return the elements of weights that are packed into bytes, by name: those of onnxruntime's ``MatMulNBits``."""
    found: dict[str, int] = {}
    for node in nodes:
        sizes = {attribute.name: attribute.i for attribute in node.attribute}
        if node.op_type == "MatMulNBits" and len(node.input) > 1 and min(sizes.get("K", 0), sizes.get("N", 0)) > 0:
            found[node.input[1]] = sizes["K"] * sizes["N"]
    return found
