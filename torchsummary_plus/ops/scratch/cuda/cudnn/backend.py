"""cuDNN's backend C interface: descriptors with attributes, and the plans of its heuristics for a convolution on a GPU.

Names and numbers follow ``cudnn_graph_v9.h`` in NVIDIA's package. A convolution is described as torch does:
``build_opgraph``, ``getTensorDescriptor``, ``getConvDescriptor`` in aten/src/ATen/native/cudnn/Conv_v8.cpp, and
NVIDIA's cudnn-frontend (``cudnn_frontend_Operation.h``, ``..._EngineFallbackList.h``).

:mod:`.queries` runs this file in a subprocess without torch: ``python backend.py CUDNN_PATH CUDA_VERSION`` answers each
line of JSON with one. cuDNN omits engines if ``cublasLtCreate`` fails (matrix products for 1 x 1 kernels, Winograd and
FFT), if there is no ``libcuda``, or if NVRTC compiles nothing (kernels compiled at run time: depthwise ones, for
example). Stand-ins replace these libraries there, where no kernel runs: cublasLt knows one algorithm, without
workspace; every call of the driver succeeds; NVRTC compiles anything at once, to zeros.
"""

from __future__ import annotations

import ctypes
import json
import platform
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from math import prod
from pathlib import Path
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
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    CONVOLUTION_MODE = 7
    HEURISTIC_MODE = 8
    NUMERICAL_NOTE = 11
    DESCRIPTOR = 15
    CHAR = 24


NUMBERS: dict[Type, Any] = {
    Type.INT64: ctypes.c_int64, Type.FLOAT: ctypes.c_float, Type.DOUBLE: ctypes.c_double, Type.CHAR: ctypes.c_char
}  # fmt: skip
"""ctypes' types of the numbers that are no ``int``."""


class Descriptor:
    """A backend descriptor, destroyed with the last reference to it; it holds those that it was set to."""

    def __init__(self, kind: Kind) -> None:
        self.library = cudnn_library()
        self.pointer = ctypes.c_void_p()
        self.others: list[Descriptor] = []
        check(self.library.cudnnBackendCreateDescriptor(int(kind), ctypes.byref(self.pointer)), kind.name)

    def __del__(self) -> None:
        if self.pointer:
            self.library.cudnnBackendDestroyDescriptor(self.pointer)

    def set(self, attribute: int, kind: Type, *values: Any) -> Descriptor:
        """Set an attribute to values of one type; the bytes of a string are numbers, too."""
        if kind is Type.DESCRIPTOR:
            self.others += values
            array = _pointers(values)
        else:
            array = (NUMBERS.get(kind, ctypes.c_int) * len(values))(*values)
        count = ctypes.c_int64(len(array))
        check(self.library.cudnnBackendSetAttribute(self.pointer, attribute, int(kind), count, array), attribute)
        return self

    def finalize(self) -> Descriptor:
        """Finalize the descriptor. Raises :class:`CudnnError` if cuDNN rejects it."""
        check(self.library.cudnnBackendFinalize(self.pointer), "finalize")
        return self

    def numbers(self, attribute: int, kind: Type, most: int = 1) -> list[int]:
        """Return an attribute's numbers, at most ``most``."""
        values = (NUMBERS.get(kind, ctypes.c_int) * most)()
        return list(values[: self._get(attribute, kind, most, values)])

    def descriptors(self, attribute: int, kind: Kind, most: int = 0) -> list[Descriptor]:
        """Return an attribute's descriptors: at most ``most``, or by default all."""
        empty = [Descriptor(kind) for _ in range(most or self._get(attribute, Type.DESCRIPTOR, 0, None))]
        return empty[: self._get(attribute, Type.DESCRIPTOR, len(empty), _pointers(empty))]

    def _get(self, attribute: int, kind: Type, most: int, target: object) -> int:
        """Write an attribute's values to an array of ``most``, and return how many they are."""
        get, count = self.library.cudnnBackendGetAttribute, ctypes.c_int64()
        check(get(self.pointer, attribute, int(kind), ctypes.c_int64(most), ctypes.byref(count), target), attribute)
        return count.value


