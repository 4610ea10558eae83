"""Steps that hold objects besides the model: predicted to the byte, and everything is left as it was."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.programs.judge import WARM_UP, differences, judge, measured, places, prepared, state
from tests.told import Told
from tests.truth.memory_truth import cpu_deltas
from torchsummary_plus import estimate_memory, measure_memory, summary

pytestmark = pytest.mark.usefixtures("threads")

BEGIN = """
import argparse, array, collections, contextlib, copy, functools, heapq, io, itertools, queue, random, sys, threading
import types, weakref
from dataclasses import dataclass, replace
import numpy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
def big():
    return torch.randn(20, 200)
class Keeper(nn.Module):
    kept, use = None, lambda self, hidden: hidden
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(200, 800), nn.Linear(800, 2)
    def forward(self, x):
        return self.last(self.use(self.first(x)))
model, outside, options, inputs, look = nn.Linear(200, 200), [], {}, (big(),), lambda: None
def learn(y):
    loss = y.square().mean()
    loss.backward()
    model.zero_grad()
    return loss.item()
"""


class Program(NamedTuple):
    """Code before the steps, which may define what ``look()`` shows, and code of a step around its backward."""

    before: str
    start: str = "pass"
    end: str = "pass"
    infers: bool = False

    def source(self) -> str:
        step = f"def train_step(model, x):\n    {self.start}\n    model(x).sum().backward()\n    {self.end}\n"
        step += "    model.zero_grad()\noptions.setdefault('train_step', train_step)\n"
        return f"{BEGIN}{self.before}\n" + ("options['mode'] = 'eval'\n" if self.infers else step)


ADAM = "optimizer = torch.optim.Adam(model.parameters()); outside.append(optimizer)\n"
TRAINED = f"{ADAM}model(inputs[0]).sum().backward(); optimizer.step(); model.zero_grad()"
OWN = "own = types.ModuleType('own'); own.count, own.mean = 0, big(); sys.modules['own'] = own\n"
OWN += "look = lambda: (own.count, type(own.mean), own.mean.sum().item())"
COUNTS = "own.count += 1; own.mean = own.mean * 0.9 + x.mean()"
OBJECT = "class Average:\n    def __init__(self, rows): self.rows = rows\n"

REPLACED = {
    "a global": Program("rows = big()", "global rows; x = x + rows; rows = rows * 2"),
    "an object of a global name": Program(
        "class Cache:\n    kept = None\ncache = Cache()", "global cache; cache.kept = big() * x; cache = Cache()"
    ),
    "an attribute of a class": Program(
        "class Memory:\n    last, rows = big(), [big()]",
        end="Memory.last = Memory.last * 0.5; Memory.rows = [Memory.last[0] * 2]",
    ),
    "a dataclass in a list": Program(
        "@dataclass\nclass Batch:\n    rows: object\nheld = [Batch(big())]", "held.clear(); held.append(Batch(big()))"
    ),
    "a frozen dataclass": Program(
        "@dataclass(frozen=True)\nclass State:\n    rows: object\n    number: int\nstate = State(big(), 0)",
        "global state; state = replace(state, rows=state.rows * 2, number=state.number + 1)",
    ),
    "an object with slots": Program(
        "@dataclass(slots=True)\nclass State:\n    rows: object\nstate = State(big())",
        end="state.rows = state.rows * 2",
    ),
    "named tuples in a full deque": Program(
        "Pair = collections.namedtuple('Pair', 'state info')\n"
        "memory = collections.deque([Pair(big(), {'h': big()}) for _ in range(4)], maxlen=4)",
        "memory.append(Pair(big(), {'h': big()}))",
    ),
    "a tuple of a dict": Program("state = ({'w': big()},)", end="global state; state = ({'w': state[0]['w'] * 2},)"),
    "a tuple of an object": Program(
        f"{OBJECT}held = [(Average(big()), 0)]", end="held[0] = (Average(held[0][0].rows * 2), 1)"
    ),
    "a subclass of dict": Program(
        "class Names(dict): __getattr__ = dict.__getitem__\nstate = Names(ema=big())",
        end="global state; state = Names(ema=state.ema * 2)",
    ),
    "an object with a finalizer": Program(
        f"{OBJECT}    def __del__(self): pass\nstate = Average(big())",
        end="global state; state = Average(state.rows * 2)",
    ),
    "an object in a weak set": Program(
        "live = weakref.WeakSet()\nclass Average:\n    def __init__(self, rows): self.rows = rows; live.add(self)\n"
        "state = Average(big())",
        end="global state; state = Average(state.rows * 2)",
    ),
    "a copy of the model in a closure": Program(
        "def made():\n    ema = copy.deepcopy(model)\n    def renew():\n        nonlocal ema\n"
        "        ema = copy.deepcopy(model)\n    return renew\nrenew = made()",
        "renew()",
    ),
    "a copy in a trainer, once torch's compiler keeps track of modules": Program(
        "torch.compile(nn.Linear(2, 2), backend='eager')(torch.ones(1, 2))\n"
        "class Trainer:\n    def __init__(self): self.ema = copy.deepcopy(model)\n"
        "    def __call__(self, model, x): self.ema = copy.deepcopy(model)\ntrainer = Trainer()",
        "trainer(model, x)",
    ),
    "an attribute of a parameter": Program(
        "model.weight.main_grad = torch.zeros_like(model.weight)",
        end="model.weight.main_grad = model.weight.main_grad + model.weight.grad",
    ),
    "a buffer": Program("model.register_buffer('rows', big())", end="model.rows = model.rows * 0.9 + 0.1"),
    "a state without bytes": Program("model.rows = torch.zeros(0)", "model.rows = x[:0].clone()"),
    "an item of a list": Program("model.rows = [big()]", end="model.rows[0] = model.rows[0] * 0.9"),
    "an array of objects": Program(
        "rows = numpy.empty((2, 2), dtype=object)\nfor place in range(4): rows.flat[place] = big()",
        "x = x + rows[0, 1]; rows[0, 1] = big(); rows[1, 0] = rows[1, 0] * 2",
    ),
    "a weight": Program("", end="model.weight = nn.Parameter(model.weight.detach().clone())"),
    "a bias": Program("", end="model.bias = None"),
    "a layer": Program("model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200))", end="model[1] = model[0]"),
    "a layer, before a product": Program(
        "model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200))",
        end="model[1] = nn.Linear(200, 200); large = torch.ones(300, 300); large @ large",
    ),
    "a layer that the optimizer holds": Program(
        f"model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200))\n{ADAM}",
        end="optimizer.step(); optimizer.zero_grad(); model[1] = nn.Linear(200, 200)",
    ),
    "a layer that a list holds": Program(
        "model, held = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200)), []\nlook = lambda: len(held)",
        end="held.append(model[1]); model[1] = nn.Linear(200, 200)",
    ),
    "all weights, loaded": Program(
        "", end="model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)"
    ),
    "an optimizer": Program(TRAINED, end="global optimizer; optimizer = torch.optim.Adam(model.parameters())"),
    "a loaded optimizer's state": Program(
        TRAINED, end="optimizer.step(); optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))"
    ),
    "what a search along lines has found": Program(
        "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, line_search_fn='strong_wolfe')\n"
        "def closure():\n    optimizer.zero_grad(); loss = (model(inputs[0]) - 1).square().mean()\n"
        "    loss.backward(); return loss\noptimizer.step(closure)",
        end="optimizer.step(closure)",
    ),
    "a list that hooks fill": Program(
        "model = Keeper(); model.taps = []\n"
        "model.first.register_forward_hook(lambda module, args, out: model.taps.append(out.relu()))",
        "(model(x).sum() + sum(tap.mean() for tap in model.taps)).backward(); model.zero_grad(); model.taps = []",
        "model.taps = []",
    ),
    **{
        f"the graph of an output, in a {kind}": Program(
            f"model = Keeper(); model.kept = {kind}()\n"
            f"def use(self, hidden):\n    {put}; return hidden\nKeeper.use = use",
            end=f"model.kept = {kind}()",
        )
        for kind, put in (
            ("list", "self.kept.append(hidden)"),
            ("dict", "self.kept['y'] = hidden"),
            ("set", "self.kept.add(hidden)"),
            ("collections.deque", "self.kept.append(hidden)"),
            ("collections.OrderedDict", "self.kept['y'] = hidden"),
        )
    },
    **{
        f"the graph of an earlier pass through {name}": Program(
            "class Own(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        ctx.result = x.sigmoid(); return ctx.result\n    @staticmethod\n    def backward(ctx, grad):\n"
            "        return grad * ctx.result * (1 - ctx.result)\n"
            f"def use(self, hidden):\n    made = {made}; self.kept = made.cos(); return made * self.kept\n"
            f"model = Keeper(); Keeper.use = use; model(big())",
            infers=infers,
        )
        for name, made, infers in (
            ("operators", "hidden.exp().sigmoid()", False),
            ("operators, in inference", "hidden.exp().sigmoid()", True),
            ("a function of one's own", "Own.apply(hidden.exp())", False),
            ("a checkpoint", "checkpoint(lambda y: y.exp().sigmoid(), hidden, use_reentrant=False)", False),
        )
    },
    "a weight that a hook makes": Program("model = nn.utils.weight_norm(model)"),
    "a weight that a hook makes in inference": Program(
        "model = nn.utils.spectral_norm(model); model(big())", infers=True
    ),
}
"""What a step replaces is freed when the program frees it."""

REACHED = {
    "a queue": Program(
        "waiting = queue.Queue()\nfor _ in range(3): waiting.put(big())", "x = x + waiting.get(); waiting.put(big())"
    ),
    "bound methods of a deque": Program(
        "waiting = collections.deque([big(), big()])\npop, push = waiting.popleft, waiting.append",
        "x = x + pop(); push(big())",
    ),
    "a namespace": Program("names = argparse.Namespace(rows=big())", "names.rows.mul_(2); x = x + names.rows"),
    "a user's dict": Program(
        "names = collections.UserDict(rows=big())", "names['rows'].mul_(2); x = x + names['rows']"
    ),
    "a thread's own": Program("own = threading.local(); own.rows = big()", "own.rows.mul_(2); x = x + own.rows"),
    "a weak dictionary": Program(
        "known = weakref.WeakKeyDictionary()",
        "known.setdefault(model, model.weight.detach() * 2); x = x @ known[model]",
    ),
    "weak proxies, one of them dead": Program(
        "class Parent: pass\nparent, gone = Parent(), Parent()\nparent.mean = big()\n"
        "model.parent, model.gone = weakref.proxy(parent), weakref.proxy(gone)\ndel gone\n"
        "look = lambda: parent.mean.sum().item()",
        "model.parent.mean = model.parent.mean + x.mean(0)",
    ),
    "an iterator over a tuple": Program("rows = iter(tuple(big() for _ in range(9)))", "x = x + next(rows)"),
    "an iterator and a cycle": Program(
        "data = [big() for _ in range(6)]\npairs, cycle = zip(data, data), itertools.cycle(data)",
        "(first, _), again = next(pairs), next(cycle); x = first + again",
    ),
    "a count": Program("numbers = map(sum, enumerate(itertools.cycle([1, 1])))", "x = x.repeat(next(numbers), 1)"),
    "a module that the step imports": Program(OWN, f"import own; {COUNTS}"),
    "a module inside a module": Program(
        f"{OWN}\nwhole = types.ModuleType('whole'); whole.own = own", f"own = whole.own; {COUNTS}"
    ),
    "names by globals()": Program(
        "number, average = 0, big()\nlook = lambda: (number, type(average), average.sum().item())",
        "globals()['number'] += 1; globals()['average'] = globals()['average'] + x.mean()",
    ),
    "attributes of a container": Program(
        "class Replay(collections.deque):\n"
        "    def __init__(self): super().__init__(maxlen=4); self.place = 0; self.mean = torch.zeros(200)\n"
        "    def push(self, x): self.append(x); self.place += 1; self.mean = self.mean * 0.9 + x.mean(0)\n"
        "replay = Replay()\nlook = lambda: (replay.place, type(replay.mean), replay.mean.sum().item(), len(replay))",
        "replay.push(x.clone()); x = replay[-1]",
    ),
    "a singleton of a metaclass": Program(
        "class Singleton(type):\n    made = {}\n    def __call__(cls):\n"
        "        if cls not in cls.made: cls.made[cls] = super().__call__()\n        return cls.made[cls]\n"
        "class Tracker(metaclass=Singleton):\n    def __init__(self): self.mean, self.count = torch.zeros(200), 0\n"
        "Tracker()\nlook = lambda: (Tracker().count, Tracker().mean.sum().item())",
        "tracker = Tracker(); tracker.count += 1; tracker.mean = tracker.mean + x.mean(0)",
    ),
    "methods of a named tuple": Program(
        "class State(collections.namedtuple('State', 'rows')):\n"
        "    def next(self): counts['calls'] += 1; counts['rows'] = self.rows * 2; return State(self.rows + 1)\n"
        "counts, current = {'calls': 0, 'rows': None}, [State(torch.zeros(200))]\n"
        "look = lambda: (counts['calls'], type(counts['rows']), current[0].rows.sum().item())",
        "current[0] = current[0].next(); x = x + current[0].rows",
    ),
    "a context that holds a model": Program(
        "def main(context):\n    def distant(x):\n        with context as teacher: return teacher(x).detach()\n"
        "    return distant\ndistant = main(contextlib.nullcontext(nn.Linear(200, 200)))",
        "x = distant(x)",
    ),
    "a bound method of a generator": Program(
        "generator = random.Random(1); draw = generator.random; look = generator.getstate", "x = x * draw()"
    ),
    "arrays, files and flags of the standard library": Program(
        "numbers, text = array.array('f', [0.0]), io.StringIO()\n"
        "done, free = threading.Event(), threading.Semaphore(5)\n"
        "look = lambda: (list(numbers), text.getvalue(), done.is_set(), free._value)",
        "numbers.append(2.0); text.write('x'); done.set(); free.acquire(blocking=False)",
    ),
    "seeds and exported bytes": Program(
        "seeds, raw = numpy.random.SeedSequence(5), bytearray(256)\n"
        "scale = numpy.frombuffer(raw, dtype=numpy.float32); look = lambda: bytes(raw)",
        "generator = numpy.random.default_rng(seeds.spawn(1)[0]); raw[0] += 1; x = x * float(scale[1])",
    ),
    "switches of torch": Program(
        "def look():\n    return torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()",
        "torch.use_deterministic_algorithms(True, warn_only=True); torch.set_float32_matmul_precision('medium')",
        "torch.use_deterministic_algorithms(False); torch.set_float32_matmul_precision('highest')",
    ),
    "an array that a tensor shares": Program(
        "rows = numpy.ones((20, 200), dtype=numpy.float32); look = lambda: rows.sum()",
        "x = x + torch.from_numpy(rows).add_(1)",
    ),
    "a cached function": Program(
        "counts = {'calls': 0}\n@functools.lru_cache(None)\n"
        "def table(rows): counts['calls'] += 1; return torch.arange(rows * 200.0).view(rows, 200)\n"
        "look = lambda: counts['calls']",
        "x = x + table(20)",
    ),
    "a cached function that was called before": Program(
        "@functools.cache\ndef tables(length): return [torch.arange(length).float().sin()]\ntables(6_000)\n"
        "look = lambda: (type(tables(6_000)[0]), tables.cache_info().currsize)",
        "x = x * tables(6_000)[0].sum()",
    ),
    "a cache in the closure of a decorator": Program(
        "def kept(function):\n    cached = functools.lru_cache(4)(function)\n    @functools.wraps(function)\n"
        "    def wrapper(*args): return cached(*args)\n    return wrapper\n"
        "@kept\ndef table(length): return torch.arange(length).float().tan()\ntable(6_000)\n"
        "look = lambda: type(table(6_000))",
        "x = x * table(6_000).sum()",
    ),
    "a cached property": Program(
        "counts = {'calls': 0}\nclass Model(nn.Linear):\n    @functools.cached_property\n"
        "    def table(self): counts['calls'] += 1; return torch.ones(200) * 2\n"
        "    def forward(self, x): return super().forward(x) + self.table\n"
        "model = Model(200, 200)\nlook = lambda: (counts['calls'], 'table' in vars(model))"
    ),
    "a table of objects that hold an imported module": Program(
        "class Backend:\n    def __init__(self): self.framework = torch\nknown = {}\nlook = lambda: len(known)",
        "known.setdefault('torch', Backend())",
    ),
}  # fmt: skip
"""What a step reaches in a roundabout way is counted."""

LOGS = "seen, losses = {}, []\nlook = lambda: (dict(seen), list(losses))"
HISTORIES = {
    "large in the first two steps": Program(
        LOGS, "losses.append(learn(model(x))); len(losses) > 2 or torch.zeros(100_000)"
    ),
    "large in a later step": Program(
        f"{LOGS}; options['steps'] = 6", "losses.append(learn(model(x))); len(losses) % 5 or torch.zeros(100_000)"
    ),
    "counts in a dict": Program(
        f"{LOGS}; options['steps'] = 3",
        "key = 'low' if learn(model(x)) < 10 else 'high'; seen[key] = seen.get(key, 0) + 1\n"
        "    sum(seen.values()) > 2 and torch.zeros(100_000)",
    ),
    "the least so far": Program(LOGS, "losses.append(learn(model(x))); min(losses)"),
    "a heap": Program(LOGS, "heapq.heappush(losses, learn(model(x)))"),
    "a deque, compared": Program(
        "losses = collections.deque()", "losses.append(learn(model(x))); len(losses) > 1 and losses[-1] < losses[-2]"
    ),
}  # fmt: skip
"""A step that is run several times for one estimate starts each time as the user's own would."""

