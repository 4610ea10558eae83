"""Compare predicted with measured memory of compiled steps on the CPU: ``python -m benchmarks.cpu.compiled``.

Every model is compiled by ``torch.compile`` with its real kernels, which needs g++, and runs two steps under torch's
profiler after a first one that compiles. ``--predict`` keeps the measurements and predicts again; it needs no compiler.
Each case runs in a process of its own, so the times are those of a first compilation.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cpu.events import measured_levels
from benchmarks.cpu.models import CALLS, GPT2, GROUPED, SUBJECTS, T5, WHISPER, WIDE, Lossy, Subject, floats, words
from benchmarks.cpu.nets import Through
from benchmarks.cpu.truth import DATA, MODES, SEED, STEPS, Case, as_text, isa, load, loss_of, machine, steps_of
from examples.resnet import resnet18
from tests.truth.memory_truth import cpu_changes, storage_bytes
from torchsummary_plus import estimate_memory

BATCH = 8
NAMES = (
    *("mlp", "mlp_norm", "recommender", "vgg", "unet", "diffusion_unet", "vit", "gpt", "gpt_plain", "gpt_checkpointed"),
    *("llama", "encoder", "lstm", "experts"),
)
OPTIMIZERS = {"sgd": "sgd", "adamw": "adamw_foreach"}
"""By their names here, the ways of training of ``benchmarks.cpu.truth``."""
DTYPES = {"float32": None, "bfloat16": torch.bfloat16}


class Square(torch.autograd.Function):
    """The square, as a function with its own backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * gradient * x


class Breaking(nn.Module):
    """An MLP whose forward breaks the graph three times."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(256, 256) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.a(x)) * x
        torch._dynamo.graph_break()
        x = F.silu(self.b(x)) * x
        torch._dynamo.graph_break()
        x = F.gelu(self.c(x))
        torch._dynamo.graph_break()
        return self.d(x)  # type: ignore[no-any-return]


class Custom(nn.Module):
    """An MLP with a custom function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Square.apply(F.gelu(self.first(x))))  # type: ignore[no-any-return]


