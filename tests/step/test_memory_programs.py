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


QUANTISED = """
import torch
from torch import nn
from torch.ao.quantization import DeQuantStub, QuantStub, get_default_qat_qconfig, prepare_qat
torch.manual_seed(0)
layers = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 196, 10)
model = nn.Sequential(QuantStub(), *layers, DeQuantStub()).train()
model.qconfig = get_default_qat_qconfig("x86")
prepare_qat(model, inplace=True)
inputs, outside, options = (torch.randn(8, 3, 16, 16),), [], {"optimizer": "adam"}
"""


PACKED = """
import torch
from torch import nn
from torch.ao.quantization import (
    DeQuantStub, QuantStub, convert, float_qparams_weight_only_qconfig, get_default_qconfig, prepare, quantize_dynamic,
)
torch.manual_seed(0)
outside, options = [], {{"mode": "eval"}}
torch.backends.quantized.engine = "x86"
{}
"""
KINDS = {
    "observers": QUANTISED,
    "layers": PACKED.format("""
model = quantize_dynamic(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), {nn.Linear})
inputs = torch.randn(4, 64),"""),
    "recurrent layers": PACKED.format("""
model = quantize_dynamic(nn.Sequential(nn.LSTM(32, 48, batch_first=True)), {nn.LSTM})
inputs = torch.randn(4, 5, 32),"""),
    "tables": PACKED.format("""
model = nn.Sequential(nn.EmbeddingBag(50, 64))
model.qconfig = float_qparams_weight_only_qconfig
model = convert(prepare(model))
inputs = torch.randint(0, 50, (4, 6)),"""),
    "scales by channel": PACKED.format("""
torch.backends.quantized.engine = "onednn"
model = nn.Sequential(QuantStub(), nn.Conv2d(3, 8, 3), nn.ReLU6(), DeQuantStub()).eval()
model.qconfig = get_default_qconfig("onednn")
prepare(model, inplace=True)
inputs = torch.randn(2, 3, 6, 6),
model(*inputs)
convert(model, inplace=True)"""),
    "what the first call adds": PACKED.format("""
torch.backends.quantized.engine = "onednn"
model = quantize_dynamic(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), {nn.Linear})
inputs = torch.randn(4, 64),"""),
    "objects within objects": PACKED.format("""
torch.backends.quantized.engine = "onednn"
model = quantize_dynamic(nn.Sequential(nn.GRU(32, 48, batch_first=True)), {nn.GRU})
inputs = torch.randn(4, 5, 32),"""),
}
"""Quantized modules keep biases, and some also weights, in objects of C++; observers grow to the channels."""


@pytest.mark.parametrize("kind", KINDS)
def test_torchs_own_quantization(kind: str, child: Child) -> None:
    verdict = child.judge(KINDS[kind])
    assert verdict.word == EXACT, str(verdict)


FROZEN = """
import torch
from torch import nn
torch.manual_seed(0)
layers = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten()
model = torch.jit.script(nn.Sequential(*layers, nn.Linear(1568, 10)).eval())
del layers
model = {}
inputs, outside, options = (torch.randn(2, 3, 16, 16),), [], {{"mode": "eval"}}
"""
"""All weights of a frozen model are constants of its graph."""


@pytest.mark.parametrize("how", ["torch.jit.freeze(model)", "torch.jit.optimize_for_inference(model)"])
def test_a_frozen_model(how: str, child: Child) -> None:
    verdict = child.judge(FROZEN.format(how))
    assert verdict.word == EXACT, str(verdict)


UNSEEN = PACKED.format("""
torch.backends.quantized.engine = "qnnpack"
model = quantize_dynamic(nn.Sequential(nn.LSTM(32, 48, batch_first=True)), {nn.LSTM})
inputs = torch.randn(4, 5, 32),""")


SCRIPTED = """
import torch
from torch import nn
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(48, 16)
        self.scripted = torch.jit.script({0})
    def forward(self, x):
        made = self.first(x)
        self.scripted({1})
        return made
model = Model()
inputs, outside, options = (torch.randn(4, 16, 48),), [], {{"optimizer": "sgd"}}
"""
"""Without a mode, ``linear`` adds its bias in place unless its input is 2-d or dense; TorchScript calls it in C++."""


@pytest.mark.parametrize("argument", ["made.transpose(1, 2)", "made[:, ::2]", "made", "made.view(4, 4, 4, 16)"])
def test_a_scripted_linear_layer(argument: str, child: Child) -> None:
    verdict = child.judge(SCRIPTED.format("nn.Linear(16, 16)", argument))
    assert verdict.word == EXACT, str(verdict)


AVERAGED = """
import torch
from torch import nn
torch.manual_seed(0)
model = {0}(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
inputs = (torch.randn(4, 8),)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
shadow = {{key: value.clone() for key, value in model.state_dict().items()}}
def train_step(model, x):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            shadow[key].copy_(shadow[key] * 0.9 + value * 0.1)
        [parameter.sum() for parameter in model{1}.parameters()]
outside, options = [optimizer, shadow], dict(train_step=train_step)
"""