def _pointers(descriptors: Sequence[Descriptor]) -> ctypes.Array[Any]:
    return (ctypes.c_void_p * len(descriptors))(*(descriptor.pointer for descriptor in descriptors))


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


@cache
def cudnn_path() -> Path | None:
    """Return the cuDNN library of the imported torch, from NVIDIA's package or torch's own; None if there is none."""
    if __name__ == "__main__":  # In the subprocess, without torch.
        return Path(sys.argv[1])
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


def refusal(capability: tuple[int, int]) -> str:
    """Return why cuDNN cannot be queried for a GPU; "" if it can.

    Without kernels for it, its heuristics would answer with those that a build for that GPU does not run.
    """
    try:
        version = cudnn_library().cudnnGetVersion()
    except CudnnError as error:
        return str(error)
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


# A convolution, described as torch does, and the plans of the heuristics for it

INSTANT, MODE_B, FALLBACK = 0, 1, 2
"""Heuristics modes (``cudnnBackendHeurMode_t``)."""

TENSOR_CORE, DOWN_CONVERT, NONDETERMINISTIC, NOTES = 0, 1, 4, 10
"""Numerical notes of an engine that torch checks, and their number (``cudnnBackendNumericalNote_t``)."""

DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
"""``cudnnDataType_t`` by torch dtype."""

CROSS_CORRELATION = 1
ALIGNMENT = 32
"""The alignment torch reports for its allocator's tensors, which start at multiples of 512 bytes (``getAlignment``)."""

COMPUTE_TYPE, MODE, DILATIONS, STRIDES, POST_PADDINGS, PRE_PADDINGS, SPATIAL_DIMS = range(100, 107)
HEURISTICS_MODE, HEURISTICS_GRAPH, HEURISTICS_RESULTS, HEURISTICS_DEVICE = 200, 201, 202, 204
CONFIG_ENGINE = 300
PLAN_CONFIG, PLAN_WORKSPACE, PLAN_DEVICE = 401, 402, 407
OPERATIONS = {Kind.FORWARD: 700, Kind.BACKWARD_DATA: 706, Kind.BACKWARD_FILTER: 712}
"""First attribute of each operation: alpha, beta, the convolution, then w, x and y or their gradients."""
GRAPH_OPERATIONS = 801
BYTE_ALIGNMENT, DATA_TYPE, DIMENSIONS, TENSOR_STRIDES, UNIQUE_ID = 900, 901, 902, 903, 906
ENGINE_NOTES = 1303
DEVICE_JSON = 2702


@dataclass(frozen=True, slots=True)
class Question:
    """A convolution to query: the forward reads x and writes y; w are the weights.

    All three are dense in one memory format: channels-last (``last``) or channels-first.
    """

    kind: Kind
    dtype: str
    last: bool
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


def workspaces(
    question: Question, device_text: str, mode: int, refused: frozenset[int], every: bool = False
) -> Iterator[int]:
    """Yield the workspaces, in bytes, of the heuristics' plans that can be built, in order.

    ``device_text`` holds the GPU's properties as JSON. Engines with a ``refused`` numerical note are skipped. Each plan
    is built on demand; the first that needs no workspace is the last, unless ``every`` plan is wanted. Raises
    :class:`CudnnError` if the heuristics have no answer.
    """
    device = device_descriptor(device_text)
    heuristics = Descriptor(Kind.HEURISTICS).set(HEURISTICS_GRAPH, Type.DESCRIPTOR, _graph(question))
    heuristics.set(HEURISTICS_MODE, Type.HEURISTIC_MODE, mode)
    heuristics.set(HEURISTICS_DEVICE, Type.DESCRIPTOR, device).finalize()
    for config in heuristics.descriptors(HEURISTICS_RESULTS, Kind.ENGINE_CONFIG):
        (engine,) = config.descriptors(CONFIG_ENGINE, Kind.ENGINE, 1)
        if refused.intersection(engine.numbers(ENGINE_NOTES, Type.NUMERICAL_NOTE, NOTES)):
            continue
        try:
            plan = Descriptor(Kind.PLAN).set(PLAN_CONFIG, Type.DESCRIPTOR, config)
            (size,) = plan.set(PLAN_DEVICE, Type.DESCRIPTOR, device).finalize().numbers(PLAN_WORKSPACE, Type.INT64)
        except CudnnError:
            continue  # A plan that cannot be built: torch tries the next.
        yield size
        if size == 0 and not every:
            return


