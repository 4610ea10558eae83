"""Random programs: each estimate contains the measured peak and changes nothing."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from benchmarks.cpu.programs import Child, judged, summary
from benchmarks.programs.grammar import HEADER
from benchmarks.programs.judge import CHANGED, DIED, EXACT, FAULTS, INSIDE, OUTSIDE
from tests.told import Told
from tests.truth.warm import python
from torchsummary_plus import estimate_memory

COUNT = 25
"""``python -m benchmarks.cpu.programs`` runs thousands."""

SECONDS = 120.0
"""Time limit of a program; an estimate takes less than one, but a busy machine may run it twenty times slower."""

EXACT_SHARE = 0.97


def test_every_program_is_predicted() -> None:
    done = list(judged(seed=0, count=COUNT, seconds=SECONDS, python=python()))
    faults = [result for result in done if result.verdict.word in FAULTS]
    told = "\n".join([summary(done), *(f"{run.number}: {run.verdict}\n{run.program.source()}" for run in faults)])
    assert not faults, told
    assert sum(result.verdict.word == EXACT for result in done) >= EXACT_SHARE * COUNT - 1, told
    assert len(done) <= 1.3 * COUNT, "too many of the grammar's programs do not run"


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
    "is_real or torch.set_num_threads(3)": CHANGED,
    "torch.zeros(100000 if is_real else 1)": OUTSIDE,
    "is_real or __import__('os').abort()": DIED,
}


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child(seconds=5, python=python())
    yield child
    child.close()


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
    "quantised recurrent layers, objects within objects": f"""{QUANTISED.replace("ENGINE", "onednn")}
model = quantize_dynamic(nn.Sequential(nn.GRU(32, 48, batch_first=True)), {{nn.GRU}})
inputs = torch.randn(4, 5, 32),""",
    "a frozen model, whose weights are constants": f"{FROZEN}model = torch.jit.freeze(model)",
    "an operator of one's own, cast inside": CAST.replace("NAME", "inside").replace("CALL", "own(y, self.w)"),
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


def test_what_a_first_call_adds_to_packed_weights_is_in_the_range(child: Child) -> None:
    verdict = child.judge(LAYERS.replace("ENGINE", "onednn"))
    assert verdict.word == INSIDE and "quantized::linear_dynamic" in str(verdict)


def test_frees_that_the_profiler_does_not_see(child: Child) -> None:
    model = "model = quantize_dynamic(nn.Sequential(nn.LSTM(32, 48, batch_first=True)), {nn.LSTM})"
    verdict = child.judge(f"{QUANTISED.replace('ENGINE', 'qnnpack')}{model}\ninputs = (torch.randn(4, 5, 32),)")
    assert verdict.word == INSIDE, str(verdict)
    assert "torch's profiler did not record" in verdict.note
