"""Steps as torch.compile runs them, predicted without compiling a kernel."""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.compiled import CASES
from benchmarks.cpu.truth import DATA, isa, load, loss_of
from tests.parts import of_parts
from tests.truth.releases import from_release
from tests.truth.warm import python
from torchsummary_plus import (
    InputError,
    UnsupportedError,
    estimate_memory,
    max_batch_size,
    measure_memory,
    summary,
    what_if,
)
from torchsummary_plus.api import step_request
from torchsummary_plus.api.step_request import StepOptions, StepRequest
from torchsummary_plus.compiled.estimate import SECONDS_BETWEEN_TICKS, Key, in_subprocess, key_of
from torchsummary_plus.data.memory_records import (
    AS_COMPILED,
    NO_GRAPH,
    NOT_COMPILED,
    MemoryLog,
    without,
)
from torchsummary_plus.step import fake_steps
from torchsummary_plus.step.fake_steps import record_once
from torchsummary_plus.table.inputs import make_example

ROOT = Path(__file__).parents[2]
needs_release = from_release("2.13", "the first whose compiler is known")
needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")


def compiles(test: Any) -> Any:
    """Mark a test that predicts a compiled step."""
    return needs_release(needs_fork(test))


def compiles_for_gpu(test: Any) -> Any:
    """Mark a test that predicts a compiled step on a GPU that is not there."""
    return compiles(pytest.mark.skipif(torch.backends.cuda.is_built(), reason="a CUDA build may have a GPU")(test))


def state(model: nn.Module) -> list[Any]:
    return [
        [(name, id(value), value._version) for name, value in model.state_dict(keep_vars=True).items()],
        [(id(module), dict(vars(module))) for module in model.modules()],
    ]


@compiles
@pytest.mark.parametrize("name", ["mlp/bfloat16", "gpt_checkpointed/float32"])
def test_the_peak_is_that_of_the_real_compiled_step(name: str, tmp_path: Path) -> None:
    """To the byte, also for dropout under checkpoints; no compiler is called; neither model nor process changes."""
    for compiler in ("g++", "gcc", "clang++", "ptxas"):
        (tmp_path / compiler).write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexit 1\n")
        (tmp_path / compiler).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = [*python(), "-c", f"from {__name__} import check; check({name!r})"]
    ran = subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "called").exists()


