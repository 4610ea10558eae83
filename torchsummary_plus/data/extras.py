"""Optional dependencies."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import MissingExtraError


def need_extra(module: str, extra: str) -> Any:
    """Import and return a module of an optional dependency.

    Raises :class:`MissingExtraError`, with the pip command, if it is not installed.

    >>> need_extra("no_such_package.plots", "plot")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    torchsummary_plus.data.errors.MissingExtraError: no_such_package is not installed: pip install ...
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:  # The package exists but lacks a dependency.
            raise
        raise MissingExtraError(f'{package} is not installed: pip install "torchsummary_plus[{extra}]"') from None
