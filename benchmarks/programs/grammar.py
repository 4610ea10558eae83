"""Random programs that train or run a small model: the same seed and number give the same program.

The texts of :mod:`benchmarks.programs.forms` are joined statement by statement. Each is kept if the model then still
runs, forward and backward, and leaves its input unchanged; that run also tells the shape of its result.
"""

from __future__ import annotations

import random
import re
import warnings
from dataclasses import dataclass, field, replace
from textwrap import indent
from typing import Any

import torch
from torch import Tensor

from benchmarks.programs.forms import (
    AROUND,
    EXPRESSIONS,
    HELPERS,
    RETURNED,
    STATEMENTS,
    TAKEN,
    TREATED,
    UNARY,
)
from benchmarks.programs.steps import StepText, draw_step

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
INPUTS = (
    ((2, 4, 8), (8, 24, 40, 64)), ((2, 4, 8), (16, 33, 128)), ((2, 4), (5, 8, 16), (8, 12, 24, 32)),
    ((1, 2, 4), (7, 16), (16, 48)), ((1, 2), (3, 4, 8), (8, 12), (8, 12)), ((2, 4), (3, 6, 16), (14, 16), (14, 16)),
    ((1, 2), (1, 4), (6, 8), (6, 8), (6, 8)),
)  # fmt: skip
"""Possible side lengths of each kind of input."""
WIDTHS, CHANNELS = (8, 12, 16, 24, 33, 48, 64, 96), (4, 6, 8, 16, 20)
MOST_STATEMENTS, MOST_ELEMENTS = 12, 1 << 15
EVERYTHING = "{name: value for name, value in locals().items() if isinstance(value, torch.Tensor)}"
FAMILIES = (*EXPRESSIONS, *STATEMENTS, (4, "2345", AROUND))


@dataclass(frozen=True)
class Program:
    """A model and its step: the constructor's lines by attribute, the forward's, and what it takes and returns.

    In ``border``, ``{0}`` stands for the model's input and for its result, which the forward calls ``x``; ``first`` is
    the forward's first line, and ``treated`` what is done to the model before its first step.
    """

    inputs: str
    layers: dict[str, str] = field(default_factory=dict)
    statements: tuple[str, ...] = ()
    result: str = "x"
    step: StepText = field(default_factory=StepText)
    border: dict[str, str] = field(default_factory=dict)

    def source(self) -> str:
        """Return the program as code that defines ``model``, ``inputs``, ``options`` and the list ``outside``."""
        border = {"inputs": "{0}", "argument": "x", "first": "", "result": "{0}", "treated": "", **self.border}
        forward = "\n".join([border["first"], *self.statements, f"return {border['result'].format(self.result)}"])
        layers = "\n".join(["super().__init__()", *self.layers.values()])
        inputs = border["inputs"].format(self.inputs)
        used = "\n".join([layers, forward, inputs])
        tables = sorted(set(re.findall(r"TABLE_\d+", used)))
        return "\n".join(
            [
                HEADER,
                *(text for name, text in HELPERS.items() if re.search(rf"\b{name}\(|\b{name}\.", used)),
                *(f"{name} = torch.randn({name.removeprefix('TABLE_')})" for name in tables),
                f"class Model(nn.Module):\n    def __init__(self):\n{indent(layers, ' ' * 8)}\n",
                f"    def forward(self, {border['argument']}):\n{indent(forward, ' ' * 8)}\n",
                f"model = Model()\ninputs = ({inputs},)",
                border["treated"],
                *self.step.lines,
                f"outside = [{', '.join((*self.step.outside, *tables))}]",
                f"options = dict({', '.join(f'{name}={value}' for name, value in self.step.options.items())})\n",
            ]
        )


