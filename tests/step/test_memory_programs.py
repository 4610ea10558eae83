"""Random programs: each estimate contains the measured peak and changes nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.cpu.programs import Child, judged, summary
from benchmarks.programs.grammar import draw
from benchmarks.programs.judge import (
    CHANGED,
    CRASHED,
    DIED,
    EXACT,
    FAULTS,
    HUNG,
    INSIDE,
    INVALID,
    OUTSIDE,
)
from benchmarks.programs.text import HEADER
from tests.told import Told
from tests.truth.random_models import law
from tests.truth.warm import python
from torchsummary_plus import estimate_memory

COUNT, PART = 60, 20
"""``python -m benchmarks.memory_programs`` runs thousands."""

SECONDS = 120.0
"""Time limit of a program; an estimate takes less than one, but a busy machine may run it twenty times slower."""

EXACT_SHARE = 0.97


@pytest.mark.parametrize("part", range(COUNT // PART))
def test_every_program_is_predicted(part: int) -> None:
    done = list(judged(seed=part, count=PART, workers=1, seconds=SECONDS, python=python()))
    faults = [result for result in done if result.verdict.word in FAULTS]
    told = "\n".join([summary(done), *(f"{run.number}: {run.verdict}\n{run.program.source()}" for run in faults)])
    assert not faults, told
    assert sum(result.verdict.word == EXACT for result in done) >= EXACT_SHARE * PART - 1, told
    assert len(done) <= 1.3 * PART, "too many of the grammar's programs do not run"


@law(100)
@given(st.integers(0), st.integers(0))
def test_a_program_is_python(seed: int, number: int) -> None:
    ast.parse(draw(seed, number).source())


def test_a_seed_and_a_number_give_the_same_text() -> None:
    assert draw(3, 14).source() == draw(3, 14).source() != draw(3, 15).source()


TEXT = (
    HEADER
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        is_real = type(x) is torch.Tensor
        {}
        return self.layer(x)

model, inputs, outside, options = Model(), (torch.randn(4, 8),), [], {{}}
"""
)
LINES = {
    "pass": EXACT,
    "x.no_such_attribute": INVALID,
    "assert 'estimate_memory' not in {frame.function for frame in __import__('inspect').stack()}": CRASHED,
    "is_real or torch.set_num_threads(3)": CHANGED,
    "x = x * __import__('os').urandom(1)[0]": EXACT,
    "torch.zeros(100000 if is_real else 1)": OUTSIDE,
    "is_real or __import__('os').abort()": DIED,
}


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child(seconds=5, python=python())
    yield child
    child.close()