COPIED = {
    "the model, fitted": Program(  # The inner loop of Reptile (Nichol et al., 2018).
        "def fit(clone, x):\n    optimizer = torch.optim.SGD(clone.parameters(), 0.1)\n    for _ in range(2):\n"
        "        loss = clone(x).square().mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()",
        "clone = copy.deepcopy(copy.deepcopy(model)); fit(clone, x)\n"
        "    with torch.no_grad(): [own.lerp_(new, 0.1) for own, new in zip(model.parameters(), clone.parameters())]",
    ),
    "a shallow copy with other weights": Program(
        "",
        "other = copy.copy(model)\n"
        "    other._parameters = {k: nn.Parameter(p.detach() * 2) for k, p in model.named_parameters()}\n"
        "    other(x).sum().backward(); del other",
    ),
    "models with gradients": Program(  # A parameter's copy has no gradient (torch/nn/parameter.py, __deepcopy__).
        "", end="best = copy.deepcopy([model, model]); best += [copy.deepcopy(part) for part in best]; del best"
    ),
    "parameters and plain tensors": Program(
        "",
        "leaf = x[:3].detach().requires_grad_(); model(leaf).sum().backward()\n"
        "    made = copy.deepcopy([leaf, leaf.grad, x, x[:1], *model.parameters(), model.state_dict()]); del made",
    ),
    "an optimizer": Program(
        "",
        end="optimizer = torch.optim.Adam(model.parameters()); optimizer.step(); copy.deepcopy(optimizer).zero_grad()",
    ),
}  # fmt: skip

