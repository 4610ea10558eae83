"""State that a step reaches in roundabout ways: its tensors are counted, and all of it is as before afterwards."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from torch import nn

from torchsummary_plus import estimate_memory, measure_memory, summary

BEGIN = """
import array, collections, contextlib, functools, io, queue, random, sys, threading, types, weakref
import torch
from torch import nn
torch.manual_seed(0)
model, x = nn.Linear(64, 64), torch.randn(4, 64)
own = types.ModuleType("module_of_a_user")
own.count, own.mean = 0, torch.zeros(64, 64)
sys.modules["module_of_a_user"] = own
def learn(y):
    y.sum().backward()
    model.zero_grad()
def state():
    return own.count, type(own.mean), own.mean.sum().item()
"""

IN_OWN = "own.count += 1; own.mean = own.mean * 0.9 + model.weight.detach(); learn(model(x))"

PROGRAMS = {
    "a module that the step imports": f"""
def train_step(model, x):
    import module_of_a_user as own
    {IN_OWN}
""",
    "a module in a closure": f"""
def main(own):
    def train_step(model, x):
        {IN_OWN}
    return train_step
train_step = main(own)
""",
    "a module that an object holds": """
class Trainer:
    def __init__(self, own): self.own = own
    def step(self, model, x):
        self.own.count += 1; self.own.mean = self.own.mean * 0.9 + model.weight.detach(); learn(model(x))
train_step = Trainer(own).step
""",
    "a module inside a module": """
whole = types.ModuleType("whole"); whole.inner = own
def train_step(model, x):
    whole.inner.count += 1; whole.inner.mean = whole.inner.mean + model.weight.detach(); learn(model(x))
""",
    "names by globals()": """
number, average = 0, torch.zeros(64, 64)
def train_step(model, x):
    globals()["number"] += 1; globals()["average"] = globals()["average"] + model.weight.detach(); learn(model(x))
def state(): return number, type(average), average.sum().item()
""",
    "attributes of a container": """
class Replay(collections.deque):
    def __init__(self): super().__init__(maxlen=4); self.place = 0; self.mean = torch.zeros(64)
    def push(self, x): self.append(x); self.place += 1; self.mean = self.mean * 0.9 + x.mean(0)
replay = Replay()
def train_step(model, x): replay.push(x.clone()); learn(model(replay[-1]))
def state(): return replay.place, type(replay.mean), replay.mean.sum().item(), len(replay)
""",
    "a singleton of a metaclass": """
class Singleton(type):
    made = {}
    def __call__(cls):
        if cls not in cls.made: cls.made[cls] = super().__call__()
        return cls.made[cls]
class Tracker(metaclass=Singleton):
    def __init__(self): self.mean = torch.zeros(64); self.count = 0
Tracker()
def train_step(model, x):
    tracker = Tracker(); tracker.count += 1; tracker.mean = tracker.mean + x.mean(0); learn(model(x))
def state(): return Tracker().count, type(Tracker().mean), Tracker().mean.sum().item()
""",
    "methods of a named tuple": """
class State(collections.namedtuple("State", "rows")):
    def next(self): counts["calls"] += 1; counts["rows"] = self.rows * 2; return State(self.rows + 1)
counts, current = {"calls": 0, "rows": None}, [State(torch.zeros(64))]
def main(current):
    def train_step(model, x): current[0] = current[0].next(); learn(model(x) + current[0].rows)
    return train_step
train_step = main(current)
def state(): return counts["calls"], type(counts["rows"]), current[0].rows.sum().item()
""",
    "the body of a cached function": """
base, counts = torch.randn(200, 64), {"calls": 0}
@functools.lru_cache(None)
def table(rows): counts["calls"] += 1; return base[:rows] * 2
def train_step(model, x): learn(model(x) + table(4))
def state(): return counts["calls"]
""",
    "the body of a cached property": """
