"""The state of a program under construction: its values with their shapes, its layers, and its constant values."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A tensor of the forward: its name, its shape, and the name of the tensor that owns its memory.

    ``learns`` says whether it depends on parameters, and so may change in the next step.
    """

    name: str
    shape: Shape
    base: str
    learns: bool = True


class Scope:
    """The state of a program under construction, and the random numbers for its choices."""

    def __init__(self, rng: random.Random, x: Value, autocast: bool, scale: int) -> None:
        self.rng = rng
        self.scale = scale
        """By how much the widths, and the limits of what is drawn, exceed those for a CPU."""
        self.values = [x]
        self.autocast = autocast
        self.layers: dict[str, str] = {}
        self.helpers: dict[str, str] = {}
        self.saved: set[str] = set()
        """Bases that an autograd node keeps, which must not be written in place."""
        self.foreign: set[str] = {x.base}
        """Bases from outside the current block: the input and, in a checkpointed function, all outer values."""
        self.depth = 0
        self.count = 0

    def name(self, prefix: str = "v") -> str:
        """Return an unused name."""
        self.count += 1
        return f"{prefix}{self.count}"

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def choose(self, choices: Sequence[T]) -> T:
        return choices[self.rng.randrange(len(choices))]

    def pick(self, fits: Callable[[Value], bool] = lambda _: True) -> Value | None:
        """Return one of the values that match, most often a recent one."""
        candidates = [value for value in self.values if fits(value)]
        if not candidates:
            return None
        return self.choose(candidates[-3:]) if self.chance(0.75) else self.choose(candidates)

    def twin(self, value: Value) -> Value:
        """Return a value of the same shape, another one if possible."""
        others = [other for other in self.values if other.shape == value.shape and other.name != value.name]
        return self.choose(others) if others else value

    def layer(self, text: str, share: float = 0.25) -> str:
        """Return an attribute created by ``text``, or sometimes an existing one, which is then called twice."""
        same = [name for name, line in self.layers.items() if line.endswith(f" = {text}")]
        if same and self.chance(share):
            return f"self.{self.choose(same)}"
        name = self.name("m")
        self.layers[name] = f"self.{name} = {text}"
        return f"self.{name}"

    def keep(self, *values: Value) -> None:
        """Mark values as kept for the backward."""
        self.saved.update(value.base for value in values)

    def add(self, like: Value, shape: Shape, base: str = "", learns: bool | None = None) -> Value:
        """Add a new value derived from ``like``; a view if it has a ``base``."""
        name = self.name()
        value = Value(name, shape, base or name, like.learns if learns is None else learns)
        self.values.append(value)
        return value

    def make(self, text: str, like: Value, shape: Shape | None = None, learns: bool | None = None) -> str:
        """Add a statement that makes a new tensor by ``text``, by default with the shape of ``like``."""
        out = self.add(like, like.shape if shape is None else shape, learns=learns)
        return f"{out.name} = {text}"

    def draw(self, x: Value, forms: Sequence[tuple[str, Shape]], learns: bool | None = None) -> str:
        """Add a statement that makes one of several expressions of a value, which the backward may keep."""
        text, shape = self.choose(forms)
        self.keep(x)
        return self.make(text.format(x.name), x, shape, learns)

    def view(self, text: str, of: Value, shape: Shape) -> str:
        """Add a statement that makes a view."""
        out = self.add(of, shape, base=of.base)
        return f"{out.name} = {text}"

    def writable(self, fits: Callable[[Value], bool] = lambda _: True) -> Value | None:
        """Return whether a value may be written in place."""
        return self.pick(lambda value: fits(value) and value.base not in self.saved | self.foreign)

    def written(self, value: Value, learns: bool) -> None:
        """Record an in-place write: if the written value ``learns``, so do the target and its views from now on."""
        if learns:
            self.values = [replace(other, learns=True) if other.base == value.base else other for other in self.values]

    def helper(self, name: str, text: str) -> str:
        """Add a function or class outside the model, and return its name."""
        self.helpers[name] = text
        return name


Production = Callable[[Scope], "str | None"]

PRODUCTIONS: list[tuple[float, Production]] = []
"""The productions, with their weights."""


def production(weight: float) -> Callable[[Production], Production]:
    """Register a function that adds a statement to a scope, or returns None if it cannot."""

    def register(function: Production) -> Production:
        PRODUCTIONS.append((weight, function))
        return function

    return register


def of_value(weight: float, *ranks: int) -> Callable[[Callable[[Scope, Value], str | None]], Production]:
    """Register a function of a scope and one of its values, of these ranks or, by default, of two axes or more."""

    def register(function: Callable[[Scope, Value], str | None]) -> Production:
        @production(weight)
        def produce(scope: Scope) -> str | None:
            x = scope.pick(lambda value: len(value.shape) in ranks if ranks else len(value.shape) >= 2)
            return None if x is None else function(scope, x)

        return produce

    return register


def grow(scope: Scope, count: int) -> tuple[str, ...]:
    """Add this many statements, one after the other."""
    weights = [weight for weight, _ in PRODUCTIONS]
    statements: list[str] = []
    while len(statements) < count:
        _, produce = scope.rng.choices(PRODUCTIONS, weights)[0]
        statement = produce(scope)
        if statement is not None:
            statements.append(statement)
    return tuple(statements)
