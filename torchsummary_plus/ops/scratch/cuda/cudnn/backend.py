"""cuDNN's backend C interface: descriptors with attributes, created, queried and destroyed.

Names and numbers follow ``cudnn_graph_v9.h`` in NVIDIA's package.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import TracebackType
from typing import Any

from .library import CudnnError, cudnn_library


class Kind(IntEnum):
    """Descriptor types (``cudnnBackendDescriptorType_t``)."""

    CONVOLUTION = 1
    ENGINE = 2
    ENGINE_CONFIG = 3
    HEURISTICS = 4
    PLAN = 5
    FORWARD = 10
    BACKWARD_FILTER = 11
    BACKWARD_DATA = 12
    GRAPH = 15
    TENSOR = 17
    DEVICE = 38


class Type(IntEnum):
    """Attribute types (``cudnnBackendAttributeType_t``)."""

    DATA_TYPE = 1
    BOOLEAN = 2
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    CONVOLUTION_MODE = 7
    HEURISTIC_MODE = 8
    NUMERICAL_NOTE = 11
    DESCRIPTOR = 15
    CHAR = 24


NUMBERS: dict[Type, Any] = {
    Type.DATA_TYPE: ctypes.c_int,
    Type.BOOLEAN: ctypes.c_bool,
    Type.INT64: ctypes.c_int64,
    Type.FLOAT: ctypes.c_float,
    Type.DOUBLE: ctypes.c_double,
    Type.CONVOLUTION_MODE: ctypes.c_int,
    Type.HEURISTIC_MODE: ctypes.c_int,
    Type.NUMERICAL_NOTE: ctypes.c_int,
}


class Descriptor:
    """A backend descriptor, destroyed at the end of a ``with`` block."""

    def __init__(self, kind: Kind) -> None:
        self.library = cudnn_library()
        self.pointer = ctypes.c_void_p()
        check(self.library.cudnnBackendCreateDescriptor(int(kind), ctypes.byref(self.pointer)), kind.name)

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Destroy the descriptor."""
        self.library.cudnnBackendDestroyDescriptor(self.pointer)

    def set_numbers(self, attribute: int, kind: Type, *values: float) -> Descriptor:
        """Set an attribute to numbers of one type."""
        array = (NUMBERS[kind] * len(values))(*values)
        return self._set(attribute, kind, len(values), array)

    def set_text(self, attribute: int, text: str) -> Descriptor:
        """Set an attribute to a null-terminated string."""
        raw = text.encode() + b"\0"
        return self._set(attribute, Type.CHAR, len(raw), ctypes.create_string_buffer(raw, len(raw)))

    def set_descriptors(self, attribute: int, *others: Descriptor) -> Descriptor:
        """Set an attribute to other descriptors."""
        array = (ctypes.c_void_p * len(others))(*(other.pointer for other in others))
        return self._set(attribute, Type.DESCRIPTOR, len(others), array)

    def _set(self, attribute: int, kind: Type, count: int, array: ctypes.Array[Any]) -> Descriptor:
        count64 = ctypes.c_int64(count)
        check(self.library.cudnnBackendSetAttribute(self.pointer, attribute, int(kind), count64, array), attribute)
        return self

    def finalize(self) -> Descriptor:
        """Finalize the descriptor. Raises :class:`CudnnError` if cuDNN rejects it."""
        check(self.library.cudnnBackendFinalize(self.pointer), "finalize")
        return self

    def number(self, attribute: int) -> int:
        """Return an integer attribute."""
        value, count = ctypes.c_int64(), ctypes.c_int64()
        self._get(attribute, Type.INT64, 1, count, ctypes.byref(value))
        return value.value

    def notes(self, attribute: int, most: int) -> frozenset[int]:
        """Return a set of at most ``most`` numerical notes."""
        values, count = (ctypes.c_int * most)(), ctypes.c_int64()
        self._get(attribute, Type.NUMERICAL_NOTE, most, count, values)
        return frozenset(values[: count.value])

    def descriptors(self, attribute: int, kind: Kind, most: int | None = None) -> list[Descriptor]:
        """Return an attribute's descriptors: at most ``most``, or by default all."""
        count = ctypes.c_int64()
        if most is None:
            self._get(attribute, Type.DESCRIPTOR, 0, count, None)
            most = count.value
        empty = [Descriptor(kind) for _ in range(most)]
        array = (ctypes.c_void_p * most)(*(descriptor.pointer for descriptor in empty))
        self._get(attribute, Type.DESCRIPTOR, most, count, array)
        for unused in empty[count.value :]:
            unused.close()
        return empty[: count.value]

    def _get(self, attribute: int, kind: Type, most: int, count: ctypes.c_int64, target: object) -> None:
        get = self.library.cudnnBackendGetAttribute
        check(get(self.pointer, attribute, int(kind), ctypes.c_int64(most), ctypes.byref(count), target), attribute)


def check(status: int, what: object) -> None:
    """Raise :class:`CudnnError` for a status other than success."""
    if status:
        raise CudnnError(f"cuDNN returned status {status} ({what})")
