"""Undo copies of replaced torch functions in modules that are imported during a pass."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def captures_undone(answers: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Give modules imported inside this context torch's own functions and classes where they copied an answer.

    ``answers`` are the replacements by module and name, not yet installed. For example, ``torch._dynamo`` copies
    ``torch.cuda.Event`` into a class when it is imported, and would use the replacement as long as the process lives.
    """
    own: dict[int, Any] = {}
    for place, answer in answers.items():
        own.setdefault(id(answer), getattr(*place, None))
    imported_before = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - imported_before:
            module = sys.modules[name]
            if isinstance(module, ModuleType):
                for holder in (module, *_classes_of(module, name)):
                    _give_back(holder, own)


def _classes_of(holder: Any, module: str) -> Iterator[type]:
    """Yield the classes that a module, or a class in it, defines."""
    for value in list(vars(holder).values()):
        if not isinstance(value, type):
            continue
        is_inside = not isinstance(holder, type) or value.__qualname__.startswith(f"{holder.__qualname__}.")
        if value.__module__ == module and is_inside and value is not holder:
            yield value
            yield from _classes_of(value, module)


def _give_back(holder: Any, own: Mapping[int, Any]) -> None:
    for name, value in list(vars(holder).items()):
        is_static = isinstance(value, staticmethod)
        usual = own.get(id(value.__func__ if is_static else value))
        if usual is not None:
            setattr(holder, name, staticmethod(usual) if is_static else usual)
