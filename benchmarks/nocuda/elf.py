"""What a shared library needs, read by binutils from its ELF file: libraries, and symbols with their version nodes."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Library:
    """The names of the libraries that a library needs, and its undefined symbols.

    ``undefined`` maps a symbol to (the library that its version names, the version node), or None without a version.
    """

    needed: tuple[str, ...]
    undefined: dict[str, tuple[str, str] | None]


def read_library(path: Path) -> Library:
    """Read an ELF file. Of version nodes with one name, which glibc has but no library of CUDA, the last counts.

    >>> import sys
    >>> "libc.so.6" in read_library(Path(sys.executable)).needed
    True
    """
    private, symbols = (
        subprocess.run([*command, path], capture_output=True, text=True, check=True).stdout
        for command in (("objdump", "-p"), ("nm", "--dynamic", "--undefined-only", "--with-symbol-versions"))
    )
    owners: dict[str, str] = {}
    for library, nodes in re.findall(r"required from (\S+):\n((?:\s+0x.*\n)+)", private):
        owners |= dict.fromkeys(re.findall(r"\S+$", nodes, re.MULTILINE), library)
    undefined: dict[str, tuple[str, str] | None] = {}
    for name, node in re.findall(r" [Uvw] (\w+)(?:@(\S+))?$", symbols, re.MULTILINE):
        undefined[name] = (owners[node], node) if node else None
    return Library(tuple(re.findall(r"NEEDED +(\S+)", private)), undefined)