def _graph(question: Question) -> Descriptor:
    """Return the graph of one operation, which reads and writes tensors by the names w, x and y."""
    convolution = Descriptor(Kind.CONVOLUTION)
    compute = question.dtype if question.dtype == "float64" else "float32"
    convolution.set(COMPUTE_TYPE, Type.DATA_TYPE, DATA_TYPES[compute])
    convolution.set(MODE, Type.CONVOLUTION_MODE, CROSS_CORRELATION)
    convolution.set(SPATIAL_DIMS, Type.INT64, len(question.stride))
    for attribute in (PRE_PADDINGS, POST_PADDINGS):
        convolution.set(attribute, Type.INT64, *question.padding)
    convolution.set(DILATIONS, Type.INT64, *question.dilation)
    convolution.set(STRIDES, Type.INT64, *question.stride).finalize()
    operation, first = Descriptor(question.kind), OPERATIONS[question.kind]
    scale = Type.DOUBLE if compute == "float64" else Type.FLOAT
    operation.set(first, scale, 1.0).set(first + 1, scale, 0.0)
    operation.set(first + 2, Type.DESCRIPTOR, convolution)
    axes = [0, *range(2, len(question.x)), 1] if question.last else list(range(len(question.x)))
    for attribute, name, sizes in zip(range(first + 3, first + 6), "wxy", (question.w, question.x, question.y)):
        tensor = Descriptor(Kind.TENSOR).set(DATA_TYPE, Type.DATA_TYPE, DATA_TYPES[question.dtype])
        strides = {axis: prod(sizes[inner] for inner in axes[place + 1 :]) for place, axis in enumerate(axes)}
        tensor.set(DIMENSIONS, Type.INT64, *sizes)
        tensor.set(TENSOR_STRIDES, Type.INT64, *(strides[axis] for axis in range(len(sizes))))
        tensor.set(UNIQUE_ID, Type.INT64, ord(name)).set(BYTE_ALIGNMENT, Type.INT64, ALIGNMENT)
        operation.set(attribute, Type.DESCRIPTOR, tensor.finalize())
    return Descriptor(Kind.GRAPH).set(GRAPH_OPERATIONS, Type.DESCRIPTOR, operation.finalize()).finalize()


@cache
def device_descriptor(text: str) -> Descriptor:
    """Return a cached descriptor that replaces a device handle.

    Raises :class:`CudnnError`, also for a second GPU: some heuristics keep the properties of a process's first one.
    """
    if device_descriptor.cache_info().currsize:
        raise CudnnError("this process has queried cuDNN for another GPU, whose properties it keeps")
    return Descriptor(Kind.DEVICE).set(DEVICE_JSON, Type.CHAR, *text.encode(), 0).finalize()


# The subprocess, and the stand-ins for CUDA's libraries that it loads

OBJECTS = ("MatmulDesc", "MatmulPreference", "MatrixLayout", "MatrixTransformDesc")
"""The kinds of cublasLt descriptors."""

LOADERS = ("cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryGetKernel", "cuLinkCreate", "cuCtxGetCurrent")
"""Driver functions that write a handle to their first argument."""

DRIVER_VERSION = 13000
DRIVER_NUMBERS = {
    "cuCtxGetLimit": 1024,
    "cuDeviceGet": 0,
    "cuDeviceGetCount": 1,
    "cuDriverGetVersion": DRIVER_VERSION,
    "cuKernelGetAttribute": 0,
    "cuOccupancyMaxPotentialClusterSize": 8,
}
"""Driver functions that write this number to it."""

