"""Borders of the generated programs: what a model takes and returns, and what is done to it before its first step."""

from __future__ import annotations

import random

from benchmarks.programs.text import PLAIN, Border

CLASSES = """
from dataclasses import dataclass
from typing import Any, NamedTuple

@dataclass
class Batch:
    x: torch.Tensor
    mask: Any = None

class Pair(NamedTuple):
    x: torch.Tensor
    other: Any
"""

TAKEN: tuple[dict[str, str], ...] = (
    {"inputs": "{{'x': {0}, 'mask': torch.ones(3, dtype=torch.bool)}}", "argument": "batch", "first": "x = batch['x']"},
    {"inputs": "({0}, torch.zeros(4))", "argument": "pair", "first": "x, other = pair"},
    {"inputs": "[row for row in {0}]", "argument": "rows", "first": "x = torch.stack(rows)"},
    {"inputs": "{0}, torch.ones(3), None", "argument": "x, other, mask=None"},
    {"inputs": "{0}", "argument": "x, *others, scale=2.0, **options"},
    {"inputs": "Batch({0}, torch.ones(5))", "argument": "batch", "first": "x = batch.x", "helper": CLASSES},
    {"inputs": "Pair({0}, [torch.ones(5)])", "argument": "pair", "first": "x = pair.x", "helper": CLASSES},
    {"inputs": "{0}.double()", "argument": "x", "first": "x = x.float()"},
    {"inputs": "({0} * 10).long()", "argument": "x", "first": "x = x / 10"},
    {"inputs": "{0} > 0", "argument": "x", "first": "x = x.float() * 2 - 1"},
    {"inputs": "{0}.transpose(0, 1).contiguous().transpose(0, 1)", "argument": "x"},
    {"inputs": "{0}.requires_grad_()", "argument": "x"},
    {"inputs": "{0}, {{'deep': [({0}, 3, 'text')]}}", "argument": "x, more", "first": "x = x + more['deep'][0][0]"},
)
"""What a model takes, with its input as ``{0}``."""

RETURNED: tuple[dict[str, str], ...] = (
    {"result": "{{'logits': {0}, 'loss': ({0}).square().mean()}}"}, {"result": "({0}).abs().mean(), {0}"},
    {"result": "[{0}, None, {{'aux': ({0}) * 2, 'step': 3}}]"}, {"result": "Batch({0})", "helper": CLASSES},
    {"result": "Pair({0}, ({0}).detach().argmax(-1))", "helper": CLASSES}, {"result": "({0}).unbind(0)"},
)  # fmt: skip
"""What a model returns, with its result as ``{0}``."""

TREATED = (
    "for p in list(model.parameters())[::2]:\n    p.requires_grad_(len(list(model.parameters())) < 2)",
    "model = nn.Sequential(model, nn.Identity())",
    "model = nn.Sequential(nn.Identity(), model, nn.Dropout(0.1))",
    "model = copy.deepcopy(model)", "model = nn.DataParallel(model)", "model.to(memory_format=torch.channels_last)",
    "model.double()\ninputs = tuple(x.double() for x in inputs)",
    "model.bfloat16()\ninputs = tuple(x.bfloat16() for x in inputs)",
    "model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)",
    "model.apply(lambda m: setattr(m, 'inplace', True) if hasattr(m, 'inplace') else None)",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nmodel.eval()\nmodel.train()",
    "with torch.no_grad():\n    for p in model.parameters():\n        p.data = p.data.clone()",
    "model = torch.optim.swa_utils.AveragedModel(model)",
)  # fmt: skip
"""What is done to a model before its first step."""


def draw_border(rng: random.Random, free: bool) -> Border:
    """Draw the border of a model; ``free`` if neither a loss nor a step expects a plain input and output."""
    parts: dict[str, str] = {}
    if free and rng.random() < 0.3:
        parts |= rng.choice(TAKEN)
    if free and rng.random() < 0.25:
        parts |= rng.choice(RETURNED)
    treated = rng.choice(TREATED) if rng.random() < 0.12 and "inputs" not in parts and "result" not in parts else ""
    return Border(**parts, treated=treated) if parts or treated else PLAIN