SHADOW = "twin = copy.deepcopy(model).eval().requires_grad_(False); outside.append(twin)\n"
OUTSIDE = {
    "a teacher": Program(SHADOW, "x = x + twin(x)"),
    "a scripted teacher": Program("twin = torch.jit.script(copy.deepcopy(model).eval())", "x = x + twin(x).detach()"),
    "a frozen teacher": Program(
        "twin = torch.jit.freeze(torch.jit.script(copy.deepcopy(model).eval()))", "x = x + twin(x).detach()"
    ),
    "a traced teacher": Program(
        "twin = torch.jit.trace(copy.deepcopy(model).eval(), big())", "x = x + twin(x).detach()"
    ),
    "a target network": Program(
        f"{SHADOW}{ADAM}",
        "with torch.no_grad(): x = x + twin(x)",
        "optimizer.step(); [own.lerp_(new.data, 0.01) for own, new in zip(twin.parameters(), model.parameters())]",
    ),
    "averages": Program(
        f"{ADAM}from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn\n"
        "averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99)); outside.append(averaged)",
        end="optimizer.step(); averaged.update_parameters(model)",
    ),
    "master weights": Program(
        "model = model.bfloat16(); inputs = (big().bfloat16(),)\n"
        "pairs = [(p, nn.Parameter(p.detach().float())) for p in model.parameters()]\n"
        "optimizer = torch.optim.Adam([master for _, master in pairs]); outside += [pairs, optimizer]",
        end="for own, master in pairs: master.grad, own.grad = own.grad.float(), None\n"
        "    optimizer.step(); optimizer.zero_grad(); [own.data.copy_(master.data) for own, master in pairs]",
    ),
    "a replay buffer": Program(
        "rows, place = torch.randn(1024, 200), torch.zeros(1, dtype=torch.long); outside += [rows, place]",
        "rows[:20] = x; place.add_(1); x = rows[torch.randint(0, 1024, (32,))]",
    ),
    "default arguments and a partial": Program(
        "late = torch.randn(300, 200)\ndef mix(first, x, by=big(), *, late): return x @ first * by + late.mean()\n"
        "mixed = functools.partial(mix, torch.randn(200, 200), late=late)",
        "x = mixed(x)",
    ),
    "a trainer's attributes": Program(
        f"{ADAM}class Trainer:\n"
        "    def __init__(self): self.noise, self.losses, self.done = big(), [torch.zeros(())], 0\n"
        "    def note(self, x): self.losses.append(x.detach().mean()); self.done += 1; return x + self.noise\n"
        "trainer = Trainer()\nlook = lambda: (trainer.done, len(trainer.losses))",
        "x = trainer.note(x)",
        "optimizer.step(); optimizer.zero_grad()",
    ),
    "an optimizer that has stepped": Program(TRAINED, end="optimizer.step()"),
    "gradients in one tensor": Program(
        "flat = torch.zeros(40_200); outside.append(flat)\n"
        "for p, part in zip(model.parameters(), flat.split([40_000, 200])): p.grad = part.view_as(p)\n"
        "def train_step(model, x): flat.zero_(); model(x).sum().backward()\noptions['train_step'] = train_step"
    ),
    "parameters in one tensor": Program(
        "flat = torch.zeros(41_000); outside.append(flat)\n"
        "for p, part in zip(model.parameters(), flat[:40_200].split([40_000, 200])):\n"
        "    part.copy_(p.detach().flatten()); p.data = part.view_as(p)",
        end="flat.mul_(0.9)",
    ),
    "views of one tensor": Program(
        "base = torch.randn(40, 200); first, second = base[:20], base.view(2, 20, 200)[1]; outside += [base, first]",
        "x = x * first + second; first.mul_(0.9); base[3:40] = 0; second.add_(x.detach())",
    ),
    "a prompt that is learned": Program(
        "prompt = torch.randn(20, 200, requires_grad=True); outside.append(prompt); model.requires_grad_(False)\n"
        "optimizer = torch.optim.Adam([prompt]); outside.append(optimizer)",
        "x = x + prompt",
        "optimizer.step(); optimizer.zero_grad()",
    ),
    "sums of gradients by parameter": Program(
        "sums = {p: torch.zeros_like(p) for p in model.parameters()}; outside += [*sums.values()]",
        end="[sums[p].add_(p.grad) for p in sums]; model.zero_grad(); [p.data.sub_(0.1 * sums[p]) for p in sums]",
    ),
}  # fmt: skip

