"""Names, shapes and bytes of the weights in an ONNX file, by the ``onnx`` package; external data is not read.

Source: the ONNX format (github.com/onnx/onnx, onnx/onnx.proto: ``TensorProto``, ``external_data``).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import InputError
from .extras import need_extra
from .units import describe
from .weight_files import MOST_AXES, MOST_ITEMS, WeightEntry

MOST_BYTES = 2**31 - 1
"""Maximum size of a file in bytes: protobuf's own limit (``onnx.checker.MAXIMUM_PROTOBUF``)."""

BITS = {
    "FLOAT": 32, "UINT8": 8, "INT8": 8, "UINT16": 16, "INT16": 16, "INT32": 32, "INT64": 64, "BOOL": 8, "FLOAT16": 16,
    "DOUBLE": 64, "UINT32": 32, "UINT64": 64, "COMPLEX64": 64, "COMPLEX128": 128, "BFLOAT16": 16, "FLOAT8E4M3FN": 8,
    "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "FLOAT8E8M0": 8,
    "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
}  # fmt: skip
"""Bits per element of each ONNX type except strings."""


def read_onnx(path: Path) -> tuple[WeightEntry, ...]:
    """Return the initializers and constants of an ONNX file, including those of nested graphs and functions.

    Raises :class:`InputError` for a file that is malformed, contradicts itself or exceeds the limits, and
    :class:`MissingExtraError` without the ``onnx`` package.
    """
    onnx = need_extra("onnx", "onnx")
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise refused(
                path, f"it has {size:,} bytes; the limit is {MOST_BYTES:,}: save its tensors as external data"
            )
        model = onnx.ModelProto()
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except InputError:
        raise
    except Exception as error:  # protobuf's DecodeError, whose module differs between its releases.
        raise refused(path, str(error) or type(error).__name__) from None
    if not model.ir_version or not model.HasField("graph"):
        raise refused(path, "it is not an ONNX model: it has no version or no graph")
    reader = _Reader(onnx, path)
    nodes = [node for function in model.functions for node in function.node]
    return (*reader.graph(model.graph), *reader.nodes(nodes))


def refused(path: Path, why: str) -> InputError:
    """Return the error for a file that is malformed or exceeds a limit."""
    return InputError(f"{path.name} cannot be read: {why}")


class _Reader:
    """Walks through a model's graphs, within the limits."""

    def __init__(self, onnx: Any, path: Path) -> None:
        self.onnx = onnx
        self.path = path
        self.items = 0

    def graph(self, graph: Any) -> Iterator[WeightEntry]:
        for tensor in graph.initializer:
            yield self.entry(tensor, tensor.name)
        for sparse in graph.sparse_initializer:
            yield self.entry(sparse.values, sparse.values.name)
            yield self.entry(sparse.indices, f"{sparse.values.name} (indices)")
        yield from self.nodes(graph.node)

    def nodes(self, nodes: Any) -> Iterator[WeightEntry]:
        """Yield the constants of nodes, and those inside the graphs of control flow."""
        for node in nodes:
            self.count()
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield self.entry(attribute.t, node.output[0] if node.output else node.name)
                for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                    yield from self.graph(inner)

    def count(self) -> None:
        self.items += 1
        if self.items > MOST_ITEMS:
            raise refused(self.path, f"it has more than {MOST_ITEMS:,} nodes and tensors")

    def entry(self, tensor: Any, name: str) -> WeightEntry:
        self.count()
        kinds = self.onnx.TensorProto.DataType
        dtype = kinds.Name(tensor.data_type) if tensor.data_type in kinds.values() else str(tensor.data_type)
        shape = tuple(tensor.dims)
        if len(shape) > MOST_AXES or any(size < 0 for size in shape) or prod(shape) >= 1 << 63:
            raise refused(self.path, f"{describe(name)} has an invalid shape")
        if dtype == "STRING":
            return WeightEntry(name, shape, dtype, sum(map(len, tensor.string_data)), self.path.name)
        if dtype not in BITS:
            raise refused(self.path, f"{describe(name)} has the unknown type {dtype}")
        nbytes = -(-prod(shape) * BITS[dtype] // 8)
        return WeightEntry(name, shape, dtype, nbytes, self._file(tensor, name, nbytes))

    def _file(self, tensor: Any, name: str, nbytes: int) -> str:
        """Return the file with a tensor's bytes. Raises :class:`InputError` if they do not match its shape."""
        if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
            external = {entry.key: entry.value for entry in tensor.external_data}
            place = PurePosixPath(external.get("location", "").replace("\\", "/"))
            if not place.name or place.is_absolute() or ".." in place.parts:
                raise refused(
                    self.path, f"{describe(name)} is stored at {describe(str(place))}, outside the file's folder"
                )
            if external.get("length", str(nbytes)) != str(nbytes):
                raise refused(self.path, f"the bytes of {describe(name)} do not match its shape")
            return str(place)
        if tensor.HasField("raw_data") and len(tensor.raw_data) != nbytes:
            raise refused(self.path, f"the bytes of {describe(name)} do not match its shape")
        if not tensor.HasField("raw_data") and prod(tensor.dims) and not self._has_fields(tensor):
            raise refused(self.path, f"{describe(name)} has a shape but no data")
        return self.path.name

    def _has_fields(self, tensor: Any) -> bool:
        fields = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
        return any(len(getattr(tensor, field)) for field in fields)
