"""The errors and warnings of this package; each error is also a built-in exception, so existing handlers catch it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Any

from .units import describe, one_line


class SummaryError(Exception):
    """Base class of every error this package raises."""


class InputError(SummaryError, ValueError):
    """An invalid argument; the message lists the accepted values."""


class UnsupportedError(SummaryError, RuntimeError):
    """A valid request that cannot be answered for this model or on this machine."""


class MissingExtraError(SummaryError, ImportError):
    """An optional dependency is missing; the message has the pip command."""


@dataclass(eq=False)
class ForwardError(SummaryError, RuntimeError):
    """The model's forward failed: where, on which input shapes, why, and how to fix it.

    ``path`` is the module's dotted path ("" for the root), ``class_name`` its class, ``input_shapes`` its input
    shapes, ``original`` the message of the underlying exception (also ``__cause__``), ``reached`` the rows that had
    finished before it, and ``hint`` the usual fix ("" if none is known).
    """

    path: str
    class_name: str
    input_shapes: str
    original: str
    reached: tuple[str, ...] = field(default=())
    hint: str = ""

    def __str__(self) -> str:
        lines = [f"{self.where} failed on input {self.input_shapes}: {self.original}"]
        if self.reached:
            shown = self.reached[-5:]
            more = len(self.reached) - len(shown)
            lines.append("Rows reached before it: " + (f"({more} more), " if more else "") + one_line(", ".join(shown)))
        if self.hint:
            lines.append(f"Hint: {self.hint}")
        return "\n".join(lines)

    @property
    def where(self) -> str:
        """The failing module as text, e.g. ``layer1.0.conv2 (Conv2d)``."""
        return one_line(f"{self.path or 'the model itself'} ({self.class_name})")


@dataclass(eq=False)
class StepError(SummaryError, RuntimeError):
    """A step failed outside the model's forward.

    ``phase`` is "loss", "backward", "optimizer", "train_step" or "builder", ``where`` the module it happened in ("" for
    none), ``original`` the message of the underlying exception (also ``__cause__``), and ``hint`` the usual fix ("" if
    none is known).
    """

    phase: str
    where: str
    original: str
    hint: str = ""

    def __str__(self) -> str:
        message = f"the {self.phase}{f' of {self.where}' if self.where else ''} failed: {self.original}"
        return f"{message}\nHint: {self.hint}" if self.hint else message


def choice_error(
    what: str, value: object, accepted: Iterable[object], synonyms: Mapping[str, str] = MappingProxyType({})
) -> InputError:
    """Return an :class:`InputError` that lists the accepted values, and names the one that was meant, if any is near.

    ``synonyms`` maps other tools' words to accepted ones.

    >>> str(choice_error("style", "fancy", ["torchsummary", "tree"]))
    "style is 'fancy'; accepted: 'torchsummary', 'tree'"
    >>> str(choice_error("mode", "training", ["train", "eval"]))
    "mode is 'training'; accepted: 'train', 'eval'; did you mean 'train'?"
    """
    accepted = list(accepted)
    words = [word for word in accepted if isinstance(word, str)]
    near: list[str] = []
    if isinstance(value, str):
        word = value.strip().lower()
        near = [synonyms[word]] if word in synonyms else get_close_matches(word, words, 1, 0.75)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"{what} is {describe(value)}; accepted: {', '.join(map(describe, accepted))}{meant}")


def need_extra(module: str, extra: str) -> Any:
    """Import and return a module of an optional dependency. Raises :class:`MissingExtraError` without it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:  # The package exists but lacks a dependency.
            raise
        raise MissingExtraError(f'{package} is not installed: pip install "torchsummary_plus[{extra}]"') from None


PACKAGE = __name__.partition(".")[0]


class LeftOutWarning(UserWarning):
    """Something in a file is left out of an answer; the message says what."""


def warn(message: str, category: type[Warning] = LeftOutWarning) -> None:
    """Warn at the innermost line outside this package and its decorators."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith((f"{PACKAGE}.", "contextlib")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