LOOPS = {
    "micro-batches, gradients of zeros": Program(
        f"{ADAM}def train_step(model, x):\n    for part in x.chunk(4): (model(part).square().mean() / 4).backward()\n"
        "    optimizer.step(); optimizer.zero_grad(set_to_none=False)\noptions['train_step'] = train_step"
    ),
    "a scaler, clipping and a schedule": Program(
        f"{ADAM}scaler = torch.amp.GradScaler('cpu')\n"
        "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)\n"
        "look = lambda: (scaler.state_dict(), schedule.state_dict())\ndef train_step(model, x):\n"
        "    loss = model(x).square().mean()\n    if not torch.isfinite(loss): return\n"
        "    scaler.scale(loss).backward(); scaler.unscale_(optimizer)\n"
        "    nn.utils.clip_grad_norm_(model.parameters(), 1.0); scaler.step(optimizer); scaler.update()\n"
        "    schedule.step(); optimizer.zero_grad()\noptions['train_step'] = train_step"
    ),
    "a generator, a discriminator and their optimizers": Program(
        "model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 1))\n"
        "first, second = (torch.optim.Adam(part.parameters()) for part in model); outside += [first, second]",
        "second.zero_grad(); made = model[0](x).detach(); (model[1](x) - model[1](made)).mean().backward()\n"
        "    second.step(); first.zero_grad()",
        "first.step()",
    ),
    "a penalty on the gradient": Program(
        ADAM,
        "x = x.detach().requires_grad_(); loss = model(x).square().mean()\n"
        "    (slope,) = torch.autograd.grad(loss, x, create_graph=True); (loss + slope.square().mean()).backward()",
        "optimizer.step()",
    ),
    "gradients of gradients through writes in place": Program(
        "",
        "y = model(x); y[:, 1:].mul_(x[:, :-1]); y.add_(x); loss = model(y[::2]).lerp_(x[::2], 0.5).square().mean()\n"
        "    slopes = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)\n"
        "    (loss + sum(slope.square().mean() for slope in slopes)).backward(); del y, loss, slopes",
    ),
    "two backwards through one graph": Program(
        "", "y = model(x); y.square().mean().backward(retain_graph=True); y.exp().mean().backward(); del y"
    ),
    "optimizers fused into the backward": Program(  # As in torch's tutorial of that name, and in torchtune.
        "by_parameter = {p: torch.optim.Adam([p]) for p in model.parameters()}\n"
        "def step(p): by_parameter[p].step(); by_parameter[p].zero_grad()\n"
        "for p in model.parameters(): p.register_post_accumulate_grad_hook(step)\n"
        "look = lambda: [len(optimizer.state) for optimizer in by_parameter.values()]"
    ),
}  # fmt: skip