def test_a_child_that_was_killed_is_started_anew(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr(child, "seconds", 1)
        assert child.judge(TEXT.format("while not is_real: pass")).word == HUNG
    assert child.judge(TEXT.format("pass")).word == EXACT


@pytest.mark.parametrize("line", LINES)
def test_a_verdict(line: str, child: Child) -> None:
    verdict = child.judge(TEXT.format(line))
    assert verdict.word == LINES[line], str(verdict)


HEAD = "import torch\nfrom torch import Tensor, nn\ntorch.manual_seed(0)\noutside, options = [], {}\n"
AO = """
from torch.ao.quantization import (
    DeQuantStub, QuantStub, convert, float_qparams_weight_only_qconfig, get_default_qat_qconfig, get_default_qconfig,
    prepare, prepare_qat, quantize_dynamic,
)
"""
QUANTISED = f"""{HEAD}{AO}
options["mode"] = "eval"
torch.backends.quantized.engine = "ENGINE"
"""
LAYERS = f"""{QUANTISED}
model = quantize_dynamic(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), {{nn.Linear}})
inputs = torch.randn(4, 64),"""
FROZEN = f"""{HEAD}
layers = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten()
model = torch.jit.script(nn.Sequential(*layers, nn.Linear(1568, 10)).eval())
del layers
inputs, options["mode"] = (torch.randn(2, 3, 16, 16),), "eval"
"""
SCRIPTED = f"""{HEAD}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.scripted = nn.Linear(48, 16), torch.jit.script(nn.Linear(16, 16))
    def forward(self, x):
        made = self.first(x)
        self.scripted(ARGUMENT)
        return made
model, inputs, options["optimizer"] = Model(), (torch.randn(4, 16, 48),), "sgd"
"""
OWN = f"""{HEAD}
options["autocast"] = torch.bfloat16
@torch.library.custom_op("torchsummary_plus_programs::NAME", mutates_args=())
def own(x: Tensor, w: Tensor) -> Tensor:
    return torch.mm(x.softmax(-1), WEIGHT).float() * 1.5
own.register_autograd(
    lambda ctx, grad: (grad, None), setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.w = nn.Linear(64, 64), nn.Parameter(torch.randn(64, 64))
    def forward(self, x):
        y = self.layer(x)
        return CALL
model, inputs = Model(), (torch.randn(32, 64),)
"""
CAST = OWN.replace("WEIGHT", "w * 2")
PROGRAMS = {
    "observers grow to the channels": f"""{HEAD}{AO}
layers = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 196, 10)
model = nn.Sequential(QuantStub(), *layers, DeQuantStub()).train()
model.qconfig = get_default_qat_qconfig("x86")
prepare_qat(model, inplace=True)
inputs, options["optimizer"] = (torch.randn(8, 3, 16, 16),), "adam"
""",
    "quantised layers": LAYERS.replace("ENGINE", "x86"),
    "quantised layers, to which the first call adds": LAYERS.replace("ENGINE", "onednn"),
    "quantised recurrent layers, objects within objects": f"""{QUANTISED.replace("ENGINE", "onednn")}
model = quantize_dynamic(nn.Sequential(nn.GRU(32, 48, batch_first=True)), {{nn.GRU}})
inputs = torch.randn(4, 5, 32),""",
    "quantised tables": f"""{QUANTISED.replace("ENGINE", "x86")}
model = nn.Sequential(nn.EmbeddingBag(50, 64))
model.qconfig = float_qparams_weight_only_qconfig
model = convert(prepare(model))
inputs = torch.randint(0, 50, (4, 6)),""",
    "scales by channel": f"""{QUANTISED.replace("ENGINE", "onednn")}
model = nn.Sequential(QuantStub(), nn.Conv2d(3, 8, 3), nn.ReLU6(), DeQuantStub()).eval()
model.qconfig = get_default_qconfig("onednn")
prepare(model, inplace=True)
inputs = torch.randn(2, 3, 6, 6),
model(*inputs)
convert(model, inplace=True)""",
    "a frozen model, whose weights are constants": f"{FROZEN}model = torch.jit.freeze(model)",
    "a model optimised for inference": f"{FROZEN}model = torch.jit.optimize_for_inference(model)",
    "a scripted linear layer of a dense input": SCRIPTED.replace("ARGUMENT", "made"),
    "a scripted linear layer of columns": SCRIPTED.replace("ARGUMENT", "made[:, ::2]"),
    "an operator of one's own, cast inside": CAST.replace("NAME", "inside").replace("CALL", "own(y, self.w)"),
    "an operator of one's own, not cast": CAST.replace("NAME", "outside").replace(
        "CALL", "torch.autocast('cpu', enabled=False)(own)(y.float(), self.w)"
    ),
    "a number written to a slice under a transform": f"""{HEAD}
class Model(nn.Linear):
    def forward(self, x):
        made = super().forward(x)
        made[0].div_(2.0); made[1:].mul_(3.0)
        return made
model, inputs = Model(16, 16), (torch.randn(4, 16),)
def train_step(model, x):
    value, push = torch.func.vjp(lambda given: model(given).square().mean(), x)
    push(torch.ones_like(value))
    model(x).sum().backward()
    model.zero_grad()
options["train_step"] = train_step
""",
    "a number of a write to an unused view": f"""{HEAD}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 12), nn.Linear(12, 48)
    def forward(self, x):
        unused, used = self.first(x), self.first(x)
        unused[:, 1:].div_(2.0); used[0] += 1
        return self.last(used)
model, inputs = Model(), (torch.randn(16, 12),)
def train_step(model, x):
    value, push = torch.func.vjp(lambda given: model(given).square().mean(), x)
    (slope,) = push(torch.ones_like(value))
    model(x + slope.detach()).square().mean().backward()
    model.zero_grad()
options["train_step"] = train_step
""",
    "a small random mask under a transform": f"""{HEAD}
model, inputs = nn.Sequential(nn.Linear(8, 8), nn.Dropout1d(0.5), nn.AlphaDropout(0.1)), (torch.randn(4, 5, 8),)
held = {{name: parameter.detach() for name, parameter in model.named_parameters()}}
def train_step(model, x):
    loss = lambda given: torch.func.functional_call(model, given, (x,)).square().mean()
    torch.func.grad_and_value(loss)(held)
options["train_step"] = train_step
""",
    "a step that is given the model's wrapper": f"""{HEAD}
model = nn.DataParallel(nn.DataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))))
inputs, optimizer = (torch.randn(4, 8),), torch.optim.SGD(model.parameters(), lr=0.1)
shadow = {{key: value.clone() for key, value in model.state_dict().items()}}
def train_step(model, x):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        [shadow[key].copy_(shadow[key] * 0.9 + value * 0.1) for key, value in model.state_dict().items()]
outside, options = [optimizer, shadow], dict(train_step=train_step)
""",
}
"""Modules whose weights are in objects of C++ or in a graph's constants, and code that no mode sees."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_predicted_to_the_byte(name: str, child: Child) -> None:
    verdict = child.judge(PROGRAMS[name])
    assert verdict.word == EXACT, str(verdict)


def test_a_step_is_given_a_compiled_models_wrapper() -> None:
    seen = Told()

    def train_step(model: nn.Module, x: torch.Tensor) -> None:
        seen.put(tuple(model.state_dict()))
        model(x).sum().backward()

    estimate_memory(torch.compile(nn.Linear(8, 4)), (8,), 2, train_step=train_step)
    assert set(seen.all()) == {("_orig_mod.weight", "_orig_mod.bias")}


def test_frees_that_the_profiler_does_not_see(child: Child) -> None:
    model = "model = quantize_dynamic(nn.Sequential(nn.LSTM(32, 48, batch_first=True)), {nn.LSTM})"
    verdict = child.judge(f"{QUANTISED.replace('ENGINE', 'qnnpack')}{model}\ninputs = (torch.randn(4, 5, 32),)")
    assert verdict.word == INSIDE, str(verdict)
    assert "torch's profiler did not record" in verdict.note


def test_a_weight_that_stays_cast_after_such_an_operator_opens_the_range(child: Child) -> None:
    source = OWN.replace("WEIGHT", "w").replace("NAME", "kept").replace("CALL", "own(y, self.w)")
    verdict = child.judge(source)
    assert verdict.word in (EXACT, INSIDE), str(verdict)
    assert "torchsummary_plus_programs::kept x 2" in verdict.note