def draw(seed: int, number: int, scale: int = 1) -> Program:
    """Return program ``number`` of a seed; ``scale`` multiplies the sides of its input and the widths of its layers."""
    rng = random.Random(f"{seed}:{number}")
    batch, *sides = (rng.choice(sides) for sides in rng.choice(INPUTS))
    program = Program(f"torch.randn({', '.join(map(str, (batch, *(side * scale for side in sides))))})")
    autocast = rng.random() < 0.12
    values, count = tried(program, autocast), rng.randrange(3, MOST_STATEMENTS)
    while len(program.statements) < count or not any(learns(value) for value in values.values()):
        candidate = extended(rng, program, values, scale)
        found = tried(candidate, autocast)
        if all(value.numel() <= MOST_ELEMENTS * scale**2 for name, value in found.items() if name not in values):
            program, values = (candidate, found) if found else (program, values)
    learned = [name for name, value in values.items() if learns(value)]
    others = rng.sample(learned[:-1], min(2, len(learned) - 1)) if rng.random() < 0.5 else []
    step = draw_step(rng, autocast)
    free = not step.lines and "loss" not in step.options
    border = {**(rng.choice(TAKEN) if free and rng.random() < 0.3 else {})}
    border |= rng.choice(RETURNED) if free and rng.random() < 0.25 else {}
    border |= {"treated": rng.choice(TREATED)} if not border and rng.random() < 0.12 else {}
    result = learned[-1] + "".join(f" + {name}.mean()" for name in others)
    return replace(program, result=result, step=step, border=border)


def extended(rng: random.Random, program: Program, values: dict[str, Tensor], scale: int) -> Program:
    """Return a program with one more statement, which may not run."""
    _, axes, texts = rng.choices(FAMILIES, [weight for weight, *_ in FAMILIES])[0]
    recent = [name for name, value in values.items() if str(value.dim()) in axes]
    if not recent:
        return program
    x = rng.choice(recent[-3:] if rng.random() < 0.75 else recent)
    shape, number = values[x].shape, len(program.statements)
    twins = [name for name, value in values.items() if value.shape == shape and name != x]
    names: dict[str, Any] = {
        "x": x, "y": rng.choice(twins or [x]), "v": f"v{number}", "m": f"self.m{number}", "f": f"block{number}",
        "b": shape[0], "c": shape[1], "n": shape[-1], "d": max(1, len(shape) - 2),
        "o": rng.choice(WIDTHS) * scale, "k": rng.choice(CHANNELS) * scale,
    }  # fmt: skip
    lines = (f"    y = {rng.choice(UNARY)}".format(**{**names, "x": "y"}) for _ in range(rng.choice((1, 2, 3))))
    text = rng.choice(texts)
    is_statement = "{v}" in text or texts not in [family for *_, family in EXPRESSIONS]
    layer, _, use = (part.strip().format(**names, body="\n".join(lines)) for part in text.rpartition(" =>"))
    layers = dict(program.layers)
    if layer:
        same = [name for name, line in layers.items() if line == f"{name} = {layer}"]
        name = rng.choice(same) if same and rng.random() < 0.25 else names["m"]
        layers[name] = f"{name} = {layer}"
        use = re.sub(rf"{names['m']}\b", name, use)
    statement = use if is_statement else f"{names['v']} = {use}"
    return replace(program, layers=layers, statements=(*program.statements, statement))


def tried(program: Program, autocast: bool) -> dict[str, Tensor]:
    """Return the values of a program's forward by name; none if it fails, or its backward, or its input changes."""
    space: dict[str, Any] = {"__name__": "__main__"}
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.default_generator.manual_seed(0)
            source = replace(program, result=EVERYTHING).source().replace("torch.manual_seed(0)", "")
            exec(compile(source, "<program>", "exec", dont_inherit=True), space)
            (x,), outside = space["inputs"], space["outside"]
            before = [tensor.clone() for tensor in (x, *outside)]
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                found = {name: value for name, value in space["model"](x).items() if name[0] in "vx" and fits(value)}
            torch.autograd.backward([value.sum() for value in found.values() if learns(value)])
    except Exception:
        return {}
    return found if all(map(torch.equal, before, (x, *outside))) else {}


def fits(value: Tensor) -> bool:
    """Return whether a value may be used again: it has two axes or more, and floating-point elements."""
    return value.is_floating_point() and value.dim() > 1 and value.numel() > 0


def learns(value: Tensor) -> bool:
    return value.requires_grad
