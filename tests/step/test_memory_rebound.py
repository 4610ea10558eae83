"""Programs whose step drops or rebinds objects from before it: predicted to the byte, and left unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.memory_programs import Child
from benchmarks.programs_judge import EXACT
from tests.truth.warm import python

SECONDS = 120.0

BEGIN = """
import argparse, collections, copy, queue, threading, types, weakref
from dataclasses import dataclass, replace
import numpy
import torch
from torch import nn
torch.manual_seed(0)
model, outside, options = nn.Linear(200, 200), [], {}
def big():
    return torch.randn(20, 200)
inputs = (big(),)
"""

STEP = """
def train_step(model, x):
    {body}
    model(x).sum().backward()
    model.zero_grad()
options["train_step"] = train_step
"""

PROGRAMS = {
    "an object of a global name": (
        "class Cache:\n    kept = None\ncache = Cache()",
        "global cache; cache.kept = big() * x; cache = Cache()",
    ),
    "a dataclass in a list": (
        "@dataclass\nclass Batch:\n    rows: object\nheld = [Batch(big())]",
        "held.clear(); held.append(Batch(big()))",
    ),
    "a frozen dataclass": (
        "@dataclass(frozen=True)\nclass State:\n    rows: object\n    number: int\nstate = State(big(), 0)",
        "global state; state = replace(state, rows=state.rows * 2, number=state.number + 1)",
    ),
    "named tuples in a full deque": (
        "Pair = collections.namedtuple('Pair', 'state reward')\n"
        "memory = collections.deque([Pair(big(), torch.zeros(1)) for _ in range(4)], maxlen=4)",
        "memory.append(Pair(big(), torch.ones(1)))",
    ),
    "an attribute of a trainer": (
        "class Trainer:\n    def __init__(self):\n        self.ema = copy.deepcopy(model)\n"
        "    def __call__(self, model, x):\n        self.ema = copy.deepcopy(model)\ntrainer = Trainer()",
        "trainer(model, x)",
    ),
    "a copy of the model": ("ema = copy.deepcopy(model)", "global ema; ema = copy.deepcopy(model)"),
    "a copy in a closure": (
        "def made():\n    ema = copy.deepcopy(model)\n    def renew():\n        nonlocal ema\n"
        "        ema = copy.deepcopy(model)\n    return renew\nrenew = made()",
        "renew()",
    ),
    "a loaded optimizer's state": (
        "optimizer = torch.optim.Adam(model.parameters())\noutside.append(optimizer)\n"
        "model(inputs[0]).sum().backward()\noptimizer.step()\nmodel.zero_grad()",
        "model(x).sum().backward(); optimizer.step(); optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))",
    ),
    "a queue": (
        "waiting = queue.Queue()\nfor _ in range(3): waiting.put(big())",
        "x = x + waiting.get(); waiting.put(big())",
    ),
    "a bound method of a deque": (
        "waiting = collections.deque([big(), big()])\npop, push = waiting.popleft, waiting.append",
        "x = x + pop(); push(big())",
    ),
    "a namespace": ("names = types.SimpleNamespace(rows=big())", "names.rows.mul_(2); x = x + names.rows"),
    "arguments": ("names = argparse.Namespace(rows=big())", "names.rows.mul_(2); x = x + names.rows"),
    "a user's dict": ("names = collections.UserDict(rows=big())", "names['rows'].mul_(2); x = x + names['rows']"),
    "a thread's own": ("own = threading.local(); own.rows = big()", "own.rows.mul_(2); x = x + own.rows"),
    "an array of objects": (
        "rows = numpy.empty(2, dtype=object); rows[:] = [big(), big()]", "rows[0].mul_(2); x = x + rows[0]"
    ),
    "an array whose objects are replaced": (
        "rows = numpy.empty((2, 2), dtype=object)\nfor place in range(4): rows.flat[place] = big()",
        "x = x + rows[0, 1]; rows[0, 1] = big(); rows[1, 0] = rows[1, 0] * 2",
    ),
    "a simple queue": (
        "waiting = queue.SimpleQueue()\nfor _ in range(3): waiting.put(big())",
        "x = x + waiting.get(); waiting.put(big())",
    ),
    "a weak dictionary": (
        "known = weakref.WeakKeyDictionary()",
        "known.setdefault(model, model.weight.detach() * 2); x = x @ known[model]",
    ),
    "a copy of the model, once torch's compiler keeps track of modules": (
        "torch.compile(nn.Linear(2, 2), backend='eager')(torch.ones(1, 2))\nema = copy.deepcopy(model)",
        "global ema; ema = copy.deepcopy(model)",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """A process that judges programs, killed if it hangs."""
    running = Child(seconds=SECONDS, python=python())
    yield running
    running.close()


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_step_holds_besides_the_model_is_predicted_to_the_byte(name: str, child: Child) -> None:
    before, body = PROGRAMS[name]
    verdict = child.judge(BEGIN + before + STEP.format(body=body))
    assert verdict.word == EXACT, str(verdict)
