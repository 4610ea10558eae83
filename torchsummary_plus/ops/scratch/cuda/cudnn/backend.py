"""cuDNN's backend C interface: descriptors with attributes, created, queried and destroyed.

Names and numbers follow ``cudnn_graph_v9.h`` in NVIDIA's package.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any


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


OLDEST = 90800
"""First version that accepts device properties instead of a handle (cuDNN 9.8's release notes)."""


WITHOUT_VOLTA = 91100
"""First version without the kernels of GPUs before compute capability 7.5 (cuDNN 9.11's release notes).

torch's wheels for CUDA 12.6, the last that run on such GPUs, keep 9.10 (pytorch/pytorch#157517).
"""
TURING = (7, 5)


class CudnnError(Exception):
    """cuDNN is missing or gives no answer."""


override: list[Path] = []
"""The path of the cuDNN library, in a process without torch (:mod:`.worker`)."""


@cache
def cudnn_path() -> Path | None:
    """Return the cuDNN library of the imported torch, from NVIDIA's package or torch's own; None if there is none."""
    if override:
        return override[0]
    import torch

    if torch.version.cuda is None:
        return None
    site = Path(torch.__file__).parents[1]
    folders = (site / "nvidia" / "cudnn" / "lib", site / "torch" / "lib")
    libraries = [path for folder in folders for path in sorted(folder.glob("libcudnn.so.*"))]
    libraries += [folder / "cudnn64_9.dll" for folder in folders if (folder / "cudnn64_9.dll").exists()]
    return libraries[0] if libraries else None


@cache
def cudnn_library() -> ctypes.CDLL:
    """Load cuDNN. Raises :class:`CudnnError` if there is none, or only one that needs a GPU."""
    path = cudnn_path()
    if path is None:
        raise CudnnError("this torch is a CPU build or has no cuDNN (a CUDA build can be queried without a GPU)")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise CudnnError(f"{path.name} cannot be loaded: {error}") from error
    library.cudnnGetVersion.restype = ctypes.c_size_t
    if library.cudnnGetVersion() < OLDEST:
        raise CudnnError(
            f"cuDNN {version_text(library.cudnnGetVersion())} cannot be queried without a GPU (9.8 and later can)"
        )
    return library


def missing_kernels(capability: tuple[int, int]) -> str:
    """Return why this cuDNN cannot be queried for a GPU that it has no kernels for; "" if it has.

    Its heuristics would still answer, but with the workspaces of kernels that a build for that GPU does not run.
    """
    version = cudnn_library().cudnnGetVersion()
    if capability >= TURING or version < WITHOUT_VOLTA:
        return ""
    known = ".".join(map(str, capability))
    return f"cuDNN {version_text(version)} has no kernels for compute capability {known} (9.10, of CUDA 12.6, has)"


def version_text(version: int) -> str:
    """Return a version number as text.

    >>> version_text(92000)
    '9.20.0'
    """
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
