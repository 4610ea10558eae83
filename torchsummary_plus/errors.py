"""Every error the package raises on purpose: one family, each also a built-in that old handlers catch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .units import describe


class SummaryError(Exception):
    """The root of the family: catch this to catch everything this package raises on purpose."""


class InputError(SummaryError, ValueError):
    """An argument is not one of the accepted values; the message names those that are."""


class UnsupportedError(SummaryError, RuntimeError):
    """The request is understood, and cannot be answered for this model or on this machine."""


class MissingExtraError(SummaryError, ImportError):
    """A view needs a package that is not installed; the message has the pip command."""


@dataclass(eq=False)
class ForwardError(SummaryError, RuntimeError):
    """The model's own forward failed: where, on which input shapes, why, and what to try.

    ``path`` is the module's dotted path ("" for the root), ``class_name`` its class, ``input_shapes`` the
    shapes it was given, ``original`` the message of the exception underneath (also ``__cause__``), ``reached``
    the rows that had finished before it, and ``hint`` what usually cures it ("" when nothing is known).
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
            lines.append("Rows reached before it: " + (f"({more} more), " if more else "") + ", ".join(shown))
        if self.hint:
            lines.append(f"Hint: {self.hint}")
        return "\n".join(lines)

    @property
    def where(self) -> str:
        """The failing module as text, e.g. ``layer1.0.conv2 (Conv2d)``."""
        return f"{self.path} ({self.class_name})" if self.path else f"the model itself ({self.class_name})"


@dataclass(eq=False)
class StepError(SummaryError, RuntimeError):
    """A step failed outside the model's forward.

    ``phase`` is "loss", "backward", "optimizer", "train_step" or "builder", ``where`` the module it happened for (""
    for none), ``original`` the message of the exception underneath (also ``__cause__``), and ``hint`` what usually
    cures it ("" when nothing is known).
    """

    phase: str
    where: str
    original: str
    hint: str = ""

    def __str__(self) -> str:
        said = f"the {self.phase}{f' of {self.where}' if self.where else ''} failed: {self.original}"
        return f"{said}\nHint: {self.hint}" if self.hint else said


def choice_error(what: str, given: object, accepted: Iterable[object]) -> InputError:
    """An :class:`InputError` that names every accepted value.

    >>> str(choice_error("style", "fancy", ["torchsummary", "tree"]))
    "style is 'fancy'; accepted: 'torchsummary', 'tree'"
    """
    return InputError(f"{what} is {describe(given)}; accepted: {', '.join(map(describe, accepted))}")
