"""Names of torch that a release may lack: looked up once, each with the consequence of its absence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any, NoReturn

import torch

from ..data.errors import UnsupportedError

_MISSING: Any = object()


@dataclass(frozen=True)
class PrivateName:
    """A private name of torch: whether this release has it, and the consequence if not."""

    name: str
    is_found: bool
    loss: str

    def __str__(self) -> str:
        return f"torch {torch.__version__} has no {self.name}: {self.loss}"


_probed: dict[str, PrivateName] = {}


def private_names() -> tuple[PrivateName, ...]:
    """List the private names of torch that this package uses, with the consequence of each one's absence.

    >>> [str(name) for name in private_names() if name.name == "torch._C._swap_tensor_impl" and not name.is_found]
    []
    """
    return tuple(_probed.values())


def missing_names() -> tuple[PrivateName, ...]:
    """List the private names that this release of torch lacks."""
    return tuple(name for name in private_names() if not name.is_found)


def probe(place: str, loss: str, instead: Any = _MISSING, older: str = "") -> Any:
    """Look up ``module:attribute``, or its ``older`` location.

    If it is missing, return ``instead``; by default, a function that raises :class:`UnsupportedError`.
    """
    name = place.replace(":", ".")
    values = (_resolved(known) for known in (place, older) if known)
    value = next((value for value in values if value is not _MISSING), _MISSING)
    _note(name, value is not _MISSING, loss)
    if value is not _MISSING:
        return value
    return partial(_refuse, name) if instead is _MISSING else instead


@dataclass(frozen=True)
class Place:
    """A private name that is replaced in the module or class that has it; without it, ``owner`` is None."""

    owner: Any
    attribute: str
    name: str

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
    value, name = _resolved(where), where.replace(":", ".")
    _note(name, value is not _MISSING, loss)
    owner, _, attribute = where.rpartition("." if "." in where.partition(":")[2] else ":")
    return Place(None if value is _MISSING else resolve_name(owner), attribute, name)


def _resolved(where: str) -> Any:
    try:
        return resolve_name(where)
    except (ImportError, AttributeError):
        return _MISSING


def _note(name: str, is_found: bool, loss: str) -> None:
    """Record a name; if it is probed for several uses, the losses of all."""
    losses = _probed[name].loss.split("; ") if name in _probed else []
    _probed[name] = PrivateName(name, is_found, "; ".join(dict.fromkeys([*losses, loss])))


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(str(_probed[name]))
