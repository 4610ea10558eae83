"""Compare each tool's memory of a training step with the measured peak: ``python -m benchmarks.memory_peers``.

Each model trains for two real steps on the CPU under torch's profiler, which records each allocation and free. This
peak is compared, as predicted / measured, with our estimate, torch's own ``MemTracker`` under fake tensors, the recipe
of adding up parameters, gradients, optimizer state and saved tensors under fake tensors, and the totals of torchsummary
and torchinfo. Every model runs in its own process, in which each tool builds a fresh copy.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._tools.mem_tracker import MemTracker

from benchmarks import cpu_truth_nets as nets
from benchmarks.cpu_truth_models import Subject, floats, hugging, mlp, recurrent, words
from benchmarks.speed_process import ENVIRONMENT, ROOT
from examples.gpt2 import GPT2
from examples.llama import Config, Llama
from examples.mobilenet_v2 import MobileNetV2
from examples.resnet import resnet18, resnet50
from examples.vgg import vgg16
from examples.vit import vit_b_16
from tests.truth.memory_truth import OptimizerMaker, measure
from torchsummary_plus import estimate_memory

STEPS = 2
TURNS = 2
"""Number of turns of each tool, whose minimum time counts; the first turn imports and warms up."""

MIB = 1 << 20
OPTIMIZERS: dict[str, OptimizerMaker] = {"sgd": lambda p: torch.optim.SGD(p, lr=0.01), "adamw": torch.optim.AdamW}
IMAGE = floats(3, 224, 224)
LLAMA = Config(width=512, depth=8, heads=8, kv_heads=4, hidden=1376)
BERT = {"num_hidden_layers": 6}
T5 = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "decoder_start_token_id": 0}

SUBJECTS = {
    subject.name: (subject, batch)
    for subject, batch in (
        (Subject("mlp", "mlp", partial(mlp, 512), floats(512)), 128),
        (Subject("resnet18", "cnn", resnet18, IMAGE), 8),
        (Subject("resnet50", "cnn", resnet50, IMAGE), 8),
        (Subject("vgg16", "cnn", vgg16, IMAGE), 4),
        (Subject("mobilenet_v2", "cnn", MobileNetV2, IMAGE), 8),
        (Subject("unet", "cnn", partial(nets.UNet, width=32), floats(3, 128, 128)), 4),
        (Subject("lstm", "rnn", recurrent(nn.LSTM, 2), words(128)), 32),
        (Subject("gpt2", "transformer", GPT2, words(256)), 2),
        (Subject("llama", "transformer", partial(Llama, LLAMA), words(256)), 2),
        (Subject("bert", "transformer", hugging("Bert", "ForMaskedLM", "text", BERT), words(256)), 2),
        (Subject("t5", "transformer", hugging("T5", "ForConditionalGeneration", "text", T5), words(256)), 2),
        (Subject("vit_b_16", "transformer", vit_b_16, IMAGE), 4),
    )
}


class Asked:
    """A model with its inputs, and the optimizer that trains it."""

    def __init__(self, name: str, optimizer: str) -> None:
        self.subject, self.batch = SUBJECTS[name]
        self.optimizer = OPTIMIZERS[optimizer]

    def build(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        torch.manual_seed(0)
        return self.subject.build().train(), self.subject.example(self.batch)

    def step(self, model: nn.Module, inputs: tuple[Tensor, ...], optimizer: torch.optim.Optimizer) -> None:
        model(*inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


Ready = Callable[[], int]
"""A tool with its model and inputs; the call returns the tool's peak in bytes."""


def ours(question: Asked) -> Ready:
    model, inputs = question.build()
    options: dict[str, Any] = {"optimizer": question.optimizer, "steps": STEPS, "progress": False}
    return lambda: estimate_memory(model, input_data=inputs[0], device="cpu", **options).peak_bytes


def mem_tracker(question: Asked) -> Ready:
    """Run ``MemTracker`` as its documentation shows, resetting the modules' figures between the two steps."""
    with FakeTensorMode() as fake:
        model, inputs = question.build()

    def run() -> int:
        with fake:
            optimizer, tracker = question.optimizer(list(model.parameters())), MemTracker()
            tracker.track_external(model, optimizer, *inputs)
            with tracker:
                for _ in range(STEPS):
                    question.step(model, inputs, optimizer)
                    tracker.reset_mod_stats()
        return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])

    return run


