"""Programs that train or run a small model, as data that can be written as Python code to paste."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from textwrap import indent

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
    statements: tuple[str, ...]
    result: str
    layers: dict[str, str]
    helpers: dict[str, str]
    step: StepText
    border: Border = PLAIN

    def source(self) -> str:
        """Return the program as code that defines ``model``, ``inputs``, ``options`` and the list ``outside``."""
        forward = [indent(statement, "        ") for statement in self.statements]
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