def mobile_net() -> nn.Module:
    """Return a small MobileNet: depthwise and pointwise convolutions, one of which has more than 64 channels."""

    def block(entering: int, leaving: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Module, ...]:
        convolution = nn.Conv2d(entering, leaving, kernel, stride, kernel // 2, groups=groups, bias=False)
        return convolution, nn.BatchNorm2d(leaving), nn.ReLU6()

    features = (*block(3, 32, 3, 2), *block(32, 32, 3, groups=32), *block(32, 128, 1), *block(128, 128, 3, 2, 128))
    return nn.Sequential(*features, *block(128, 128, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def conv_next() -> nn.Module:
    """Return a small ConvNeXt of transformers."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[32, 64], depths=[1, 2], num_stages=2)
    return Through(lambda model, x: model(x).logits, ConvNextForImageClassification(config))


def hugging(config: str, task: str, call: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    """Return a tiny transformers model, which needs no torchvision."""

    def build() -> nn.Module:
        import transformers

        configured = getattr(transformers, f"{config}Config")(**settings)
        return Lossy(getattr(transformers, config + task)(configured), CALLS[call])

    return build


IDS = words(32)
SUBJECTS_OF_TRANSFORMERS = (
    Subject("gpt2", "transformer", hugging("GPT2", "LMHeadModel", "text", GPT2), IDS),
    Subject("llama_transformers", "transformer", hugging("Llama", "ForCausalLM", "text", GROUPED), IDS),
    Subject("mixtral", "transformer", hugging("Mixtral", "ForCausalLM", "text", GROUPED), IDS),
    Subject("bert", "transformer", hugging("Bert", "ForMaskedLM", "text", WIDE), IDS),
    Subject("t5", "transformer", hugging("T5", "ForConditionalGeneration", "text", T5), IDS),
    Subject("whisper", "transformer", hugging("Whisper", "ForConditionalGeneration", "sound", WHISPER), floats(16, 48)),
    Subject("convnext", "cnn", conv_next, floats(3, 64, 64)),
)
KNOWN = {subject.name: subject for subject in SUBJECTS}
MODELS = (
    *(KNOWN[name] for name in NAMES),
    Subject("resnet18", "cnn", resnet18, floats(3, 64, 64)),
    Subject("mobilenet", "cnn", mobile_net, floats(3, 64, 64)),
    *SUBJECTS_OF_TRANSFORMERS,
    Subject("three_breaks", "breaks", Breaking, floats(256)),
    Subject("custom_function", "mlp", Custom, floats(256)),
)


@dataclass(frozen=True)
class CompiledCase:
    """A model and its autocast; both optimizers train it."""

    subject: Subject
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.subject.name}/{self.dtype}"

    def cases(self) -> Iterator[tuple[str, Case]]:
        """Yield the name of each optimizer's case, and the case."""
        subject = replace(self.subject, autocast=DTYPES[self.dtype])
        for name, mode in OPTIMIZERS.items():
            yield f"{self.name}/{name}", Case(subject, mode, BATCH)

    def built(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        torch.manual_seed(SEED)
        return self.subject.build().train(), self.subject.example(BATCH)


CASES = [CompiledCase(subject, dtype) for subject in MODELS for dtype in DTYPES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression to search for in the names of cases")
    parser.add_argument("--predict", action="store_true", help="keep the measurements and predict again")
    parser.add_argument("--missing", action="store_true", help="run only what the data file lacks")
    parser.add_argument("--data", type=Path, default=DATA / f"cpu_compiled_{isa().lower()}.json", help="the data file")
    parser.add_argument("--run", nargs=2, metavar=("STEP", "CASE"), help="run one step here and print its result")
    options = parser.parse_args()
    if options.run:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        step, name = options.run
        print(json.dumps(RUNS[step](next(case for case in CASES if case.name == name))))
        return
    data = {"machine": machine(), "cases": load(options.data)}
    for case in CASES:
        if re.search(options.only, case.name):
            for step in ("predict",) if options.predict else ("measure", "predict"):
                update(data["cases"], case, step, options.missing, "-m", "benchmarks.cpu.compiled")
            options.data.write_text(as_text(data))
    print(report(data["cases"]))


def update(cases: dict[str, Any], case: CompiledCase, step: str, only_missing: bool, *module: str) -> None:
    """Run a step of a case in a process of its own, by a Python module, and put what it finds among the cases."""
    names = [name for name, _ in case.cases()]
    if only_missing and all(f"{step}_seconds" in cases.get(name, {}) for name in names):
        return
    command = [sys.executable, *module, "--run", step, case.name]
    with tempfile.TemporaryDirectory() as folder:
        own = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    failed = {name: {f"{step}_error": done.stderr.strip().splitlines()[-1:]} for name in names}
    found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else failed
    for name, values in found.items():
        kept = {key: value for key, value in cases.get(name, {}).items() if key != f"{step}_error"}
        cases[name] = {**kept, **values}
        print(name, values, file=sys.stderr, flush=True)


def measured(case: CompiledCase) -> dict[str, dict[str, Any]]:
    """Return the measured peak of both optimizers' steps, and how long the first step took, which compiles."""
    model, inputs = case.built()
    compiled, found = torch.compile(model), {}
    began = time.perf_counter()
    steps_of(next(case.cases())[1], compiled, inputs)
    seconds = time.perf_counter() - began
    for name, one in case.cases():
        model.zero_grad()
        static = storage_bytes([*model.parameters(), *model.buffers(), *inputs])
        levels = measured_levels(cpu_changes(lambda one=one: steps_of(one, compiled, inputs)), STEPS)
        found[name] = {
            "measured": static + max(level.nbytes for level in levels),
            "measure_seconds": round(seconds, 1),
        }
    return found


def predicted(case: CompiledCase) -> dict[str, dict[str, Any]]:
    """Return the predicted peaks, compiled and not, and how long the compiled ones took."""
    found: dict[str, dict[str, Any]] = {}
    model, inputs = case.built()
    for name, one in case.cases():
        given: dict[str, Any] = {
            "input_data": inputs[0] if len(inputs) == 1 else inputs,
            "optimizer": MODES[one.mode],
            "autocast": one.subject.autocast,
            "loss": loss_of,
        }
        eager = estimate_memory(model, **given)
        began = time.perf_counter()
        estimate = estimate_memory(model, **given, compiled=True)
        found[name] = {
            "predicted": estimate.peak_bytes,
            "range": list(estimate.peak_range),
            "eager": eager.peak_bytes,
            "predict_seconds": round(time.perf_counter() - began, 1),
            "notes": list(estimate.assumptions),
        }
    return found


RUNS: dict[str, Callable[[CompiledCase], dict[str, dict[str, Any]]]] = {"measure": measured, "predict": predicted}


def report(cases: dict[str, Any]) -> str:
    """Return the errors of the cases that have both figures, and how many are exact."""
    both = {name: case for name, case in cases.items() if "predicted" in case and "measured" in case}
    lines = [
        f"{name:32} measured {case['measured']:>12,}  compiled {case['predicted'] / case['measured'] - 1:+8.3%}  "
        f"eager {case['eager'] / case['measured'] - 1:+8.3%}  "
        f"{case['predict_seconds']:5.1f} s of {case['measure_seconds']:5.1f} s"
        for name, case in sorted(both.items())
    ]
    exact = sum(case["predicted"] == case["measured"] for case in both.values())
    inside = sum(case["range"][0] <= case["measured"] <= case["range"][1] for case in both.values())
    return "\n".join([*lines, f"{exact} of {len(both)} exact, {inside} inside the range"])


if __name__ == "__main__":
    main()
