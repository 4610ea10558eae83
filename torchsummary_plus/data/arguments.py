"""Arguments: accepted values, unknown keywords that are rejected with the right one, and functions to register."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import ExitStack
from functools import update_wrapper, wraps
from inspect import Parameter, signature
from typing import Any, Generic, ParamSpec, TypeVar

from .errors import InputError
from .units import describe, is_integer

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

PASS_MODES = ("same", "train", "eval")  # A module's mode during a pass; "same" keeps it.
RUNS = ("auto", "fake", "real")  # How a pass runs.
STEP_MODES = ("train", "eval")  # Kinds of steps.

MODE_SYNONYMS = {"inference": "eval", "infer": "eval", "predict": "eval", "test": "eval", "fit": "train"}
"""Other tools' words for kinds of steps."""

GENERATE = "generate"  # The kind of step that only `estimate_memory` accepts.

CUDNN = AUTO, ASK, RULE = ("auto", "ask", "rule")
"""Sources of cuDNN's workspaces: query cuDNN if possible, query it or raise, never query it."""

FEW = 8  # Maximum number of arguments that a message lists if none has a similar name.


class OptionError(InputError, TypeError):
    """An unknown keyword argument; the message suggests the right one."""


def unknown_argument(call: str, name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> OptionError:
    """Return the error for an argument ``name`` that a call does not have.

    >>> print(unknown_argument("weights", "format", ["path"], {}))
    weights() got an unexpected keyword argument 'format'; accepted: path
    """
    known = list(known)
    accepted = f"; accepted: {', '.join(known)}" if 0 < len(known) <= FEW else ""
    return OptionError(
        f"{call}() got an unexpected keyword argument {name!r}{cure(name, known, elsewhere) or accepted}"
    )


def cure(name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    """Return the end of a message: what to write instead of ``name``, or "" if no known name is similar.

    >>> cure("batchsize", ["batch_size", "depth"], {}), cure("max_depth", [], {"max_depth": "depth="})
    ('; similar names: batch_size', '; write depth=')
    """
    if name in elsewhere:
        return f"; write {elsewhere[name]}"
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"; similar names: {', '.join(near)}" if near else ""


def names_cures(elsewhere: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function reject unknown keyword arguments with :func:`unknown_argument`, without changing its signature.

    >>> @names_cures({"colour": "color="})
    ... def draw(color="red"):
    ...     return color
    >>> draw(colour="blue")
    Traceback (most recent call last):
    torchsummary_plus.data.arguments.OptionError: draw() got an unexpected keyword argument 'colour'; write color=
    """

    def change(call: Callable[P, R]) -> Callable[P, R]:
        by_keyword = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        known = [name for name, parameter in signature(call).parameters.items() if parameter.kind in by_keyword]
        shown = call.__qualname__.removesuffix(".__init__")

        @wraps(call)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    raise unknown_argument(shown, name, known, elsewhere)
            return call(*args, **kwargs)

        return checked

    return change


def integer(name: str, value: Any, least: int, others: str = "") -> int:
    """Return an argument as a Python integer; ``others`` are the accepted values besides integers, for the message.

    Raises :class:`InputError` for anything but an integer of at least ``least``.
    """
    if not is_integer(value) or value < least:
        raise InputError(f"{name} is {describe(value)}; accepted: {others}an integer of at least {least}")
    return int(value)


class Registered(ExitStack, Generic[F]):
    """A registered function, still callable; :meth:`remove` or the end of a ``with`` block unregisters it.

    >>> names = {"double": 2}
    >>> with Registered(lambda x: 2 * x, names, ["double"]) as double:
    ...     double(4)
    8
    >>> names
    {}
    """

    __wrapped__: F

    def __init__(self, function: F, table: MutableMapping[Any, Any], keys: Iterable[Any]) -> None:
        super().__init__()
        update_wrapper(self, function)
        for key in keys:
            self.callback(table.pop, key)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def remove(self) -> None:
        """Remove the function from its registry; a second call does nothing."""
        self.close()
