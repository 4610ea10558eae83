"""The running torch: its version, and private names that a release may lack, each with what is lost without it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any, NoReturn

import torch

from ..data.errors import UnsupportedError


def parsed(version: str) -> tuple[int, int]:
    """Return the major and minor version, from a string such as "2.15.0+cu132"."""
    match = re.match(r"(\d+)\.(\d+)", version)
    assert match is not None, version
    return int(match[1]), int(match[2])


_THIS = parsed(torch.__version__)
CUDA = parsed(torch.version.cuda)[0] if torch.version.cuda else 0
"""The major version of CUDA that the running torch was built for, 0 for a build without CUDA."""


def since(release: str) -> bool:
    """Whether the running torch is ``release`` (such as "2.15") or later."""
    return parsed(release) <= _THIS


_MISSING: Any = object()


@dataclass(frozen=True)
class PrivateName:
    """A private name of torch that this release lacks, and the consequence."""

    name: str
    loss: str

    def __str__(self) -> str:
        return f"torch {torch.__version__} has no {self.name}: {self.loss}"


_missing: dict[str, PrivateName] = {}


def missing_names() -> tuple[PrivateName, ...]:
    """List the private names that this package uses and this release of torch lacks, with what is lost without each.

    >>> [str(name) for name in missing_names() if name.name == "torch._C._swap_tensor_impl"]
    []
    """
    return tuple(_missing.values())


def probe(place: str, loss: str, instead: Any = _MISSING) -> Any:
    """Look up ``module:attribute``.

    If it is missing, return ``instead``; by default, a function that raises :class:`UnsupportedError`.
    """
    name, value = _looked_up(place, loss)
    if value is not _MISSING:
        return value
    return partial(_refuse, name) if instead is _MISSING else instead


@dataclass(frozen=True)
class Place:
    """A name that is replaced in the module or class that has it; without it, ``owner`` is None."""

    owner: Any
    attribute: str
    name: str = ""

    @property
    def value(self) -> Any:
        """What the release has there. Raises :class:`UnsupportedError` if that is nothing."""
        self.require()
        return getattr(self.owner, self.attribute)

    def set(self, value: Any) -> None:
        """Put something else there. Raises :class:`UnsupportedError` if the release has nothing there."""
        self.require()
        setattr(self.owner, self.attribute, value)

    def require(self) -> None:
        """Raise :class:`UnsupportedError` if this release lacks the name."""
        if self.owner is None:
            _refuse(self.name)


def place(where: str, loss: str) -> Place:
    """Look up the module or class that has ``module:attribute`` or ``module:Class.attribute``.

    >>> place("torch:Tensor.size", "nothing").owner
    <class 'torch.Tensor'>
    """
    name, value = _looked_up(where, loss)
    owner, _, attribute = where.rpartition("." if "." in where.partition(":")[2] else ":")
    return Place(None if value is _MISSING else resolve_name(owner), attribute, name)


def _looked_up(where: str, loss: str) -> tuple[str, Any]:
    """Return a name's text and value. Record a missing name; if it has several uses, with the losses of all."""
    name = where.replace(":", ".")
    try:
        return name, resolve_name(where)
    except (ImportError, AttributeError):
        losses = _missing[name].loss.split("; ") if name in _missing else []
        _missing[name] = PrivateName(name, "; ".join(dict.fromkeys([*losses, loss])))
        return name, _MISSING


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(str(_missing[name]))