ASSIGNED = {
    "a weight that is emptied and put back": Program(  # As FSDP1 keeps a parameter whose shard is on other ranks.
        "",
        "weight, data = model.weight, model.weight.data; weight.data = torch.empty(0); weight.detach().clone()\n"
        "    assert weight.view(-1).shape == (0,); weight.data = data",
    ),
    "a weight": Program("", "model.weight.data = torch.full((200, 200), 0.1)"),
    "a bias, whose part is used": Program(
        "", "model.bias.data = model.bias.detach().clone() + 1; model.bias[2:4].sum().backward()"
    ),
    "an input": Program("", "x.data = torch.zeros(2, 200); x = x[:1]"),
    "weights, as descended by hand": Program(
        "",
        "model(x).sum().backward()\n    for p in model.parameters(): p.data = p.data - 0.1 * p.grad\n"
        "    model.zero_grad()",
    ),
}  # fmt: skip

PROGRAMS = {
    f"{group}: {name}": program
    for group, programs in (
        *(("replaced", REPLACED), ("reached", REACHED), ("history", HISTORIES)),
        *(("copied", COPIED), ("outside", OUTSIDE), ("loop", LOOPS)),
        ("assigned", ASSIGNED),
    )
    for name, program in programs.items()
}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    judge(WARM_UP)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_step_holds_is_predicted_to_the_byte_and_left_as_it_was(name: str) -> None:
    source = PROGRAMS[name].source()
    _, real = measured(source)
    gc.collect()  # The caches of that run are in no cycle's grip any more.
    space = prepared(source)
    before, looked = state(space) | places(space), space["look"]()
    for call in (estimate_memory, measure_memory):
        result = call(space["model"], input_data=space["inputs"], **space["options"])
        assert result.peak_bytes == real, call.__name__
        assert not differences(before, state(space) | places(space))
        assert space["look"]() == looked


