"""Compare predicted with measured memory of compiled steps: ``python -m benchmarks.compiled``.

Every model is compiled by ``torch.compile`` and runs two steps after a first one that compiles: on the CPU with its
real kernels, which needs g++, under torch's profiler; with ``--card A100``, in an environment with a CUDA build of
torch, on the no-op runtime. Kernels of Triton do nothing there, so they are not compiled unless ``--triton`` asks for
it. ``--predict``, in any environment, keeps the measurements and predicts again. Each case runs in a process of its
own, so the times are those of a first compilation.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cpu.events import measured_levels
from benchmarks.cpu.models import GROUPED, SUBJECTS, Subject, floats, hugging, words
from benchmarks.cpu.nets import Through
from benchmarks.cpu.truth import DATA, MODES, SEED, STEPS, Case, as_text, isa, load, loss_of, machine, steps_of
from examples.resnet import resnet18
from tests.truth.memory_truth import cpu_changes, storage_bytes
from torchsummary_plus import estimate_memory

GPUS = {"A100": "A100 80GB"}
"""Names of cards that the package calls otherwise."""
BATCH = 8
NAMES = (
    *("mlp", "mlp_norm", "recommender", "vgg", "unet", "diffusion_unet", "vit", "gpt", "gpt_plain", "gpt_checkpointed"),
    *("llama", "encoder", "lstm", "experts", "gpt2", "llama_transformers", "bert", "t5", "whisper"),
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


KNOWN = {subject.name: subject for subject in SUBJECTS}
MODELS = (
    *(KNOWN[name] for name in NAMES),
    Subject("resnet18", "cnn", resnet18, floats(3, 64, 64)),
    Subject("mobilenet", "cnn", mobile_net, floats(3, 64, 64)),
    Subject("mixtral", "transformer", hugging("Mixtral", "ForCausalLM", "text", GROUPED), words(32)),
    Subject("convnext", "cnn", conv_next, floats(3, 64, 64)),
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
    parser.add_argument("--card", default="", help="a GPU of benchmarks/nocuda; by default the CPU")
    parser.add_argument("--only", default="", help="a regular expression to search for in the names of cases")
    parser.add_argument("--predict", action="store_true", help="keep the measurements and predict again")
    parser.add_argument("--missing", action="store_true", help="run only what the data file lacks")
    parser.add_argument("--triton", action="store_true", help="compile Triton's kernels, which takes minutes a model")
    parser.add_argument("--run", nargs=2, metavar=("STEP", "CASE"), help="run one step here and print its result")
    options = parser.parse_args()
    if options.run:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        step, name = options.run
        case = next(case for case in CASES if case.name == name)
        found = measured(case, options.card, options.triton) if step == "measure" else predicted(case, options.card)
        print(json.dumps(found))
        return
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # A process without the no-op runtime finds no GPU.
    kind = f"gpu_compiled_noop_{options.card.lower()}_torch_2.13.0" if options.card else f"cpu_compiled_{isa().lower()}"
    path = DATA / f"{kind}.json"
    data = {"machine": {"card": options.card.upper()} if options.card else machine()}
    data["cases"] = rows = load(path, data["machine"])
    for case in CASES:
        if re.search(options.only, case.name):
            for step in ("predict",) if options.predict else ("measure", "predict"):
                run(rows, case, step, options)
            path.write_text(as_text(data))
    print(report(rows))


def run(rows: dict[str, Any], case: CompiledCase, step: str, options: argparse.Namespace) -> None:
    """Run a step of a case in a process of its own, and put what it finds among the rows."""
    names = [name for name, _ in case.cases()]
    if options.missing and all(f"{step}_seconds" in rows.get(name, {}) for name in names):
        return
    runtime = ["-m", "benchmarks.nocuda", "--card", options.card] if options.card and step == "measure" else []
    how = ["--card", options.card, *(["--triton"] if options.triton else [])]
    command = [sys.executable, *runtime, "-m", "benchmarks.compiled", *how, "--run", step, case.name]
    with tempfile.TemporaryDirectory() as folder:
        own = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    failed = {name: {f"{step}_error": done.stderr.strip().splitlines()[-1:]} for name in names}
    found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else failed
    for name, values in found.items():
        kept = {key: value for key, value in rows.get(name, {}).items() if key != f"{step}_error"}
        rows[name] = {**kept, **values}
        print(name, values, file=sys.stderr, flush=True)


def measured(case: CompiledCase, card: str, with_triton: bool) -> dict[str, dict[str, Any]]:
    """Return the measured peaks of both optimizers' steps, and how long the first step took, which compiles."""
    model, inputs = case.built()
    if card:
        from torch._inductor.async_compile import AsyncCompile

        from torchsummary_plus.compiled.compat import nothing  # Not above: a prediction imports the compiler itself.

        if not with_triton:
            AsyncCompile.triton = lambda *_, **__: nothing  # type: ignore[method-assign]
        model, inputs = model.cuda(), tuple(tensor.cuda() for tensor in inputs)
    compiled, found, began = torch.compile(model), {}, time.perf_counter()
    steps_of(next(case.cases())[1], compiled, inputs)
    seconds = round(time.perf_counter() - began, 1)
    for name, one in case.cases():
        model.zero_grad()
        if card:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            steps_of(one, compiled, inputs)
            peaks = {"measured": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        else:
            static = storage_bytes([*model.parameters(), *model.buffers(), *inputs])
            levels = measured_levels(cpu_changes(lambda one=one: steps_of(one, compiled, inputs)), STEPS)
            peaks = {"measured": static + max(level.nbytes for level in levels)}
        found[name] = {**peaks, "measure_seconds": seconds}
    return found


def predicted(case: CompiledCase, card: str) -> dict[str, dict[str, Any]]:
    """Return the predicted peaks with their ranges, not compiled and compiled, and how long the compiled ones took."""
    found: dict[str, dict[str, Any]] = {}
    model, inputs = case.built()
    for name, one in case.cases():
        given: dict[str, Any] = {
            "input_data": inputs[0] if len(inputs) == 1 else inputs, "optimizer": MODES[one.mode],
            "autocast": one.subject.autocast, "loss": loss_of,
        }  # fmt: skip
        if card:
            given["gpu"] = GPUS.get(card, card)
        eager, began = estimate_memory(model, **given), time.perf_counter()
        estimate = estimate_memory(model, **given, compiled=True)
        found[name] = {
            "predicted": estimate.peak_bytes, "range": list(estimate.peak_range), "eager": eager.peak_bytes,
            "predict_seconds": round(time.perf_counter() - began, 1), "notes": list(estimate.assumptions),
        }  # fmt: skip
        if card:
            found[name] |= {
                "predicted_reserved": estimate.reserved_bytes,
                "reserved_range": list(estimate.reserved_range),
            }
    return found


def report(rows: dict[str, Any]) -> str:
    """Return the errors of the cases that have both figures, and how many are exact and in their ranges."""
    both = {name: row for name, row in rows.items() if "predicted" in row and "measured" in row}
    lines = [
        f"{name:32} measured {row['measured']:>12,}  compiled {row['predicted'] / row['measured'] - 1:+8.3%}  "
        f"{row['predict_seconds']:5.1f} s of {row.get('measure_seconds', nan):5.1f} s"
        for name, row in sorted(both.items())
    ]
    exact = sum(row["predicted"] == row["measured"] for row in both.values())
    pairs = (("range", "measured"), ("reserved_range", "reserved"))
    inside, held = (
        sum(row[low_high][0] <= row[real] <= row[low_high][1] for row in both.values() if real in row)
        for low_high, real in pairs
    )
    return "\n".join([*lines, f"of {len(both)}: {exact} exact, {inside} inside the range, reserved {held} inside"])


if __name__ == "__main__":
    main()
