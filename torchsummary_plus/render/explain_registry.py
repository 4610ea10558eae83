"""The registry of explanations: layer class -> the arithmetic of its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..data.errors import InputError
from ..data.records import Setting, TensorSpec, tensors
from ..table.rows import Row
from .arithmetic import Expr

Shape = tuple[int, ...]


class Layer:
    """A row as the rules see it: settings and own parameters by name, input and output shapes.

    With an open batch the shapes are those of a batch of 1.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self.base = row.layer.base if row.layer is not None else ""
        self.settings: dict[str, Setting] = dict(row.layer.settings) if row.layer is not None else {}
        self.shapes = {name: shape for name, shape, _ in row.layer.parameters} if row.layer is not None else {}
        self.inputs: tuple[TensorSpec, ...] = tuple(tensors(row.inputs))
        self.outputs: tuple[TensorSpec, ...] = tuple(tensors(row.outputs))

    @property
    def x(self) -> Shape:
        """The shape of the first input."""
        return self.inputs[0].shape

    @property
    def y(self) -> Shape:
        """The shape of the first output."""
        return self.outputs[0].shape

    def has(self, *names: str) -> bool:
        """Return whether the layer has its own parameters of these names."""
        return all(name in self.shapes for name in names)

    def whole(self, name: str) -> int:
        """Return an integer setting. Raises ``TypeError`` if it is not an integer."""
        value = self.settings.get(name)
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}")
        return value

    def each(self, name: str, axes: int) -> Shape:
        """Return a setting as one integer per axis. Raises ``TypeError`` if it is not made of integers."""
        value = self.settings.get(name)
        if isinstance(value, tuple) and len(value) == axes:
            return value
        if isinstance(value, tuple) and len(value) == 1:
            return value * axes
        return (self.whole(name),) * axes

    def tokens(self) -> Shape:
        """Return the axes of the first input except the last."""
        return self.x[:-1]

    def numel(self) -> int:
        """Return the number of elements of the layer's own parameters."""
        return sum(prod(shape) for shape in self.shapes.values())


Figure = Callable[[Layer], Expr]
Axes = Callable[[Layer], Mapping[int, tuple[str, Expr]]]
Parts = Callable[[Layer], Sequence[tuple[str, str, Expr]]]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The arithmetic of a layer class; None where it has none.

    ``axes`` returns the computed axes of the first output, each with a name; ``parts`` returns intermediate figures as
    (name in data, label, arithmetic). A rule may raise ``LookupError``, ``TypeError`` or ``ValueError`` for a layer
    that deviates from its class.
    """

    parameters: Figure | None = None
    axes: Axes | None = None
    mult_adds: Figure | None = None
    parts: Parts | None = None


RULES: dict[str, Arithmetic] = {}
"""Rules by class name, which may also be that of the ``torch.nn`` base class."""


def register_explanation(*classes: str, rule: Arithmetic) -> None:
    """Register a rule for layer classes. Raises :class:`InputError` for a class that already has one."""
    for name in classes:
        if name in RULES:
            raise InputError(f"{name} already has an explanation")
        RULES[name] = rule


def rule_of(row: Row) -> Arithmetic:
    """Return the rule of a row's class, else that of its ``torch.nn`` base class."""
    named = RULES.get(row.class_name) if row.kind != "function" else None
    return named or RULES.get(row.layer.base if row.layer is not None else "") or Arithmetic()