DOERS = (
    *("cuCtxPopCurrent", "cuCtxPushCurrent", "cuGetErrorName", "cuGetErrorString", "cuKernelSetAttribute"),
    *("cuLaunchCooperativeKernel", "cuLaunchKernel", "cuLaunchKernelEx", "cuLibraryUnload"),
    *("cuLinkAddData", "cuLinkComplete", "cuLinkDestroy", "cuStreamGetCtx"),
)
"""Driver functions that do nothing. cuDNN's run-time compiler looks up these three groups in ``libcuda``."""

LT_VERSION = 130200
HANDLE = 1 << 16
RESULT_BYTES, WAVES_AT = 96, 76
"""``cublasLtMatmulHeuristicResult_t``: its size, and the offset of ``wavesCount``."""

COMPILED = ("CUBIN", "PTX", "LTOIR", "ProgramLog")
"""NVRTC's outputs, each with a function for its size; all are ``COMPILED_BYTES`` zeros."""
COMPILED_BYTES = 64
COMPILERS = (
    *("nvrtcCompileProgram", "nvrtcDestroyProgram", "nvrtcAddNameExpression", "nvrtcGetErrorString"),
    "__nvrtcCPEx",
)
"""NVRTC functions that do nothing; the last is in no header, and cuDNN compiles some kernels by it."""

_alive: list[Any] = []


def load_stand_ins(cuda: str) -> None:
    """Load them under the names that cuDNN looks for; ``cuda`` is the version of CUDA that torch was built with."""
    major, minor = map(int, cuda.split(".")[:2])
    succeed = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    make = _writing(ctypes.c_size_t, HANDLE)
    driver = dict.fromkeys(DOERS, succeed) | dict.fromkeys(LOADERS, make)
    driver |= {name: _writing(ctypes.c_int, number) for name, number in DRIVER_NUMBERS.items()}
    suffixes = ("Init_internal", "Destroy", "SetAttribute", "GetAttribute")
    cublas = dict.fromkeys((f"cublasLt{kind}{suffix}" for kind in OBJECTS for suffix in suffixes), succeed)
    cublas |= dict.fromkeys((f"cublasLt{name}" for name in ("Destroy", "GetProperty", "Matmul")), succeed)
    cublas |= {f"cublasLt{kind}Create": make for kind in ("", *OBJECTS)}
    cublas["cublasLtMatrixTransform"] = succeed
    cublas["cublasLtGetVersion"] = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: LT_VERSION)
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    heuristic = ctypes.CFUNCTYPE(integer, *(pointer,) * 7, integer, pointer, ctypes.POINTER(integer))
    cublas["cublasLtMatmulAlgoGetHeuristic"] = heuristic(_one_algorithm)
    zeros = ctypes.c_char * COMPILED_BYTES
    compiler = dict.fromkeys(COMPILERS, succeed)
    compiler |= {f"nvrtcGet{kind}Size": _writing(ctypes.c_size_t, None, COMPILED_BYTES) for kind in COMPILED}
    compiler |= {f"nvrtcGet{kind}": _writing(zeros, None, zeros()) for kind in COMPILED}
    compiler |= {"nvrtcCreateProgram": make, "nvrtcVersion": _writing(ctypes.c_int, major, minor)}
    libraries = {f"libcublasLt.so.{major}": cublas, "libcuda.so.1": driver, f"libnvrtc.so.{major}": compiler}
    for name, functions in libraries.items():
        _alive.extend((functions, load(name, functions)))


def _writing(kind: Any, *values: Any) -> Any:
    """Return a function that writes each value to where an argument points, None to leave that alone."""

    def write(*targets: Any) -> int:
        for target, value in zip(targets, values):
            if value is not None:
                target[0] = value
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.POINTER(kind),) * len(values))(write)


