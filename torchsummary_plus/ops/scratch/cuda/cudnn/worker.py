"""Answer queries for cuDNN in a subprocess without torch, one JSON line for each (:mod:`.queries` starts it).

Usage: ``python worker.py CUDNN_PATH CUDA_VERSION``.

cuDNN omits engines if ``cublasLtCreate`` fails (matrix products for 1 x 1 kernels, Winograd and FFT), if there is no
``libcuda``, or if NVRTC compiles nothing (kernels compiled at run time: depthwise ones, for example). Stand-ins replace
these libraries here, where no kernel runs: cublasLt knows one algorithm, without workspace; every call of the driver
succeeds; NVRTC compiles anything at once, to zeros.
"""

from __future__ import annotations

import ctypes
import json
import platform
import struct
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

OBJECTS = ("MatmulDesc", "MatmulPreference", "MatrixLayout", "MatrixTransformDesc")
"""The kinds of cublasLt descriptors."""

LOADERS = ("cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryGetKernel", "cuLinkCreate", "cuCtxGetCurrent")
"""Driver functions that write a handle to their first argument."""

DRIVER_VERSION = 13000
NUMBERS = {
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
    driver |= {name: _writing(ctypes.c_int, number) for name, number in NUMBERS.items()}
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


def main(cudnn: str, cuda: str) -> None:
    """Answer each JSON line on standard input with one on standard output: the workspaces, or cuDNN's error."""
    sys.path.append(str(Path(__file__).parent))
    backend = import_module("backend")  # Not by its package, whose code imports torch.
    load_stand_ins(cuda)
    backend.cudnn_path = lambda: Path(cudnn)  # type: ignore[attr-defined]
    for line in sys.stdin:
        (kind, dtype, last, *sizes), device, mode, refused, every = json.loads(line)
        question = backend.Question(backend.Kind(kind), dtype, last, *map(tuple, sizes))
        answer: dict[str, Any]
        try:
            answer = {"workspaces": list(backend.workspaces(question, device, mode, frozenset(refused), every))}
        except backend.CudnnError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