@pytest.mark.parametrize(
    "name", ["a teacher", "a target network", "averages", "master weights", "a trainer's attributes"]
)
def test_what_a_step_holds_goes_along_to_a_gpu(name: str) -> None:
    """Rounded up to blocks of 512 bytes, tensor by tensor."""
    space = prepared(OUTSIDE[name].source())
    before = state(space) | places(space)
    here, there = (
        estimate_memory(space["model"], input_data=space["inputs"], device=device, **space["options"])
        for device in ("cpu", "cuda")
    )
    assert not differences(before, state(space) | places(space))
    for kind in ("parameters", "buffers", "optimizer_state"):
        assert 0 <= there.at_peak[kind] - here.at_peak[kind] + 256 < 512 * 40, kind
    assert there.at_peak["parameters"] >= here.at_peak["parameters"] > 0
    assert not any("CPU's kernels" in line for line in there.assumptions)


def test_on_a_gpu_replaced_parameters_are_freed() -> None:
    peaks = []
    for steps in (1, 3):
        space = prepared(REPLACED["a weight"].source())
        options = {**space["options"], "steps": steps, "gpu": "T4"}
        peaks.append(estimate_memory(space["model"], input_data=space["inputs"], **options).peak_bytes)
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("call", [estimate_memory, measure_memory])
def test_a_step_that_fails_leaves_what_it_holds_as_it_was(call: Callable[..., Any]) -> None:
    space = prepared(OUTSIDE["a target network"]._replace(end="optimizer.step(); raise OSError('planned')").source())
    before = state(space) | places(space)
    with pytest.raises(Exception, match="planned"):
        call(space["model"], input_data=space["inputs"], **space["options"])
    assert not differences(before, state(space) | places(space))


