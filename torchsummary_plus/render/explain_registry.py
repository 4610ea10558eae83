"""The registry of explanations: a class of layers -> the arithmetic of its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..errors import InputError
from ..records import Setting, TensorSpec, tensors
from ..report import Row
from .arithmetic import Expr

Shape = tuple[int, ...]


class Layer:
    """A row as the arithmetic needs it: settings and own parameters by name, shapes of what goes in and comes out.

    Where the batch is open the shapes are those of a batch of 1.
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
        """Whether it has own parameters of these names."""
        return all(name in self.shapes for name in names)

    def whole(self, name: str) -> int:
        """A setting that is a whole number. Raises ``TypeError`` for another one."""
        value = self.settings.get(name)
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}")
        return value

    def each(self, name: str, axes: int) -> Shape:
        """A setting for each of so many axes. Raises ``TypeError`` for one that is not of whole numbers."""
        value = self.settings.get(name)
        if isinstance(value, tuple) and len(value) == axes:
            return value
        if isinstance(value, tuple) and len(value) == 1:
            return value * axes
        return (self.whole(name),) * axes

    def tokens(self) -> Shape:
        """The axes of the first input without the last."""
        return self.x[:-1]

    def held(self) -> int:
        """The elements of its own parameters."""
        return sum(prod(shape) for shape in self.shapes.values())


Figure = Callable[[Layer], Expr]
Axes = Callable[[Layer], Mapping[int, tuple[str, Expr]]]
Parts = Callable[[Layer], Sequence[tuple[str, str, Expr]]]


@dataclass(frozen=True, slots=True)
class Rule:
    """How a class of layers comes to its figures; what is None has no arithmetic of its own.

    ``axes`` are those of the first output that the layer works out, each with a name; ``parts`` are figures on the way,
    each with its name in data and what it is called. A rule may raise ``LookupError``, ``TypeError`` or ``ValueError``
    for a layer that is not what its class says.
    """

    parameters: Figure | None = None
    axes: Axes | None = None
    mult_adds: Figure | None = None
    parts: Parts | None = None


RULES: dict[str, Rule] = {}
"""By the name of the class, or of the class of ``torch.nn`` that it derives from."""


def register_explanation(*classes: str, rule: Rule) -> None:
    """Explain layers of some classes by a rule. Raises :class:`InputError` for a class that has one already."""
    for name in classes:
        if name in RULES:
            raise InputError(f"{name} is explained already")
        RULES[name] = rule


def rule_of(row: Row) -> Rule:
    """The rule of a row: of its own class, else of torch's class below it."""
    named = RULES.get(row.class_name) if row.kind != "function" else None
    return named or RULES.get(row.layer.base if row.layer is not None else "") or Rule()
