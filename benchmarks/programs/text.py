"""Programs that train or run a small model, as data: statements that can be written as Python code to paste."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

HEADER = """\
import copy
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune, rnn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
"""

FOOTER = """
from torchsummary_plus import estimate_memory, measure_memory

print(estimate_memory(model, input_data=inputs, **options))
print(measure_memory(model, input_data=inputs, **options))
"""
"""Code to paste after a program to see it fail."""


@dataclass(frozen=True)
class Statement:
    """A line of a forward that assigns to ``target``, or a block of such lines.

    ``same`` is a value of the same shape, used instead of ``target`` if the statement is removed. ``inner`` has a
    block's lines, and ``tail`` is written after it. Names in braces are values: ``"{v3} = {v1} + 1"``.
    """

    text: str
    target: str = ""
    same: str = ""
    inner: tuple[Statement, ...] = ()
    tail: str = ""

    def lines(self, indent: str) -> Iterator[str]:
        """Yield the statement as text."""
        for line in self.text.splitlines():
            yield indent + line
        for statement in self.inner:
            yield from statement.lines(indent + "    ")
        for line in self.tail.splitlines():
            yield indent + ("    " if line.startswith("return ") else "") + line

    def renamed(self, old: str, new: str) -> Statement:
        """Return the statement with another value in place of ``old``."""

        def other(text: str) -> str:
            return re.sub(rf"\b{old}\b", new, text)

        inner = tuple(statement.renamed(old, new) for statement in self.inner)
        return replace(self, text=other(self.text), tail=other(self.tail), same=other(self.same), inner=inner)


@dataclass(frozen=True)
class StepText:
    """How a model is stepped: the lines after it, its objects outside the model, and the options of the estimate."""

    lines: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Border:
    """What a model takes and returns: ``{0}`` stands for its input and its result, which the forward calls ``x``.

    ``first`` is the forward's first line, ``helper`` the text of the classes used, and ``treated`` what is done to the
    model before its first step.
    """

    inputs: str = "{0}"
    argument: str = "x"
    first: str = ""
    result: str = "{0}"
    helper: str = ""
    treated: str = ""


PLAIN = Border()


@dataclass(frozen=True)
class Program:
    """A model and its step.

    ``layers`` are the lines of the constructor by attribute. ``helpers`` are the texts of functions by name and, by
    names in capitals, of tensors; only those that the forward uses are written.
    """

    inputs: str
    statements: tuple[Statement, ...]
    result: str
    layers: dict[str, str]
    helpers: dict[str, str]
    step: StepText
    border: Border = PLAIN

    def source(self) -> str:
        """Return the program as code that defines ``model``, ``inputs``, ``options`` and the list ``outside``."""
        forward = [line for statement in self.statements for line in statement.lines("        ")]
        body = "\n".join([*forward, *self.step.lines, self.result])
        layers = [text for name, text in self.layers.items() if re.search(rf"\bself\.{name}\b", body)]
        used = "\n".join([*layers, body])
        helpers = [text for name, text in self.helpers.items() if re.search(rf"\b{name}\b", used)]
        options = ", ".join(f"{name}={value}" for name, value in self.step.options.items())
        tables = (name for name in self.helpers if name.isupper() and re.search(rf"\b{name}\b", body))
        outside = ", ".join((*self.step.outside, *tables))
        return "\n".join(
            [
                HEADER,
                self.border.helper,
                *helpers,
                "",
                "class Model(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                *(f"        {line}" for text in layers for line in text.splitlines()),
                "",
                f"    def forward(self, {self.border.argument}):",
                *([f"        {self.border.first}"] if self.border.first else []),
                *forward,
                f"        return {self.border.result.format(self.result)}",
                "",
                "model = Model()",
                f"inputs = ({self.border.inputs.format(self.inputs)},)",
                self.border.treated,
                *self.step.lines,
                f"outside = [{outside}]",
                f"options = dict({options})",
                "",
            ]
        )

    def smaller(self) -> Iterator[Program]:
        """Yield the program with one thing less: a statement, the frame of a block, an option, its custom step."""
        for number in reversed(range(len(self.statements))):
            result = self.statements[number].target
            if result and number + 1 < len(self.statements):
                yield replace(self, statements=self.statements[: number + 1], result=result)
        for statements, old, new in _without_one(self.statements):
            yield replace(
                self, statements=statements, result=re.sub(rf"\b{old}\b", new, self.result) if old else self.result
            )
        if self.step.lines:
            yield replace(self, step=StepText())
        if self.border != PLAIN:
            yield replace(self, border=PLAIN)
        for name in self.step.options:
            if name != "train_step":
                options = {key: value for key, value in self.step.options.items() if key != name}
                yield replace(self, step=replace(self.step, options=options))


def _without_one(statements: tuple[Statement, ...]) -> Iterator[tuple[tuple[Statement, ...], str, str]]:
    """Yield the statements with one less, or with a smaller block, and the names that replace removed ones."""
    for number in reversed(range(len(statements))):
        statement, before, after = statements[number], statements[:number], statements[number + 1 :]
        if statement.target and statement.same:
            yield (
                (*before, *(later.renamed(statement.target, statement.same) for later in after)),
                statement.target,
                statement.same,
            )
        else:
            yield (*before, *after), "", ""
        if statement.inner and not statement.tail:
            yield (*before, *statement.inner, *after), "", ""
        for inner, old, new in _without_one(statement.inner):
            tail = re.sub(rf"\b{old}\b", new, statement.tail) if old else statement.tail
            yield (*before, replace(statement, inner=inner, tail=tail), *after), old, new
