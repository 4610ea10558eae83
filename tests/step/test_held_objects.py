"""Steps that hold objects besides the model: predicted to the byte, and everything is left as it was."""

import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.programs.judge import WARM_UP, differences, judge, measured, places, prepared, state
from tests.told import Told
from torchsummary_plus import estimate_memory, measure_memory, summary

pytestmark = pytest.mark.usefixtures("threads")

BEGIN = """
import argparse, array, collections, contextlib, copy, functools, heapq, io, itertools, queue, random, sys, threading
import types, weakref
from dataclasses import dataclass, replace
import numpy
import torch
from torch import nn
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

REPLACED = {
    "a global": Program("rows = big()", "global rows; x = x + rows; rows = rows * 2"),
    "an attribute of a class": Program(
        "class Memory:\n    last, rows = big(), [big()]",
        end="Memory.last = Memory.last * 0.5; Memory.rows = [Memory.last[0] * 2]",
    ),
    "a global that the forward makes": Program(
        "def use(self, hidden):\n    global made; made = hidden * 2; return hidden\nKeeper.use, model = use, Keeper()\n"
        "look = lambda: 'made' in globals()"
    ),
    "named tuples in a full deque": Program(
        "Pair = collections.namedtuple('Pair', 'state info')\n"
        "memory = collections.deque([Pair(big(), {'h': big()}) for _ in range(4)], maxlen=4)",
        "memory.append(Pair(big(), {'h': big()}))",
    ),
    "an attribute of a parameter": Program(
        "model.weight.main_grad = torch.zeros_like(model.weight)",
        end="model.weight.main_grad = model.weight.main_grad + model.weight.grad",
    ),
    "a weight": Program("", end="model.weight = nn.Parameter(model.weight.detach().clone())"),
    "a layer that the optimizer holds": Program(
        f"model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200))\n{ADAM}",
        end="optimizer.step(); optimizer.zero_grad(); model[1] = nn.Linear(200, 200)",
    ),
    "the graph of an output, in a list": Program(
        "model = Keeper(); model.kept = []\n"
        "def use(self, hidden):\n    self.kept.append(hidden); return hidden\nKeeper.use = use",
        end="model.kept = []",
    ),
    "a weight that a hook makes": Program("model = nn.utils.weight_norm(model)"),
}
"""What a step replaces is freed when the program frees it."""

REACHED = {
    "a queue": Program(
        "waiting = queue.Queue()\nfor _ in range(3): waiting.put(big())", "x = x + waiting.get(); waiting.put(big())"
    ),
    "weak proxies, one of them dead": Program(
        "class Parent: pass\nparent, gone = Parent(), Parent()\nparent.mean = big()\n"
        "model.parent, model.gone = weakref.proxy(parent), weakref.proxy(gone)\ndel gone\n"
        "look = lambda: parent.mean.sum().item()",
        "model.parent.mean = model.parent.mean + x.mean(0)",
    ),
    "a module that the step imports": Program(OWN, f"import own; {COUNTS}"),
    "a number that a function counts": Program(
        "count, log = 0, []\ndef inc():\n    global count; count += 1\nlook = lambda: (count, log)",
        "inc(); log.append(count); more = torch.zeros(100_000) if count else None",
    ),
    "a number that a closure counts": Program(
        "def counter():\n    n, log = 0, []\n    def inc():\n        nonlocal n; n += 1\n"
        "    def count():\n        log.append(n); return n\n    return inc, count, lambda: (n, log)\n"
        "inc, count, look = counter()",
        "inc(); more = torch.zeros(100_000) if count() else None",
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
    "a cached function that was called before": Program(
        "@functools.cache\ndef tables(length): return [torch.arange(length).float().sin()]\ntables(6_000)\n"
        "look = lambda: (type(tables(6_000)[0]), tables.cache_info().currsize)",
        "x = x * tables(6_000)[0].sum()",
    ),
}  # fmt: skip
"""What a step reaches in a roundabout way is counted."""

LOGS = "seen, losses = {}, []\nlook = lambda: (dict(seen), list(losses))"
HISTORIES = {
    "large in a later step": Program(
        f"{LOGS}; options['steps'] = 6", "losses.append(learn(model(x))); len(losses) % 5 or torch.zeros(100_000)"
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
    "an optimizer": Program(
        "",
        end="optimizer = torch.optim.Adam(model.parameters()); optimizer.step(); copy.deepcopy(optimizer).zero_grad()",
    ),
}  # fmt: skip

SHADOW = "twin = copy.deepcopy(model).eval().requires_grad_(False); outside.append(twin)\n"
OUTSIDE = {
    "a target network": Program(
        f"{SHADOW}{ADAM}",
        "with torch.no_grad(): x = x + twin(x)",
        "optimizer.step(); [own.lerp_(new.data, 0.01) for own, new in zip(twin.parameters(), model.parameters())]",
    ),
    "master weights": Program(
        "model = model.bfloat16(); inputs = (big().bfloat16(),)\n"
        "pairs = [(p, nn.Parameter(p.detach().float())) for p in model.parameters()]\n"
        "optimizer = torch.optim.Adam([master for _, master in pairs]); outside += [pairs, optimizer]",
        end="for own, master in pairs: master.grad, own.grad = own.grad.float(), None\n"
        "    optimizer.step(); optimizer.zero_grad(); [own.data.copy_(master.data) for own, master in pairs]",
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
    "a prompt that is learned": Program(
        "prompt = torch.randn(20, 200, requires_grad=True); outside.append(prompt); model.requires_grad_(False)\n"
        "optimizer = torch.optim.Adam([prompt]); outside.append(optimizer)",
        "x = x + prompt",
        "optimizer.step(); optimizer.zero_grad()",
    ),
}  # fmt: skip

LOOPS = {
    "a scaler, clipping and a schedule": Program(
        f"{ADAM}scaler = torch.amp.GradScaler('cpu')\n"
        "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)\n"
        "look = lambda: (scaler.state_dict(), schedule.state_dict())\ndef train_step(model, x):\n"
        "    loss = model(x).square().mean()\n    if not torch.isfinite(loss): return\n"
        "    scaler.scale(loss).backward(); scaler.unscale_(optimizer)\n"
        "    nn.utils.clip_grad_norm_(model.parameters(), 1.0); scaler.step(optimizer); scaler.update()\n"
        "    schedule.step(); optimizer.zero_grad()\noptions['train_step'] = train_step"
    ),
    "a penalty on the gradient": Program(
        ADAM,
        "x = x.detach().requires_grad_(); loss = model(x).square().mean()\n"
        "    (slope,) = torch.autograd.grad(loss, x, create_graph=True); (loss + slope.square().mean()).backward()",
        "optimizer.step()",
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


@pytest.mark.parametrize("name", ["master weights", "a trainer's attributes"])
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
