"""Random programs: the same seed and number give the same program."""

from __future__ import annotations

import random

from benchmarks.programs import (  # noqa: F401  (they register productions)
    blocks,
    functions,
    hooks,
    layers,
    modules,
    operators,
)
from benchmarks.programs.borders import draw_border
from benchmarks.programs.scope import Scope, Value, grow
from benchmarks.programs.steps import draw_step
from benchmarks.programs.text import Program

INPUTS = (
    ((2, 4, 8), (8, 24, 40, 64)), ((2, 4, 8), (16, 33, 128)), ((2, 4), (5, 8, 16), (8, 12, 24, 32)),
    ((1, 2, 4), (7, 16), (16, 48)), ((1, 2), (3, 4, 8), (8, 12), (8, 12)), ((2, 4), (3, 6, 16), (14, 16), (14, 16)),
    ((1, 2), (1, 4), (6, 8), (6, 8), (6, 8)),
)  # fmt: skip
"""Possible side lengths of each kind of input."""

MOST_STATEMENTS = 12


def draw(seed: int, number: int, scale: int = 1) -> Program:
    """Return program ``number`` of a seed; ``scale`` multiplies the sides of its input and the widths of its layers."""
    return program(random.Random(f"{seed}:{number}"), scale)


def program(rng: random.Random, scale: int) -> Program:
    """Draw a program: a model with trainable parameters, and a step."""
    batch, *sides = (rng.choice(sides) for sides in rng.choice(INPUTS))
    shape = (batch, *(side * scale for side in sides))
    autocast = rng.random() < 0.12
    x = Value("x", shape, "x", learns=False)
    scope = Scope(rng, x, autocast, scale)
    first = layers.linear(scope) or layers.convolution(scope)
    statements = [] if first is None else [first]
    statements += grow(scope, rng.randrange(2, MOST_STATEMENTS))
    learned = [value for value in scope.values if value.learns]
    ends: list[str] = []
    while not learned:
        last = layers.norm(scope)
        ends += [] if last is None else [last]
        learned = [value for value in scope.values if value.learns]
    result = learned[-1].name
    others = [value.name for value in learned[:-1]]
    if others and rng.random() < 0.5:
        result += "".join(f" + {name}.mean()" for name in rng.sample(others, min(2, len(others))))
    inputs = f"torch.randn({', '.join(map(str, shape))})"
    step = draw_step(rng, autocast)
    border = draw_border(rng, not step.lines and "loss" not in step.options)
    return Program(inputs, (*statements, *ends), result, scope.layers, scope.helpers, step, border)
