"""Packages that only some views need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import MissingExtraError


def need_extra(module: str, extra: str) -> Any:
    """A module of a package that one of the extras installs, imported now.

    Raises :class:`MissingExtraError`, with the pip command, where it is not installed.

    >>> need_extra("no_such_package.plots", "plot")
    Traceback (most recent call last):
    torchsummary_plus.errors.MissingExtraError: no_such_package is not installed: pip install "torchsummary_plus[plot]"
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:  # It is there, and lacks something itself.
            raise
        raise MissingExtraError(f'{package} is not installed: pip install "torchsummary_plus[{extra}]"') from None
