"""Programs whose step drops or rebinds objects from before it: predicted to the byte, and left unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.cpu.programs import Child
from benchmarks.programs.judge import EXACT
from tests.truth.warm import python

SECONDS = 120.0

BEGIN = """
import argparse, collections, copy, itertools, queue, threading, types, weakref
from dataclasses import dataclass, replace
from typing import NamedTuple
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
    "an iterator over a tuple": ("rows = iter(tuple(big() for _ in range(9)))", "x = x + next(rows)"),
    "a copy of the model, once torch's compiler keeps track of modules": (
        "torch.compile(nn.Linear(2, 2), backend='eager')(torch.ones(1, 2))\nema = copy.deepcopy(model)",
        "global ema; ema = copy.deepcopy(model)",
    ),
}  # fmt: skip


AT_END = """
def train_step(model, x):
    model(x).sum().backward()
    {body}
    model.zero_grad()
options["train_step"] = train_step
"""

AT_END_OF_STEP = {
    "an attribute of a parameter": (
        "model.weight.main_grad = torch.zeros_like(model.weight)",
        "model.weight.main_grad = model.weight.main_grad + model.weight.grad",
    ),
    "an attribute in a slot": (
        "@dataclass(slots=True)\nclass State:\n    rows: object\nstate = State(big())", "state.rows = state.rows * 2"
    ),
    "a frozen object with slots": (
        "@dataclass(frozen=True, slots=True)\nclass State:\n    rows: object\nstate = State(big())",
        "global state; state = replace(state, rows=state.rows * 2)",
    ),
    "a tuple of a dict": ("state = ({'w': big()},)", "global state; state = ({'w': state[0]['w'] * 2},)"),
    "a named tuple of a list": (
        "class State(NamedTuple):\n    mems: list\nstate = State([big()])",
        "global state; state = State([state.mems[0] * 2])",
    ),
    "a tuple of an object": (
        "class Average:\n    def __init__(self, rows): self.rows = rows\nheld = [(Average(big()), 0)]",
        "held[0] = (Average(held[0][0].rows * 2), 1)",
    ),
    "transitions with a dict": (
        "Pair = collections.namedtuple('Pair', 'state info')\n"
        "memory = collections.deque([Pair(big(), {'h': big()}) for _ in range(3)], maxlen=3)",
        "memory.append(Pair(big(), {'h': big()}))",
    ),
    "the last of several dicts in tuples": (
        "held = [({'w': big()}, 0) for _ in range(3)]",
        "held[2] = ({'w': held[2][0]['w'] * 2}, 1)",
    ),
    "a subclass of dict": (
        "class Names(dict): __getattr__ = dict.__getitem__\nstate = Names(ema=big())",
        "global state; state = Names(ema=state.ema * 2)",
    ),
    "an object with a finalizer": (
        "class Average:\n    def __init__(self, rows): self.rows = rows\n    def __del__(self): pass\n"
        "state = Average(big())",
        "global state; state = Average(state.rows * 2)",
    ),
    "an object in a weak set": (
        "live = weakref.WeakSet()\nclass Average:\n    def __init__(self, rows): self.rows = rows; live.add(self)\n"
        "state = Average(big())",
        "global state; state = Average(state.rows * 2)",
    ),
    "an optimizer": (
        "class Trainer: pass\ntrainer = Trainer(); trainer.optimizer = torch.optim.Adam(model.parameters())\n"
        "model(inputs[0]).sum().backward(); trainer.optimizer.step(); model.zero_grad()",
        "trainer.optimizer = torch.optim.Adam(model.parameters())",
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


@pytest.mark.parametrize("name", AT_END_OF_STEP)
def test_what_a_step_replaces_in_any_way_is_freed_at_its_end(name: str, child: Child) -> None:
    before, body = AT_END_OF_STEP[name]
    verdict = child.judge(BEGIN + before + AT_END.format(body=body))
    assert verdict.word == EXACT, str(verdict)
