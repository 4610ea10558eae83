"""What the generated programs use outside the model, sparse gradients, and operators that call functions."""

from __future__ import annotations

from benchmarks.programs_layers import WIDTHS
from benchmarks.programs_scope import Scope, production
from benchmarks.programs_text import Statement

HOLDERS = {
    "remember": """
MEMO = {}

def remember(x):
    MEMO["last"] = MEMO.get("last", 0) * 0.5 + x.detach()
    return MEMO["last"] * x
""",
    "counted": """
def make_counted():
    total = torch.zeros(1)

    def counted(x):
        nonlocal total
        total = total + x.detach().mean()
        return x * total

    return counted

counted = make_counted()
""",
    "Bank": """
class Bank:
    rows = torch.zeros(64)
    last = None

    @classmethod
    def push(cls, x):
        cls.last = x.detach().clone()
        cls.rows[:1].copy_(cls.last.flatten()[:1])
        return x + cls.rows[:1]
""",
    "renewed": """
from dataclasses import dataclass

@dataclass
class Kept:
    rows: object
    number: int

KEPT = Kept(torch.zeros(300), 0)

def renewed(x):
    global KEPT
    KEPT = Kept(torch.full((300,), float(KEPT.number)), KEPT.number + 1)
    return x * KEPT.rows[:1]
""",
    "queued": """
import queue

WAITING = queue.Queue()
WAITING.put(torch.ones(200))

def queued(x):
    WAITING.put(x.detach().flatten()[:1].expand(200).clone())
    return x * WAITING.get()[:1]
""",
    "replayed": """
from collections import deque, namedtuple

Pair = namedtuple("Pair", "rows reward")
REPLAY = deque([Pair(torch.ones(200), 0.0) for _ in range(3)], maxlen=3)

def replayed(x):
    REPLAY.append(Pair(x.detach().flatten()[:1].expand(200).clone(), 1.0))
    return x * REPLAY[0].rows[:1]
""",
    "named": """
from types import SimpleNamespace

NAMES = SimpleNamespace(rows=torch.ones(200), count=0)

def named(x):
    NAMES.rows, NAMES.count = NAMES.rows * 0.5 + x.detach().mean(), NAMES.count + 1
    return x * NAMES.rows[:1]
""",
    "smoothed": """
import copy

AVERAGE = nn.Linear(16, 16)

def smoothed(x):
    global AVERAGE
    AVERAGE = copy.deepcopy(AVERAGE)
    return x * AVERAGE.bias.detach()[:1]
""",
    "pushed": """
from collections import deque

class Replay(deque):
    def __init__(self):
        super().__init__(maxlen=3)
        self.place, self.mean = 0, torch.zeros(200)

    def push(self, x):
        self.append(x.detach().clone())
        self.place, self.mean = self.place + 1, self.mean * 0.9 + self[-1].mean()

PUSHED = Replay()

def pushed(x):
    PUSHED.push(x)
    return x * PUSHED.mean[:1]
""",
    "imported": """
import sys
from types import ModuleType

sys.modules["state_of_programs"] = ModuleType("state_of_programs")
sys.modules["state_of_programs"].mean = torch.zeros(200)

def imported(x):
    import state_of_programs

    state_of_programs.mean = state_of_programs.mean * 0.9 + x.detach().mean()
    return x * state_of_programs.mean[:1]
""",
    "remembered": """
from functools import lru_cache

BASE = torch.ones(300)

@lru_cache(maxsize=None)
def table(size):
    return BASE[:size] * 2

def remembered(x):
    return x * table(200)[:1]
""",
    "single": """
class Singleton(type):
    known = {}

    def __call__(cls):
        if cls not in cls.known:
            cls.known[cls] = super().__call__()
        return cls.known[cls]

class Tracker(metaclass=Singleton):
    def __init__(self):
        self.mean = torch.zeros(200)

Tracker()

def single(x):
    Tracker().mean = Tracker().mean * 0.9 + x.detach().mean()
    return x * Tracker().mean[:1]
""",
    "simple": """
import queue

SIMPLE = queue.SimpleQueue()
SIMPLE.put(torch.ones(200))

def simple(x):
    SIMPLE.put(x.detach().flatten()[:1].expand(200).clone())
    return x * SIMPLE.get()[:1]
""",
    "tabled": """
def tabled(x, table=torch.full((32,), 0.5)):
    return x * table[:1]
""",
}
"""Functions with tensors in a module's globals, a closure, a class, a default, a container, or an object."""


@production(1.5)
def held_outside(scope: Scope) -> Statement | None:
    """Draw a function that keeps tensors from call to call."""
    x = scope.pick(lambda value: len(value.shape) >= 2)
    if x is None or scope.depth:
        return None
    name, text = scope.choose(list(HOLDERS.items()))
    if name == "remember" and name in scope.helpers:
        return None
    scope.helper(name, text)
    scope.keep(x)
    return scope.make(f"{'Bank.push' if name == 'Bank' else name}({x.name})", x)


@production(1)
def sparse_gradient(scope: Scope) -> Statement | None:
    """Draw an embedding with a sparse gradient."""
    x = scope.of_rank(2, 3)
    if x is None or scope.depth:
        return None
    width = scope.choose(WIDTHS)
    kind = scope.choose(["nn.Embedding(50, {}, sparse=True)", "nn.EmbeddingBag(50, {}, mode='sum', sparse=True)"])
    name = scope.layer(kind.format(width))
    rows = f"{name}(x.flatten(1)[:, :6].argsort(-1))"
    return scope.make(rows if "Bag" in kind else f"{rows}.sum(1)", x, (x.shape[0], width), learns=True)


CALLING = (
    "torch.cond(x.sum() > 1e9, lambda a: a.sin(), lambda a: a.cos(), ({0},))",
    "torch._higher_order_ops.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 0.5), "
    "(torch.zeros((), dtype=torch.long), {0}.detach()))[1]",
    "torch._higher_order_ops.associative_scan(lambda a, b: a + b, {0}, 0, combine_mode='generic')",
    "torch._higher_order_ops.scan(lambda c, r: (c + r, c * r), torch.zeros_like({0}[0]), {0})[1]",
    "torch.func.vmap(torch.func.grad(lambda row: (row * 2 / 3).square().sum()))({0})",
    "torch.func.jacrev(lambda a: (a * 0.5).sum(0).sin())({0}).sum(0).flatten()[:1] + {0}",
)


@production(0.7)
def calling(scope: Scope) -> Statement | None:
    """Draw an operator that takes functions."""
    x = scope.of_rank(2)
    if x is None or scope.depth or max(x.shape) > 64:
        return None
    form = scope.choose(CALLING)
    scope.keep(x)
    return scope.make(form.format(x.name), x, learns=x.learns and "while_loop" not in form)
