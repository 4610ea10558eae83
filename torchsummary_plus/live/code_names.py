"""What code refers to: the names in functions, the packages that objects are from, the modules that it imports."""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, str(Path(__file__).parents[1]))
"""Folders whose code is not searched for globals and classes; this package is among them."""

_INSTALLED = ("site-packages", "dist-packages")
"""Folder names of packages installed for all environments or for a user."""


def package_of(value: Any) -> str:
    """Return the top package of a function, a class, or any other object's class."""
    return top_of(getattr(value, "__module__", None) or type(value).__module__)


def top_of(module: Any) -> str:
    """Return the top package in a module's name."""
    return str(module).partition(".")[0]


@lru_cache(maxsize=4096)
def names_of(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the global names and all other names that code uses, including nested functions."""
    named = {instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in _OF_GLOBALS}
    others = set(code.co_names)
    if "globals" in named:
        named |= {constant for constant in code.co_consts if isinstance(constant, str)}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            inner_named, inner_others = names_of(inner)
            named |= inner_named
            others |= inner_others
    return frozenset(named), frozenset(others)


_OF_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}


@lru_cache(maxsize=4096)
def is_library(path: str | None) -> bool:
    """Whether a file belongs to Python, to an installed package or to this one."""
    if path is None or path.startswith(_LIBRARIES) or any(f"{os.sep}{name}{os.sep}" in path for name in _INSTALLED):
        return True
    folders = [folder for folder in sys.path if folder and path.startswith(folder + os.sep)]
    return any(_is_installed(folder, path[len(folder) + 1 :].partition(os.sep)[0]) for folder in folders)


@lru_cache(maxsize=256)
def _is_installed(folder: str, name: str) -> bool:
    """Whether a package or module of a folder was installed there, as by ``pip install --target``.

    Source: the Python packaging specification, "Recording installed projects".
    """
    listed = (f"\n{record.read_text(errors='replace')}" for record in Path(folder).glob("*.dist-info/RECORD"))
    return any(f"\n{name}/" in text or f"\n{name}," in text for text in listed)


def is_of_user(module: ModuleType) -> bool:
    """Whether a module is a user's own, which may have no file, rather than an installed or built-in one."""
    path = getattr(module, "__file__", None)
    if path is not None or getattr(module, "__spec__", None) is not None:
        return not is_library(path)
    whole = sys.modules.get(top_of(module.__name__), module)
    return whole is module or not is_library(getattr(whole, "__file__", None))


def imported_by(function: FunctionType, names: frozenset[str]) -> Iterator[ModuleType]:
    """Yield the user's modules among the names that a function uses, as when it imports them itself, by name."""
    package = function.__globals__.get("__package__")
    for name in sorted(names):
        for path in (name, f"{package}.{name}"):
            module = sys.modules.get(path)
            if isinstance(module, ModuleType) and is_of_user(module):
                yield module
