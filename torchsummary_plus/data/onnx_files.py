"""Names, shapes and bytes of the weights in an ONNX file, by the ``onnx`` package; external data is not read.

Integers of 32 and 64 bits are shapes, axes or indices rather than parameters, unless they are a quantised bias.
Sources: the ONNX format (github.com/onnx/onnx, onnx/onnx.proto: ``TensorProto``, ``external_data``; docs/Operators.md:
the operators' inputs).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from .errors import InputError, need_extra
from .units import ceil_div, describe, one_line
from .untrusted_files import content
from .weight_files import MOST_AXES, WeightEntry

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
    graphs = [graph for own in (model.graph, *model.functions) for graph in _all_graphs(own)]
    nodes = [node for graph in graphs for node in graph.node]
    params = _params(nodes)
    entries = []
    for name, tensor in (own for graph in graphs for own in _tensors(onnx, graph)):
        entry = _entry(onnx, path, tensor, name)
        count = params.get(entry.name, 0 if entry.dtype in ("INT32", "INT64") else None)
        entries.append(replace(entry, params=count))
    return tuple(entries)


def _refused(path: Path, why: str) -> InputError:
    return InputError(f"{one_line(path.name)} cannot be read: {why}")


def _all_graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph or function, and the graphs inside it, which control flow runs."""
    yield graph
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            yield from _all_graphs(inner)


def _tensors(onnx: Any, graph: Any) -> Iterator[tuple[str | bytes, Any]]:
    """Yield the tensors of a graph or function, each with its name; plain numbers become tensors."""
    yield from ((tensor.name, tensor) for tensor in getattr(graph, "initializer", ()))
    sparse = [(each.values.name, each) for each in getattr(graph, "sparse_initializer", ())]
    for node in graph.node:
        name = node.output[0] if node.output else node.name
        for attribute in node.attribute:
            whole = [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
            yield from ((name, tensor) for tensor in whole)
            sparse += [(name, attribute.sparse_tensor)] if attribute.HasField("sparse_tensor") else []
            field = dtype = ""
            if node.op_type == "Constant":
                field, dtype = NUMBERS.get(attribute.name, ("", ""))
            elif node.domain == LEARNED and attribute.name not in HYPERPARAMETERS and attribute.floats:
                field, dtype = "floats", "FLOAT"
            if field:
                shape = (len(getattr(attribute, field)),) if field.endswith("s") else ()
                data, kind = bytes(prod(shape) * BITS[dtype] // 8), onnx.TensorProto.DataType.Value(dtype)
                yield name, onnx.TensorProto(dims=shape, data_type=kind, raw_data=data)
    for name, tensor in sparse:
        yield name, tensor.values
        yield f"{name!s} (indices)", tensor.indices


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


SCALES = {
    "ConvInteger": (2, 3), "DequantizeLinear": (1, 2), "GatherBlockQuantized": (2, 3), "MatMulInteger": (2, 3),
    "MatMulNBits": (2, 3, 4), "QGemm": (1, 2, 4, 5, 7, 8), "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7), "QuantizeLinear": (1, 2),
}  # fmt: skip
"""The inputs of operators that are scales, zero points and orders of quantised values."""

INTEGERS = {"DequantizeLinear": 0, "QGemm": 6, "QLinearConv": 8}
"""The inputs of operators that are quantised biases, in integers of 32 bits."""


def _params(nodes: Collection[Any]) -> dict[str, int | None]:
    """Return the parameters of scales, quantised biases and packed weights, by name; None for their own elements.

    Scales and zero points have none; onnxruntime packs the weights of ``MatMulNBits`` into bytes.
    """
    read = [(name, place in SCALES.get(node.op_type, ())) for node in nodes for place, name in enumerate(node.input)]
    elsewhere = {name for name, is_scale in read if not is_scale}
    params: dict[str, int | None] = {name: 0 for name, _ in read if name not in elsewhere}
    for node in nodes:
        place = INTEGERS.get(node.op_type, len(node.input))
        params |= dict.fromkeys(node.input[place : place + 1], None)
        sizes = {attribute.name: attribute.i for attribute in node.attribute}
        if node.op_type == "MatMulNBits" and len(node.input) > 1 and min(sizes.get("K", 0), sizes.get("N", 0)) > 0:
            params[node.input[1]] = sizes["K"] * sizes["N"]
    return params
