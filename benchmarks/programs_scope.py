"""The state of a program under construction: its values with their shapes, its layers, and its constant values."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from benchmarks.programs_text import Statement

T = TypeVar("T")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A tensor of the forward: its name, shape, and the name of the tensor whose memory it is.

    ``learns`` tells whether it comes of parameters, and so may be another in the next step.
    """

    name: str
    shape: Shape
    base: str
    learns: bool = True


class Scope:
    """The state of a program under construction, and the random numbers that choose."""

    def __init__(self, rng: random.Random, x: Value, autocast: bool) -> None:
        self.rng = rng
        self.values = [x]
        self.autocast = autocast
        self.layers: dict[str, str] = {}
        self.helpers: dict[str, str] = {}
        self.saved: set[str] = set()
        """Bases that an autograd node keeps: they must not be written in place."""
        self.foreign: set[str] = {x.base}
        """Bases that are not of the block under way: the input, and outside a checkpoint's own function."""
        self.depth = 0
        self.count = 0

    def name(self, prefix: str = "v") -> str:
        """A name that is not taken."""
        self.count += 1
        return f"{prefix}{self.count}"

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def one(self, choices: Sequence[T]) -> T:
        return choices[self.rng.randrange(len(choices))]

    def pick(self, fits: Callable[[Value], bool] = lambda _: True) -> Value | None:
        """One of the values that fit, mostly a late one."""
        found = [value for value in self.values if fits(value)]
        if not found:
            return None
        return self.one(found[-3:]) if self.chance(0.75) else self.one(found)

    def of_rank(self, *ranks: int) -> Value | None:
        return self.pick(lambda value: len(value.shape) in ranks)

    def twin(self, value: Value) -> Value:
        """A value of the same shape: another one where there is one."""
        others = [other for other in self.values if other.shape == value.shape and other.name != value.name]
        return self.one(others) if others else value

    def layer(self, text: str, share: float = 0.25) -> str:
        """An attribute that is made by ``text``: sometimes one that is there already, which is so called twice."""
        same = [name for name, made in self.layers.items() if made.endswith(f" = {text}")]
        if same and self.chance(share):
            return f"self.{self.one(same)}"
        name = self.name("m")
        self.layers[name] = f"self.{name} = {text}"
        return f"self.{name}"

    def keep(self, *values: Value) -> None:
        """Some values are kept for the backward."""
        self.saved.update(value.base for value in values)

    def add(self, like: Value, shape: Shape, base: str = "", learns: bool | None = None) -> Value:
        """A new value, made out of ``like``; a view where it has a ``base``."""
        name = self.name()
        value = Value(name, shape, base or name, like.learns if learns is None else learns)
        self.values.append(value)
        return value

    def make(self, text: str, like: Value, shape: Shape | None = None, learns: bool | None = None) -> Statement:
        """A statement that makes a tensor with memory of its own by ``text``, by default of the shape of ``like``."""
        out = self.add(like, like.shape if shape is None else shape, learns=learns)
        return Statement(f"{out.name} = {text}", out.name, like.name if out.shape == like.shape else "")

    def view(self, text: str, of: Value, shape: Shape) -> Statement:
        """A statement that makes a view."""
        out = self.add(of, shape, base=of.base)
        return Statement(f"{out.name} = {text}", out.name, of.name if shape == of.shape else "")

    def writable(self, fits: Callable[[Value], bool] = lambda _: True) -> Value | None:
        """A value that may be written in place."""
        return self.pick(lambda value: fits(value) and value.base not in self.saved | self.foreign)

    def written(self, value: Value, learns: bool) -> None:
        """A value has been written in place with one that ``learns``: it and its views come of that from now on."""
        if learns:
            self.values = [replace(other, learns=True) if other.base == value.base else other for other in self.values]

    def helper(self, name: str, text: str) -> str:
        """A function or class outside the model."""
        self.helpers[name] = text
        return name


Production = Callable[[Scope], "Statement | None"]

PRODUCTIONS: list[tuple[float, Production]] = []
"""Each way to go on, with its weight."""


def production(weight: float) -> Callable[[Production], Production]:
    """Register a function that adds a statement to a scope, or gives None where it cannot."""

    def register(function: Production) -> Production:
        PRODUCTIONS.append((weight, function))
        return function

    return register


def grow(scope: Scope, count: int) -> tuple[Statement, ...]:
    """So many statements, one after the other."""
    weights = [weight for weight, _ in PRODUCTIONS]
    statements: list[Statement] = []
    while len(statements) < count:
        _, produce = scope.rng.choices(PRODUCTIONS, weights)[0]
        statement = produce(scope)
        if statement is not None:
            statements.append(statement)
    return tuple(statements)
