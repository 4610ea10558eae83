"""What a shared library needs, read from its ELF file: libraries, and symbols with their version nodes."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STRTAB, DYNAMIC, DYNSYM, VERNEED, VERSYM = 3, 6, 11, 0x6FFFFFFE, 0x6FFFFFFF
NEEDED, SONAME = 1, 14
HIDDEN = 0x8000


@dataclass(frozen=True)
class Library:
    """A library's own name, the names of those that it needs, and its undefined symbols.

    ``undefined`` maps a symbol to (the library that its version names, the version node), or None without a version.
    """

    soname: str | None
    needed: tuple[str, ...]
    undefined: dict[str, tuple[str, str] | None]


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    info: int


def read_library(path: Path) -> Library:
    """Read a 64-bit little-endian ELF file.

    >>> import sys
    >>> read_library(Path(sys.executable)).undefined["__libc_start_main"][0]
    'libc.so.6'
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        sections = list(_sections(data))
        names = {NEEDED: [], SONAME: []}  # type: dict[int, list[str]]
        for section in sections:
            if section.kind == DYNAMIC:
                for at in range(section.offset, section.offset + section.size, 16):
                    tag, value = struct.unpack_from("<qQ", data, at)
                    if tag in names:
                        names[tag].append(_text(data, sections[section.link], value))
        return Library(next(iter(names[SONAME]), None), tuple(names[NEEDED]), _undefined(data, sections))


def _sections(data: mmap.mmap) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", data, 40)
    entry, count = struct.unpack_from("<HH", data, 58)
    for index in range(count):
        _, kind, _, _, offset, size, link, info = struct.unpack_from("<IIQQQQII", data, table + index * entry)
        yield _Section(kind, offset, size, link, info)


def _text(data: mmap.mmap, strings: _Section, at: int) -> str:
    start = strings.offset + at
    return data[start : data.find(b"\0", start)].decode()


def _undefined(data: mmap.mmap, sections: list[_Section]) -> dict[str, tuple[str, str] | None]:
    by_kind = {section.kind: section for section in sections}
    symbols, versions = by_kind.get(DYNSYM), by_kind.get(VERSYM)
    if symbols is None:
        return {}
    nodes = dict(_version_nodes(data, sections, by_kind.get(VERNEED)))
    undefined: dict[str, tuple[str, str] | None] = {}
    for index in range(1, symbols.size // 24):
        name, _, _, section_index = struct.unpack_from("<IBBH", data, symbols.offset + index * 24)
        if section_index == 0:
            node = struct.unpack_from("<H", data, versions.offset + index * 2)[0] & ~HIDDEN if versions else 0
            undefined[_text(data, sections[symbols.link], name)] = nodes.get(node)
    return undefined


def _version_nodes(
    data: mmap.mmap, sections: list[_Section], needs: _Section | None
) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the library's name and the version's name for the number of each version node."""
    at = needs.offset if needs else 0
    for _ in range(needs.info if needs else 0):
        _, count, file, aux, following = struct.unpack_from("<HHIII", data, at)
        node = at + aux
        for _ in range(count):
            _, _, number, name, next_node = struct.unpack_from("<IHHII", data, node)
            strings = sections[needs.link] if needs else sections[0]
            yield number, (_text(data, strings, file), _text(data, strings, name))
            node += next_node
        at += following
