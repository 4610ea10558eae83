"""Stand-ins for the libraries that cuDNN requires before it offers some engines; for processes that run no kernel.

cuDNN omits engines if ``cublasLtCreate`` fails (matrix products for 1 x 1 kernels, Winograd and FFT), if there is no
``libcuda``, or if NVRTC compiles nothing (kernels compiled at run time: depthwise ones, for example). Here cublasLt
knows one algorithm, without workspace; every call of the driver succeeds; NVRTC compiles anything at once, to zeros.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
import tempfile
from collections.abc import Mapping
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
    for name, functions in (
        (f"libcublasLt.so.{major}", _cublas_lt()),
        ("libcuda.so.1", _driver()),
        (f"libnvrtc.so.{major}", _compiler(major, minor)),
    ):
        _alive.extend((functions, load(name, functions)))


def _succeeding() -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)


def _writing(kind: Any, number: int) -> Any:
    """Return a function that writes a number to its first argument."""

    def write(target: Any) -> int:
        target[0] = number
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(kind))(write)


def _driver() -> dict[str, Any]:
    functions = dict.fromkeys(DOERS, _succeeding()) | dict.fromkeys(LOADERS, _writing(ctypes.c_size_t, HANDLE))
    return functions | {name: _writing(ctypes.c_int, number) for name, number in NUMBERS.items()}


def _cublas_lt() -> dict[str, Any]:
    succeed, make = _succeeding(), _writing(ctypes.c_size_t, HANDLE)
    suffixes = ("Init_internal", "Destroy", "SetAttribute", "GetAttribute")
    functions = {f"cublasLt{kind}{suffix}": succeed for kind in OBJECTS for suffix in suffixes}
    functions |= {f"cublasLt{kind}Create": make for kind in ("", *OBJECTS)}
    functions |= dict.fromkeys(("cublasLtDestroy", "cublasLtGetProperty", "cublasLtMatmul"), succeed)
    functions["cublasLtMatrixTransform"] = succeed
    functions["cublasLtGetVersion"] = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: LT_VERSION)
    seven = (ctypes.c_void_p,) * 7
    count = ctypes.POINTER(ctypes.c_int)
    functions["cublasLtMatmulAlgoGetHeuristic"] = ctypes.CFUNCTYPE(
        ctypes.c_int, *seven, ctypes.c_int, ctypes.c_void_p, count
    )(_one_algorithm)
    return functions


def _one_algorithm(*arguments: Any) -> int:
    wanted, results, count = arguments[7:]
    ctypes.memset(results, 0, RESULT_BYTES * wanted)
    ctypes.c_float.from_address(results + WAVES_AT).value = 1.0
    count[0] = 1
    return 0


def _compiler(major: int, minor: int) -> dict[str, Any]:
    integers, anything = ctypes.POINTER(ctypes.c_int), ctypes.c_void_p

    def version(first: Any, second: Any) -> int:
        first[0], second[0] = major, minor
        return 0

    def size(program: Any, target: Any) -> int:
        target[0] = COMPILED_BYTES
        return 0

    def content(program: Any, target: Any) -> int:
        ctypes.memset(target, 0, COMPILED_BYTES)
        return 0

    sizes = ctypes.CFUNCTYPE(ctypes.c_int, anything, ctypes.POINTER(ctypes.c_size_t))(size)
    contents = ctypes.CFUNCTYPE(ctypes.c_int, anything, anything)(content)
    functions = dict.fromkeys(COMPILERS, _succeeding())
    functions |= {f"nvrtcGet{kind}Size": sizes for kind in COMPILED} | {
        f"nvrtcGet{kind}": contents for kind in COMPILED
    }
    functions["nvrtcCreateProgram"] = _writing(ctypes.c_size_t, HANDLE)
    functions["nvrtcVersion"] = ctypes.CFUNCTYPE(ctypes.c_int, integers, integers)(version)
    return functions


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
    """Return a shared library with this name (``DT_SONAME``) and symbols at these addresses.

    >>> shared_object("libnothing.so.1", {})[:4]
    b'\\x7fELF'
    """
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