base, counts = torch.randn(200, 64), {"calls": 0}
class Model(nn.Linear):
    @functools.cached_property
    def table(self): counts["calls"] += 1; return base[:4] * 2
    def forward(self, x): return super().forward(x) + self.table
model = Model(64, 64)
def train_step(model, x): learn(model(x))
def state(): return counts["calls"], "table" in vars(model)
""",
    "a bound method of a generator": """
def main(draw):
    def train_step(model, x): learn(model(x) * draw())
    return train_step
generator = random.Random(1)
train_step = main(generator.random)
def state(): return generator.getstate()
""",
    "a simple queue": """
waiting = queue.SimpleQueue()
for number in range(5): waiting.put(torch.full((4, 64), number * 1.0))
def train_step(model, x): waiting.put(waiting.get() * 2); learn(model(x))
def state():
    items = [waiting.get() for _ in range(waiting.qsize())]
    for item in items: waiting.put(item)
    return [(type(item), item.sum().item()) for item in items]
""",
    "a context that holds a model": """
def main(context):
    def train_step(model, x):
        with context as teacher: y = teacher(x).detach()
        learn(model(x) - y)
    return train_step
train_step = main(contextlib.nullcontext(nn.Linear(64, 64)))
def state(): return None
""",
    "arrays, files and flags of the standard library": """
numbers, text, done, free = array.array("f", [0.0]), io.StringIO(), threading.Event(), threading.Semaphore(5)
def train_step(model, x):
    numbers.append(2.0); text.write("x"); done.set(); free.acquire(blocking=False); learn(model(x))
def state(): return list(numbers), text.getvalue(), done.is_set(), free._value
""",
    "switches of torch": """
def train_step(model, x):
    torch.use_deterministic_algorithms(True, warn_only=True); torch.set_float32_matmul_precision("medium")
    torch.autograd.set_detect_anomaly(True)
    learn(model(x))
def state():
    anomaly = torch.is_anomaly_enabled()
    return torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(), anomaly
""",
    "weak proxies, one of them dead": """
class Parent: pass
parent, gone = Parent(), Parent()
parent.mean = torch.zeros(64)
model.parent, model.gone = weakref.proxy(parent), weakref.proxy(gone)
del gone
def train_step(model, x): model.parent.mean = model.parent.mean + x.mean(0); learn(model(x))
def state(): return type(parent.mean), parent.mean.sum().item()
""",
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_step_reaches_is_counted_and_left_alone(name: str) -> None:
    program: dict[str, Any] = ModuleType("program").__dict__
    program["__name__"] = "__main__"
    exec(compile(BEGIN + PROGRAMS[name], "program", "exec"), program)
    before = program["state"]()
    options = {"input_data": program["x"], "train_step": program["train_step"]}
    estimate = estimate_memory(program["model"], **options)
    assert program["state"]() == before
    assert estimate.peak_bytes == measure_memory(program["model"], **options).peak_bytes
    assert program["state"]() == before
    del sys.modules["module_of_a_user"]


def test_hooks_of_all_modules_and_optimizers_are_left_alone() -> None:
    kept: dict[str, Any] = {}
    model = nn.Sequential(nn.Linear(64, 64))
    handles = [
        nn.modules.module.register_module_forward_hook(
            lambda m, i, output: kept.update({type(m).__name__: output + 1})
        ),
        hook_of_optimizers(lambda optimizer, *_: kept.update(steps=kept.get("steps", 0) + 1)),
    ]
    try:
        for memory in (None, {"optimizer": "adam"}):
            summary(model, (64,), memory=memory, verbose=0)
            assert not kept
        estimate = estimate_memory(model, (64,), 4, optimizer="adam")
        assert estimate.peak_bytes == measure_memory(model, (64,), 4, optimizer="adam").peak_bytes
        assert not kept
    finally:
        for handle in handles:
            handle.remove()


def hook_of_optimizers(hook: Any) -> Any:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    return register_optimizer_step_post_hook(hook)
