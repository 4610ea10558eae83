"""Guessed values for a step without a real one to supply them: every unknown value is assumed to be 1.

So ``(x < 0).any()`` is False and ``(x >= 0).all()`` True, as checks in losses, distributions and user code expect. If
a step raises nonetheless, the last guess before the error is inverted and the step repeated.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..live.fakes import DataDependentError, Fake
from .assumed_routing import BALANCED, CROWDED, Routers

OFTEN = 100
"""Equal answers in a row at one site after which the opposite is returned, since a loop may be waiting for it."""

LONGEST_LOOP = 20_000
"""Most operators of a step in which a site asks without end; shorter loops may just read a list of tensors."""

MOST_TURNS = 8
"""Most answers that are inverted, one after the other, while the step raises."""

MOST_ALTERNATIVES = 4
"""Sites whose opposite answer is also tried, for the step's least and greatest peak."""

aten = torch.ops.aten


def _forms(name: str, *overloads: str) -> list[int]:
    return [id(getattr(getattr(aten, name), overload)) for overload in overloads]


_BOTH: dict[int, Callable[[Any, Any], Any]] = {
    overload: getattr(operator, name)
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
    for overload in _forms(name, "Scalar", "Tensor")
}
_BOTH |= dict.fromkeys([*_forms("logical_and", "default"), *_forms("bitwise_and", "Tensor")], operator.and_)
_BOTH |= dict.fromkeys([*_forms("logical_or", "default"), *_forms("bitwise_or", "Tensor")], operator.or_)
_NOT = {*_forms("logical_not", "default"), *_forms("bitwise_not", "default")}
_REDUCTIONS = {*_forms("any", "default", "dim", "dims"), *_forms("all", "default", "dim", "dims")}
"""Keyed by id: operators are slow to hash, and every operator of a pass is looked up."""


def note_at_one(func: Any, args: Any, out: Any) -> None:
    """Attach to a boolean fake its value for inputs of 1."""
    if not isinstance(out, Fake) or out.dtype is not torch.bool:
        return
    compare = _BOTH.get(id(func))
    if compare is not None:
        out.at_one = bool(compare(_value(args[0]), _value(args[1])))
    elif id(func) in _NOT:
        out.at_one = not _value(args[0])
    else:
        first = args[0] if args else None
        follows = isinstance(first, Fake) and (id(func) in _REDUCTIONS or first.dtype is torch.bool)
        out.at_one = bool(_value(first)) if follows else None


def _value(value: Any) -> Any:
    """Return a number, the value of a real one-element tensor, a boolean fake's value at 1, or 1."""
    if isinstance(value, Fake):
        return True if value.at_one is None else value.at_one
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else 1
    return value


class Site(NamedTuple):
    """A line of user or library code that asks for a value."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({Path(self.file).name}:{self.line})"


_OURS = str(Path(__file__).parents[1])
_TORCH = Path(torch.__file__).parent
_CALLED = tuple(str(_TORCH / name) for name in ("_tensor.py", "_ops.py", "overrides.py"))
_BETWEEN = (*_CALLED, str(_TORCH / "utils"))
_LOADING = str(_TORCH / "utils" / "data")


def asking_site() -> Site:
    """Return the innermost line that asks, outside this package and the parts of torch on the way."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_OURS, *_BETWEEN)):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def loads_data() -> bool:
    """Whether torch's own code for loading data asks, which draws seeds of generators and the order of items."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_OURS, *_CALLED)):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_LOADING)


Visit = tuple[Site, int]
"""A site, and how often it has asked before."""


class Guesses:
    """Guessed values for a step that no real one can supply; those in ``inverted`` are inverted."""

    def __init__(
        self,
        inverted: frozenset[Visit] = frozenset(),
        least: bool = False,
        to_limits: bool = False,
        routing: str = BALANCED,
    ) -> None:
        self.inverted = inverted
        self.routing = routing
        """``BALANCED``, ``CROWDED``, or "" if routers' choices are not assumed: each expert may get all tokens."""
        self.routers: Routers | None = None
        """The routers with assumed choices."""
        self.least = least
        """Whether sizes that depend on values are assumed empty rather than at their maximum."""
        self.to_limits = to_limits
        """Whether optimizers are assumed to iterate to their limits, whatever a real step does."""
        self.iterates = False
        """Whether an optimizer iterated as often as in a real step."""
        self.sizes = False
        """Whether any size depended on values."""
        self.visits: list[Visit] = []
        self.times: dict[Site, int] = {}
        self.operators = 0
        """How many operators have run, and questions without an operator been asked."""

    def begin(self) -> None:
        """Reset for a new step."""
        self.visits.clear()
        self.times.clear()
        self.sizes = self.iterates = False
        self.operators = 0

    def value(self, tensors: list[Tensor], dtype: torch.dtype) -> tuple[Any, Site]:
        """Return a value of a dtype, or whether two tensors are equal, and the site that asks."""
        site = asking_site()
        number = self.times.get(site, 0)
        self.times[site] = number + 1
        self.visits.append((site, number))
        self.operators += 1
        if number >= 10 * OFTEN and self.operators > LONGEST_LOOP:
            raise DataDependentError(f"{site} keeps reading a value: no assumed value ends its loop")
        value = bool(_value(tensors[0])) if dtype is torch.bool and len(tensors) == 1 else True
        if ((site, number) in self.inverted) != bool(number // OFTEN % 2):
            value = not value
        return torch.full((), value, dtype=dtype).item(), site

    def after_failure(self) -> Guesses | None:
        """Return guesses with the last one not yet inverted inverted as well; None after ``MOST_TURNS``."""
        last = next((visit for visit in reversed(self.visits) if visit not in self.inverted), None)
        if last is None or len(self.inverted) == MOST_TURNS:
            return None
        return Guesses(self.inverted | {last}, routing=self.routing)

    def alternatives(self) -> list[Guesses]:
        """Return other possible guesses: each of the first sites inverted, the smallest sizes, optimizers' limits."""
        sites = list(self.times)[:MOST_ALTERNATIVES]
        how = self.routing
        guesses = [Guesses(self.inverted ^ {(site, number) for number in range(OFTEN)}, routing=how) for site in sites]
        guesses += [Guesses(self.inverted, least=True, routing=how)] if self.sizes else []
        if self.routers and self.routers.were_asked:
            guesses += [Guesses(self.inverted, routing=CROWDED)]
            guesses += [Guesses(self.inverted, routing="", least=least) for least in (False, True)]
        return [*guesses, Guesses(self.inverted, to_limits=True, routing=how)] if self.iterates else guesses