def check(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    model, inputs = case.built()
    torch.set_num_threads(1)  # As recorded.
    autocast = next(case.cases())[1].subject.autocast
    given: Any = {"input_data": inputs[0], "optimizer": "sgd", "autocast": autocast, "loss": loss_of}
    estimate_memory(model, **given)  # What an estimate imports is not the compilation's doing.
    before, environment, imported = state(model), dict(os.environ), set(sys.modules)
    result = estimate_memory(model, **given, compiled=True)
    assert AS_COMPILED in result.assumptions
    assert result.peak_range == (result.peak_bytes, result.peak_bytes)
    assert state(model) == before
    assert dict(os.environ) == environment
    assert not [name for name in sys.modules.keys() - imported if name.startswith("torch.")]
    recorded = load(DATA / f"cpu_compiled_{isa().lower()}.json")
    if recorded:  # Of this processor and torch.
        assert result.peak_bytes == recorded[f"{name}/sgd"]["measured"]


class Block(nn.Module):
    """Attention and a feed-forward. It has no norms, of which compiled code saves other tensors than eager code."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.feed = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        x = x + self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.feed(x)  # type: ignore[no-any-return]


@compiles
@pytest.mark.parametrize("by_layer", [False, True])
def test_saved_activations_belong_to_the_modules_that_compute_them(by_layer: bool) -> None:
    """As in the eager step, which saves the same tensors; two blocks compiled one by one share their code."""
    model, shape = (Block().feed, (16,)) if not by_layer else (nn.Sequential(Block(), Block()), (6, 16))
    eager = estimate_memory(model, shape, 4, optimizer="sgd")
    for layer in model if by_layer else ():
        layer.compile()
    compiled = estimate_memory(model, shape, 4, optimizer="sgd", compiled=True)
    assert AS_COMPILED in compiled.assumptions
    saved = {module.path: module.own.saved_bytes for module in compiled.by_module}
    assert saved == {module.path: module.own.saved_bytes for module in eager.by_module}
    assert saved["1.feed.0" if by_layer else "0"] > 0
    assert sum(module.own_bytes for module in compiled.by_module) == compiled.peak_bytes


@compiles_for_gpu
@pytest.mark.parametrize(
    ("name", "is_padded"),
    [("custom_function", True), ("mobilenet", True), ("gpt_checkpointed", False), ("gpt2", False)],
)
def test_the_peak_on_a_gpu_is_that_of_the_no_op_runtime(name: str, is_padded: bool) -> None:
    """To the byte, without a GPU and without Triton.

    Of a custom function, of convolutions that inductor turns, of dropout that a checkpoint draws again with a generator
    of the GPU, and of transformers' cache, which begins with empty tensors that are moved there.
    """
    name += "/float32"
    case = next(case for case in CASES if case.name == name)
    model, inputs = case.built()
    result = estimate_memory(model, input_data=inputs[0], optimizer="sgd", loss=loss_of, gpu="A100 80GB", compiled=True)
    assert AS_COMPILED in result.assumptions
    recorded = json.loads((DATA / "gpu_compiled_noop_a100_torch_2.13.0.json").read_text())["cases"][f"{name}/sgd"]
    assert result.peak_bytes == recorded["measured"]
    pads = any("torch.compile may pad them" in line for line in result.assumptions)
    assert pads == is_padded  # Of the 10 outputs.
    least, most = result.reserved_range
    assert least <= recorded["reserved"] <= most


@compiles_for_gpu
def test_attention_of_any_batch_on_a_gpu() -> None:
    """With symbolic shapes; the no-op runtime measured the peak."""
    options: dict[str, Any] = {"optimizer": "sgd", "loss": lambda output: output.square().mean()}
    model = torch.compile(Block(), dynamic=True)
    result = estimate_memory(model, (12, 16), 4, gpu="A100 80GB", compiled=True, **options)
    assert AS_COMPILED in result.assumptions
    assert result.peak_bytes == 17_226_240


SCALE = torch.ones(16)


def by_a_global(model: nn.Module, x: Tensor) -> None:
    y = model(x) * SCALE
    torch._dynamo.graph_break()
    (model(y) * SCALE).sum().backward()


def by_an_attribute(model: Any, x: Tensor) -> None:
    y = model(x) * model.scale
    torch._dynamo.graph_break()
    (model(y) * model.scale).sum().backward()


@compiles
def test_a_function_goes_on_after_a_break_with_its_own_globals() -> None:
    """Every copy of a step has globals of its own; Dynamo defines the function that goes on for the first one."""
    peaks = []
    for step in (by_a_global, by_an_attribute):
        model = nn.Linear(16, 16)
        model.scale = SCALE
        result = estimate_memory(model, (16,), 64, train_step=torch.compile(step), compiled=True)
        assert AS_COMPILED in result.assumptions
        peaks.append(result.peak_bytes)
    assert peaks[0] == peaks[1]


@compiles
def test_a_compiled_loss_beside_a_model_that_is_not_compiled() -> None:
    def loss(output: Tensor) -> Tensor:
        return (output.square() * output).mean()

    eager = estimate_memory(nn.Linear(16, 16), (16,), 64, optimizer="sgd", loss=loss)
    result = estimate_memory(nn.Linear(16, 16), (16,), 64, optimizer="sgd", loss=torch.compile(loss), compiled=True)
    assert AS_COMPILED in result.assumptions
    assert result.peak_bytes < eager.peak_bytes  # It keeps no square.


@compiles_for_gpu
def test_a_process_that_has_compiled_before_predicts_for_a_gpu() -> None:
    """Inductor has its patterns then, and refuses them a second time."""
    code = (
        "import torch; from torch import nn; from torchsummary_plus import estimate_memory\n"
        "from torch._inductor.fx_passes import joint_graph, post_grad\n"
        "joint_graph.lazy_init(torch.device('cpu')); post_grad.lazy_init()\n"  # As the first real compilation does.
        "step = estimate_memory(nn.Linear(8, 8), (8,), 4, gpu='T4', optimizer='sgd', compiled=True)\n"
        f"assert {AS_COMPILED!r} in step.assumptions, step.assumptions"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@compiles
@pytest.mark.parametrize(
    ("model", "is_eager"), [(nn.LSTM(8, 8), True), (nn.Linear(8, 8), False)], ids=["LSTM", "Linear"]
)
def test_a_step_without_a_graph_says_so(model: nn.Module, is_eager: bool) -> None:
    """Dynamo leaves recurrent layers alone, so that the eager step is the truth."""
    compiled = estimate_memory(model, (5, 8), 4, compiled=True)
    assert (NO_GRAPH in compiled.assumptions) == is_eager
    assert not is_eager or compiled.peak_bytes == estimate_memory(model, (5, 8), 4).peak_bytes


@needs_release
def test_recurrent_layers_on_cuda_are_refused_by_name() -> None:
    """Their kernel is chosen in a step of eager code only; the truth is the eager peak, which the range contains."""
    result = estimate_memory(nn.LSTM(8, 8), (5, 8), 4, gpu="A100 80GB", compiled=True)
    assert f"{NOT_COMPILED}recurrent layers on CUDA, which torch.compile does not compile" in result.assumptions
    assert result.peak_bytes == estimate_memory(nn.LSTM(8, 8), (5, 8), 4, gpu="A100 80GB").peak_bytes


@compiles_for_gpu
def test_without_bfloat16_torch_compiles_nothing() -> None:
    model, half = nn.Linear(8, 8), torch.bfloat16
    result = estimate_memory(model, (8,), 4, gpu="T4", autocast=half, optimizer="sgd", compiled=True)
    why = "torch compiles no code with bfloat16 for this GPU, and runs it as it is"
    assert f"{NOT_COMPILED}{why}" in result.assumptions


@compiles
def test_code_that_reads_values_is_refused_by_name() -> None:
    class Choosing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum() > 0 else x

    result = estimate_memory(Choosing(8, 8), (8,), 4, optimizer="sgd", compiled=True)
    assert f"{NOT_COMPILED}its code reads tensors' values" in result.assumptions


def test_other_releases_of_torch_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1")
    with pytest.raises(
        UnsupportedError, match=r"compiled is True and torch 2\.12\.1; accepted with torch 2\.13 to 2\.15"
    ):
        estimate_memory(nn.Linear(8, 8), (8,), 4, compiled=True)


def without_temporaries(step: Any, log: MemoryLog, *_: Any) -> MemoryLog:
    """As if the compiler fused all of a step away that has no kind."""
    unnamed = {number for number, spec in enumerate(log.storages) if spec.kind is None}
    return replace(without(log, unnamed), assumptions=(*log.assumptions, AS_COMPILED))


@needs_release
def test_limits_are_those_of_the_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searched from the uncompiled step's limit on; ``what_if`` takes it as a setting."""
    monkeypatch.setattr(step_request, "as_compiled", without_temporaries)
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    eager = max_batch_size(net, (512,), "32MiB", device="cpu", optimizer="sgd")
    limit = max_batch_size(net, (512,), "32MiB", device="cpu", optimizer="sgd", compiled=True)
    assert limit.batch_size > eager.batch_size >= min(limit.traced) - 1
    assert AS_COMPILED in limit.assumptions
    fitting, beyond = (
        estimate_memory(net, (512,), batch, optimizer="sgd", compiled=True)
        for batch in (limit.batch_size, limit.batch_size + 1)
    )
    assert fitting.fits("32MiB") and not beyond.fits("32MiB")
    settings: dict[str, Any] = {"eager": {}, "compiled": {"compiled": True}}
    result = what_if(net, (512,), 64, ["T4"], settings=settings, optimizer="sgd")
    largest = {setting.name: setting.limits[0].largest_batch for setting in result.settings}
    assert largest["compiled"] > largest["eager"]
    result = summary(net, (512,), 64, memory={"optimizer": "sgd", "compiled": True}, verbose=0)
    assert result.memory is not None and AS_COMPILED in result.memory.assumptions


@needs_release
@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda net, **given: estimate_memory(lambda: net, (8,), world_size=2, **given), "with world_size"),
        (lambda net, **given: measure_memory(net, (8,), **given), "in measure_memory, which runs the source"),
        (lambda net, **given: estimate_memory(net, mode="generate", prompt=4, **given), "for a generation"),
    ],
)
def test_what_is_not_predicted_compiled_is_refused_by_name(call: Any, where: str) -> None:
    with pytest.raises(InputError, match=f"compiled is True; accepted {where}: False"):
        call(nn.Linear(8, 8), compiled=True)


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scaled_dot_product_attention(x, x, x)


