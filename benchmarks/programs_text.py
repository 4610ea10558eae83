"""Programs that train or run a small model, as data: statements that can be written out as Python to paste."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

HEADER = """\
import copy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
"""

FOOTER = """
from torchsummary_plus import estimate_memory, measure_memory

print(estimate_memory(model, input_data=inputs, **options))
print(measure_memory(model, input_data=inputs, **options))
"""
"""What to paste behind a program to see it fail."""


@dataclass(frozen=True)
class Statement:
    """A line of a forward that makes ``made`` out of values, or a block of such lines.

    ``same`` is a value of the same shape that can stand in for ``made`` where the statement is left out; ``inner`` are
    the lines of a block, and ``tail`` is written behind it. A name in braces stands for a value: ``"{v3} = {v1} + 1"``.
    """

    text: str
    made: str = ""
    same: str = ""
    inner: tuple[Statement, ...] = ()
    tail: str = ""

    def lines(self, indent: str) -> Iterator[str]:
        """The statement as text."""
        for line in self.text.splitlines():
            yield indent + line
        for statement in self.inner:
            yield from statement.lines(indent + "    ")
        for line in self.tail.splitlines():
            yield indent + ("    " if line.startswith("return ") else "") + line

    def renamed(self, old: str, new: str) -> Statement:
        """The statement with another value in place of ``old``."""

        def other(text: str) -> str:
            return re.sub(rf"\b{old}\b", new, text)

        inner = tuple(statement.renamed(old, new) for statement in self.inner)
        return replace(self, text=other(self.text), tail=other(self.tail), same=other(self.same), inner=inner)


@dataclass(frozen=True)
class StepText:
    """How a model is stepped: lines behind it, what they hold beside the model, and the options of the estimate."""

    lines: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A model and its step.

    ``layers`` are the lines of the constructor by the attribute they make, ``helpers`` the texts of functions by name
    and, by a name in capitals, of tensors; only those that the forward names are written.
    """

    inputs: str
    statements: tuple[Statement, ...]
    result: str
    layers: dict[str, str]
    helpers: dict[str, str]
    step: StepText

    def source(self) -> str:
        """The program as text: it makes ``model``, ``inputs``, ``options`` and the list ``outside``."""
        forward = [line for statement in self.statements for line in statement.lines("        ")]
        body = "\n".join([*forward, *self.step.lines, self.result])
        made = [text for name, text in self.layers.items() if re.search(rf"\bself\.{name}\b", body)]
        helpers = [text for name, text in self.helpers.items() if re.search(rf"\b{name}\b", body)]
        options = ", ".join(f"{name}={value}" for name, value in self.step.options.items())
        tables = (name for name in self.helpers if name.isupper() and re.search(rf"\b{name}\b", body))
        outside = ", ".join((*self.step.outside, *tables))
        return "\n".join(
            [
                HEADER,
                *helpers,
                "",
                "class Model(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                *(f"        {line}" for text in made for line in text.splitlines()),
                "",
                "    def forward(self, x):",
                *forward,
                f"        return {self.result}",
                "",
                "model = Model()",
                f"inputs = ({self.inputs},)",
                *self.step.lines,
                f"outside = [{outside}]",
                f"options = dict({options})",
                "",
            ]
        )

    def smaller(self) -> Iterator[Program]:
        """The program with one thing less: a statement, a block's frame, an option, its own step."""
        for number in reversed(range(len(self.statements))):
            made = self.statements[number].made
            if made and number + 1 < len(self.statements):
                yield replace(self, statements=self.statements[: number + 1], result=made)
        for statements, old, new in _without_one(self.statements):
            yield replace(
                self, statements=statements, result=re.sub(rf"\b{old}\b", new, self.result) if old else self.result
            )
        if self.step.lines:
            yield replace(self, step=StepText())
        for name in self.step.options:
            if name != "train_step":
                options = {key: value for key, value in self.step.options.items() if key != name}
                yield replace(self, step=replace(self.step, options=options))


def _without_one(statements: tuple[Statement, ...]) -> Iterator[tuple[tuple[Statement, ...], str, str]]:
    """The statements less one, or with a smaller block, and which name then stands for which other."""
    for number in reversed(range(len(statements))):
        one, before, after = statements[number], statements[:number], statements[number + 1 :]
        if one.made and one.same:
            yield (*before, *(later.renamed(one.made, one.same) for later in after)), one.made, one.same
        else:
            yield (*before, *after), "", ""
        if one.inner and not one.tail:
            yield (*before, *one.inner, *after), "", ""
        for inner, old, new in _without_one(one.inner):
            tail = re.sub(rf"\b{old}\b", new, one.tail) if old else one.tail
            yield (*before, replace(one, inner=inner, tail=tail), *after), old, new