@pytest.fixture
def hooks_of_all() -> Iterator[dict[str, Any]]:
    """What hooks of all modules and of all optimizers keep."""
    kept: dict[str, Any] = {}
    handles = (
        nn.modules.module.register_module_forward_hook(lambda m, i, out: kept.update({type(m).__name__: out + 1})),
        register_optimizer_step_post_hook(lambda optimizer, *_: kept.update(steps=kept.get("steps", 0) + 1)),
    )
    yield kept
    for handle in handles:
        handle.remove()


def test_hooks_of_all_modules_and_optimizers_are_left_alone(hooks_of_all: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    for memory in (None, {"optimizer": "adam"}):
        summary(model, (64,), memory=memory, verbose=0)
    estimate = estimate_memory(model, (64,), 4, optimizer="adam")
    assert estimate.peak_bytes == measure_memory(model, (64,), 4, optimizer="adam").peak_bytes
    assert not hooks_of_all


def test_tensors_that_autocast_knows_are_left_to_it() -> None:
    model, x = nn.Linear(64, 64), torch.randn(4, 64)
    space = {"model": model, "inputs": x, "outside": []}
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
        before = state(space) | places(space)
        for call in (estimate_memory, measure_memory):
            call(model, input_data=x)
            assert not differences(before, state(space) | places(space))
            model(x)


def test_hooks_and_attributes_of_tensors_are_theirs_in_a_step_and_after_it() -> None:
    model, calls = nn.Linear(64, 64), Told()
    weight: Any = model.weight
    weight.tag = "mine"
    weight.register_hook(lambda gradient: calls.put(weight.tag))
    hooks = weight._backward_hooks
    estimate_memory(model, (64,), 8)
    assert set(calls.all()) == {"mine"}
    assert weight._backward_hooks is hooks and weight._post_accumulate_grad_hooks is None and len(hooks) == 1


def test_the_truth_does_not_depend_on_what_earlier_profiles_saw() -> None:
    tensors: list[torch.Tensor] = []
    cpu_deltas(lambda: tensors.append(torch.zeros(128, 128)))
    assert cpu_deltas(tensors.clear) == []