def test_an_answer_is_kept_until_something_that_it_depends_on_changes() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Unflatten(1, (1, 8, 1)), Attention())

    def key(batch: int = 4, **options: Any) -> Key | None:
        example = make_example((8,), batch, None, None)
        assert example is not None
        task = StepRequest(model, example, StepOptions(**options)).task
        return key_of(task, record_once(task))

    def loss(output: Tensor) -> Tensor:
        return output.square().mean() * scale

    scale = 1
    keys = [key(), key(5), key(loss=loss), key(optimizer="sgd"), key(gpu="T4"), key(gpu="H100")]
    with sdpa_kernel(SDPBackend.MATH):
        keys.append(key())
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key(loss=loss) == keys[2]
    scale = 2
    assert key(loss=loss) != keys[2]
    assert key() == keys[0]
    model[1].p = 0.2
    assert key() != keys[0]
    model[1].lock = threading.Lock()  # It may be anything's state.
    assert key() is None


class Config:
    """A plain object of a user's class."""


@of_parts(lambda: {"linear": nn.Linear(8, 8), "config": Config()})
def Configured(self, x: Tensor) -> Tensor:
    """Dynamo guards the identity of a config, as it does that of T5's."""
    return self.linear(x) * (2.0 if id(self.config) else 1.0)


