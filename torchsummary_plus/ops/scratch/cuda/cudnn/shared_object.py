"""Shared libraries without code, whose symbols are ctypes functions: the ELF that the dynamic linker needs.

The symbols are absolute addresses. Source: the System V ABI, chapters 4 and 5; glibc, ``elf/dl-load.c`` and
``elf/dl-lookup.c``.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

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