def _one_algorithm(*arguments: Any) -> int:
    wanted, results, count = arguments[7:]
    ctypes.memset(results, 0, RESULT_BYTES * wanted)
    ctypes.c_float.from_address(results + WAVES_AT).value = 1.0
    count[0] = 1
    return 0


MACHINES = {"x86_64": 62, "aarch64": 183}
"""``e_machine`` of the platforms with CUDA wheels."""

SHARED, LOAD, DYNAMIC, STACK = 3, 1, 2, 0x6474E551
READ_WRITE = 6
GLOBAL_FUNCTION, ABSOLUTE = 0x12, 0xFFF1
HASH, STRINGS, SYMBOLS, STRINGS_SIZE, SYMBOL_SIZE, SONAME = 4, 5, 6, 10, 11, 14
HEADER, SEGMENT, SYMBOL = 64, 56, 24
"""Bytes of the file header, a program header and a symbol."""


def is_possible() -> bool:
    """Return whether this platform can load such libraries."""
    return sys.platform == "linux" and platform.machine() in MACHINES and sys.maxsize > 2**32


def shared_object(name: str, addresses: Mapping[str, int]) -> bytes:
    """Return a shared library with this name (``DT_SONAME``) and symbols at these addresses."""
    strings, places = b"\0", {}
    for text in (name, *addresses):
        places[text] = len(strings)
        strings += text.encode() + b"\0"
    count = len(addresses) + 1
    chain = [0, *range(2, count), 0][:count]
    tables = {
        SYMBOLS: bytes(SYMBOL)
        + b"".join(
            struct.pack("<IBBHQQ", places[symbol], GLOBAL_FUNCTION, 0, ABSOLUTE, address, 0)
            for symbol, address in addresses.items()
        ),
        STRINGS: strings + bytes(-len(strings) % 8),
        HASH: struct.pack(f"<3I{count}I", 1, count, min(1, len(addresses)), *chain) + bytes(4 * ((count + 1) % 2)),
    }
    at, content = HEADER + 3 * SEGMENT, b""
    tags = {SONAME: places[name], STRINGS_SIZE: len(strings), SYMBOL_SIZE: SYMBOL}
    for tag, table in tables.items():
        tags[tag] = at + len(content)
        content += table
    dynamic = b"".join(struct.pack("<2Q", *entry) for entry in (*tags.items(), (0, 0)))
    start = at + len(content)
    whole = start + len(dynamic)
    machine = MACHINES[platform.machine()]
    header = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header += struct.pack("<2HI3QI6H", SHARED, machine, 1, 0, HEADER, 0, 0, HEADER, SEGMENT, 3, 0, 0, 0)
    segments = struct.pack("<2I6Q", LOAD, READ_WRITE, 0, 0, 0, whole, whole, 4096)
    segments += struct.pack("<2I6Q", DYNAMIC, READ_WRITE, start, start, start, len(dynamic), len(dynamic), 8)
    segments += struct.pack("<2I6Q", STACK, READ_WRITE, 0, 0, 0, 0, 0, 16)
    return header + segments + content + dynamic


def load(name: str, functions: Mapping[str, Any]) -> ctypes.CDLL:
    """Load a library with these ctypes functions, which must outlive it. Raises :class:`OSError`."""
    addresses = {symbol: ctypes.cast(function, ctypes.c_void_p).value or 0 for symbol, function in functions.items()}
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(shared_object(name, addresses))
        file.flush()
        return ctypes.CDLL(file.name, mode=ctypes.RTLD_GLOBAL)


def main(cuda: str) -> None:
    """Answer each JSON line on standard input with one on standard output: the workspaces, or cuDNN's error."""
    load_stand_ins(cuda)
    for line in sys.stdin:
        (kind, dtype, last, *sizes), device, mode, refused, every = json.loads(line)
        question = Question(Kind(kind), dtype, last, *map(tuple, sizes))
        answer: dict[str, Any]
        try:
            answer = {"workspaces": list(workspaces(question, device, mode, frozenset(refused), every))}
        except CudnnError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[2])