def recipe(question: Asked) -> Ready:
    """Add up the recipe; each saved storage counts once, except for those of parameters."""
    with FakeTensorMode() as fake:
        model, inputs = question.build()

    def run() -> int:
        saved: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            saved[storage._cdata] = storage
            return tensor

        with fake:
            optimizer = question.optimizer(list(model.parameters()))
            with saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = model(*inputs).sum()
            loss.backward()
            optimizer.step()
        parameters = list(model.parameters())
        state = [value for values in optimizer.state.values() for value in values.values() if isinstance(value, Tensor)]
        live = [*parameters, *model.buffers(), *(p.grad for p in parameters if p.grad is not None), *state, *inputs]
        optimizer.zero_grad()
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in live}
        return sum(storage.nbytes() for storage in (storages | saved).values())

    return run


def torchsummary_total(question: Asked) -> Ready:
    """Return torchsummary's "Estimated Total Size"; it runs a batch of two floats, and multiplies."""
    from torchsummary import summary

    model, inputs = question.build()

    def run() -> int:
        text = io.StringIO()
        with redirect_stdout(text):
            summary(model, tuple(inputs[0].shape[1:]), question.batch, device="cpu")
        match = re.search(r"Estimated Total Size \(MB\): ([\d.]+)", text.getvalue())
        assert match is not None
        return int(float(match[1]) * MIB)

    return run


def torchinfo_total(question: Asked) -> Ready:
    """Return torchinfo's "Estimated Total Size": input, twice the outputs, parameters."""
    from torchinfo import summary

    model, inputs = question.build()

    def run() -> int:
        table = summary(model, input_data=inputs, device="cpu", mode="train", verbose=0)
        return int(table.total_input + table.total_output_bytes + table.total_param_bytes)

    return run


TOOLS: dict[str, Callable[[Asked], Ready]] = {
    "ours": ours,
    "MemTracker": mem_tracker,
    "recipe": recipe,
    "torchsummary": torchsummary_total,
    "torchinfo": torchinfo_total,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="*", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "OPTIMIZER"), help="run one case here and print JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(case(*options.one)))
        return
    records = []
    print(
        f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, 1 thread; predicted / measured peak\n"
    )
    print(f"{'model, batch, optimizer':26} {'measured MiB':>12} " + " ".join(f"{tool:>12}" for tool in TOOLS))
    for name in options.model:
        for optimizer in OPTIMIZERS:
            records.append(in_process(name, optimizer))
            print(line(f"{name}, {SUBJECTS[name][1]}, {optimizer}", records[-1]), flush=True)
    print("\n" + totals(records))


def in_process(name: str, optimizer: str) -> dict[str, Any]:
    """Run a case in a new process."""
    command = [sys.executable, "-m", "benchmarks.memory_peers", "--one", name, optimizer]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def case(name: str, optimizer: str) -> dict[str, Any]:
    """Return the measured peak, and each tool's bytes and CPU seconds, or why it failed."""
    question = Asked(name, optimizer)
    answers: dict[str, Any] = {tool: asked_of(make, question) for tool, make in TOOLS.items()}
    model, inputs = question.build()
    return {"measured": measure(model, inputs, optimizer=question.optimizer, steps=STEPS).peak_bytes, "tools": answers}


def asked_of(make: Callable[[Asked], Ready], question: Asked) -> dict[str, Any]:
    """Return a tool's result and its minimum time, without building the model."""
    seconds = []
    try:
        run = make(question)
        for _ in range(TURNS):
            began = time.process_time()
            nbytes = run()
            seconds.append(time.process_time() - began)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"}
    return {"bytes": nbytes, "seconds": min(seconds)}


def line(title: str, record: dict[str, Any]) -> str:
    cells = (
        f"{told['bytes'] / record['measured']:12.4f}" if "bytes" in told else f"{'failed':>12}"
        for told in record["tools"].values()
    )
    return f"{title:26} {record['measured'] / MIB:12,.1f} " + " ".join(cells)


def totals(records: list[dict[str, Any]]) -> str:
    """Return each tool's number of results, median and worst error, time relative to ours, and failures."""
    lines = [f"{'tool':14} {'results':>8} {'median error':>13} {'worst error':>12} {'time / ours, median (range)':>30}"]
    reasons = []
    for tool in TOOLS:
        told = [(record["tools"][tool], record) for record in records if "bytes" in record["tools"][tool]]
        reasons += sorted(
            {f"{tool}: {record['tools'][tool]['error']}" for record in records if "error" in record["tools"][tool]}
        )
        if not told:
            lines.append(f"{tool:14} {0:>8}")
            continue
        errors = [answer["bytes"] / record["measured"] - 1 for answer, record in told]
        times = [answer["seconds"] / record["tools"]["ours"]["seconds"] for answer, record in told]
        spread = f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        counts = f"{len(told):>4} / {len(records)}"
        worst = max(errors, key=abs)
        lines.append(f"{tool:14} {counts:>8} {median(map(abs, errors)):13.3%} {worst:+12.3%} {spread:>30}")
    return "\n".join([*lines, *reasons])


if __name__ == "__main__":
    main()
