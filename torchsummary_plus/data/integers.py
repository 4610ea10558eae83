"""Integer arguments: Python's and NumPy's integers, but not booleans."""

from __future__ import annotations

from numbers import Integral
from typing import Any, TypeGuard

from .errors import InputError
from .units import describe


def is_integer(value: Any) -> TypeGuard[int]:
    """Return whether a value is an integer, Python's or NumPy's.

    >>> is_integer(3), is_integer(True), is_integer(3.0)
    (True, False, False)
    """
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def integer(name: str, value: Any, least: int, others: str = "") -> int:
    """Return an argument as a Python integer; ``others`` are the accepted values besides integers, for the message.

    Raises :class:`InputError` for anything but an integer of at least ``least``.

    >>> integer("batch_size", 32, 1)
    32
    """
    if not is_integer(value) or value < least:
        raise InputError(f"{name} is {describe(value)}; accepted: {others}an integer of at least {least}")
    return int(value)