@needs_release
@needs_fork
def test_code_stays_valid_when_the_copy_that_it_was_compiled_on_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def after_collection(task: Any) -> MemoryLog:
        gc.collect()
        return record_once(task)

    monkeypatch.setattr(fake_steps, "record_once", after_collection)
    assert AS_COMPILED in estimate_memory(Configured(), (8,), 4, compiled=True).assumptions


@compiles_for_gpu
def test_the_range_holds_the_peak_of_matrix_products_that_a_gpu_pads() -> None:
    """Whether padding is faster is timed on the GPU; a user's option pads all, here 4 % of the peak."""
    net = nn.Sequential(nn.Linear(509, 1528), nn.GELU(), nn.Linear(1528, 5003))
    models = [torch.compile(net, options={"force_shape_pad": pads}) for pads in (False, True)]
    step: Any = {"optimizer": "adamw", "loss": "cross_entropy", "gpu": "A100 40GB", "compiled": True}
    unpadded, padded = (estimate_memory(model, (509,), 3904, **step) for model in models)
    least, most = unpadded.peak_range
    assert least <= padded.peak_bytes <= most and padded.peak_bytes > 1.01 * unpadded.peak_bytes
    assert padded.peak_range == (padded.peak_bytes, padded.peak_bytes)
    assert "pad matrix products" in unpadded.to_text() and "pad matrix products" not in padded.to_text()
    assert "simulated GPUs" in padded.to_text()
    step = {"train_step": lambda model, x: [model(part).sum().backward() for part in (x, x[:61])], "compiled": True}
    assert AS_COMPILED in estimate_memory(torch.compile(net, dynamic=True), (509,), 391, gpu="T4", **step).assumptions
    least, most = padded.reserved_range
    assert least < 0.9 * padded.reserved_bytes and most > padded.reserved_bytes + 100 * 2**20


# Work in a fork: what comes back, and what if nothing does.


@needs_fork
def test_a_fork_has_everything_and_changes_nothing_here() -> None:
    """A tensor that it writes to, an environment variable, and what cannot be pickled."""
    weight, lock, told = torch.zeros(4), threading.Lock(), []

    def work() -> Any:
        with lock:
            weight.fill_(1)
            os.environ["OF_THE_FORK"] = "1"
            time.sleep(1.5 * SECONDS_BETWEEN_TICKS)
            return (
                float(weight.sum()),
                torch.get_num_threads(),
                float((torch.ones(512, 512) @ torch.ones(512, 512))[0, 0]),
            )

    here = float((torch.ones(512, 512) @ torch.ones(512, 512))[0, 0])  # OpenMP's threads exist from now on.
    assert in_subprocess(work, 60, lambda: told.append("waiting")) == (4.0, torch.get_num_threads(), here)
    assert told
    assert weight.sum() == 0
    assert "OF_THE_FORK" not in os.environ


def failing() -> None:
    raise ValueError("no such model\nwith details")


def refused() -> None:
    raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing. See ...")


@needs_fork
@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (refused, "a fork of a process that has run one on a GPU; ask in a new process"),
        (failing, "ValueError: no such model"),
        (lambda: time.sleep(60), "longer than 1 second"),
        (lambda: os._exit(7), "ended with exit code 7"),
        (lambda: threading.Lock(), "cannot pickle"),
    ],
)
def test_a_reason_comes_back_if_nothing_else_does(work: Any, reason: str) -> None:
    began = time.monotonic()
    with pytest.raises(UnsupportedError, match=reason) as raised:
        in_subprocess(work, 1 if "longer" in reason else 60, lambda: None)
    assert "\n" not in str(raised.value)
    assert time.monotonic() - began < 30