@pytest.mark.parametrize(
    ("wrapper", "inside"),
    [("nn.DataParallel", ".module"), ("", ""), ("(lambda model: nn.DataParallel(nn.DataParallel(model)))", ".module")],
)
def test_a_step_is_given_the_models_wrapper(wrapper: str, inside: str, child: Child) -> None:
    verdict = child.judge(AVERAGED.format(wrapper, inside))
    assert verdict.word == EXACT, str(verdict)


def test_a_step_is_given_a_compiled_models_wrapper() -> None:
    seen = Told()

    def train_step(model: nn.Module, x: torch.Tensor) -> None:
        seen.put(tuple(model.state_dict()))
        model(x).sum().backward()

    estimate_memory(torch.compile(nn.Linear(8, 4)), (8,), 2, train_step=train_step)
    assert set(seen.all()) == {("_orig_mod.weight", "_orig_mod.bias")}


PULLED_BACK = """
import torch
from torch import nn
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
    def forward(self, x):
        made = self.layer(x)
        {0}
        return made
model, inputs, outside = Model(), (torch.randn(4, 16),), []
def train_step(model, x):
    value, push = torch.func.vjp(lambda given: model(given).square().mean(), x)
    push(torch.ones_like(value))
    model(x).sum().backward()
    model.zero_grad()
options = dict(train_step=train_step)
"""


@pytest.mark.parametrize("write", ["made[0].div_(2.0)", "made[0].mul_(2.0)", "made[0].div_(2.0); made[1:].mul_(3.0)"])
def test_a_number_written_to_a_slice_under_a_transform_is_kept_once(write: str, child: Child) -> None:
    verdict = child.judge(PULLED_BACK.format(write))
    assert verdict.word == EXACT, str(verdict)


DROPPED = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), {0})
inputs, outside = (torch.randn(4, 5, 8),), []
held = {{name: parameter.detach() for name, parameter in model.named_parameters()}}
def train_step(model, x):
    def loss(given):
        return torch.func.functional_call(model, given, (x,)).square().mean()
    torch.func.grad_and_value(loss)(held)
options = dict(train_step=train_step)
"""


@pytest.mark.parametrize("module", ["nn.Dropout(0.1)", "nn.Dropout1d(0.5), nn.Linear(8, 8)", "nn.AlphaDropout(0.1)"])
def test_a_small_random_mask_under_a_transform(module: str, child: Child) -> None:
    verdict = child.judge(DROPPED.format(module))
    assert verdict.word == EXACT, str(verdict)


def test_frees_that_the_profiler_does_not_see(child: Child) -> None:
    verdict = child.judge(UNSEEN)
    assert verdict.word == INSIDE, str(verdict)
    assert "torch's profiler did not record" in verdict.note


OWN = """
import torch
from torch import Tensor, nn
torch.manual_seed(0)
outside, options = [], {"autocast": torch.bfloat16}

@torch.library.custom_op("torchsummary_plus_programs::own", mutates_args=())
def own(x: Tensor, w: Tensor) -> Tensor:
    BODY

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
PRODUCT, ALIKE = (
    "return torch.mm(x.softmax(-1), w * 2).float() * 1.5",
    "return x * 2 if {} else torch.cat([x, w] * 9)[:16]",
)
OPERATORS = {
    "cast inside": (PRODUCT, "own(y, self.w)"),
    "not cast": (PRODUCT, "torch.autocast('cpu', enabled=False)(own)(y.float(), self.w)"),
    "one tensor": (ALIKE.format("x.data_ptr() == w.data_ptr()"), "own(y[:16], y.view(2, 16, 64)[0])"),
    "one storage": (
        ALIKE.format("x.untyped_storage().data_ptr() == w.untyped_storage().data_ptr()"),
        "own(y[:16], y[16:])",
    ),
}
"""Kernels of users' own operators, and the calls."""


@pytest.mark.parametrize("case", OPERATORS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_an_operator_of_ones_own_runs_under_the_steps_autocast(case: str, mode: str, child: Child) -> None:
    body, call = OPERATORS[case]
    source = OWN.replace("BODY", body).replace("CALL", call).replace("bfloat16}", f"bfloat16, 'mode': {mode!r}}}")
    source = source.replace("::own", f"::own_{list(OPERATORS).index(case)}_{mode}")
    verdict = child.judge(source)
    assert verdict.word == EXACT, str(verdict)


def test_a_weight_that_stays_cast_after_such_an_operator_opens_the_range(child: Child) -> None:
    verdict = child.judge(OWN.replace("BODY", PRODUCT.replace("w * 2", "w")).replace("CALL", "own(y, self.w)"))
    assert verdict.word in (EXACT, INSIDE), str(verdict)
    assert "torchsummary_plus_programs::own x 2" in verdict.note
