"""Compare predictions with memory that others have measured: ``python -m benchmarks.published.memory``.

Four parts, each with its source: timm's published largest training batches for a 24 GB GPU, Hugging Face's anatomy of
BERT-large, torchtune's peak for a Llama, and the model states in the ZeRO paper. Nothing is downloaded: weights are
random and fake.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.limits import Timeout, time_limit
from benchmarks.published.memory_steps import Mixed, amp_classifier_step, bert_large, bert_step, gpt2_xl
from benchmarks.published.memory_tune import LENGTH, next_token_loss, tuned_llama
from benchmarks.zoo.torchvision_on_cpu import import_torchvision
from torchsummary_plus import estimate_memory
from torchsummary_plus.memory.gpus import find_gpu
from torchsummary_plus.results.memory_estimate import MemoryEstimate

MIB = 1 << 20
DATA = Path(__file__).parents[1] / "data" / "published_batches.csv"
TIMM = (
    "huggingface/pytorch-image-models, results/benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv: torch 1.12, fp16"
    " autocast, SGD with momentum, batches 512 384 256 192 128 96 64 48 32 24 16 12 8 6 4 3 2 1"
)
BERT = (
    "huggingface/transformers, docs/source/en/model_memory_anatomy.md and perf_train_gpu_one.mdx: a V100, January 2022"
)
TUNE = "pytorch/torchtune, README.md@bd2a0fc: full_finetune_single_device, packed samples, an A100, peak memory active"
ZERO = "Rajbhandari et al. 2019, ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, arXiv:1910.02054"

TIMM_RELEASE = "0.6"
TIMM_CURE = "benchmarks/README.md shows how to install timm 0.6.7 next to the current version"

CONTEXTS = (1434, 1741, 2048, 2222)
"""Sizes in MiB of a context with cuBLAS, cuDNN and all kernels loaded, as in torch up to 1.12.

On an RTX 3090 one small tensor took 1,001 (nvidia-smi in pytorch/pytorch#54564) to 1,687 (#55277) without these two
libraries. With them, out-of-memory errors imply the following, as the GPU's memory minus what is free and what torch
has reserved: 1,905 (perrying/ssn-pytorch#11), 2,146 (yiqun-wang/PET-NeuS#15) and 2,222
(clovaai/deep-text-recognition-benchmark#386). On an A100 it was 1.4 to 2.0 GiB, measured minus predicted over seven of
timm's families in fp32.
"""
USUAL = 2048
"""Near the middle of these figures for such a GPU; the printed verdict of a model refers to it."""
V100_CONTEXT = 1343 * MIB
"""The same, according to Hugging Face's text."""


@dataclass(frozen=True)
class Batch:
    """A line of the data file: the largest batch that ran, and the next one, which did not."""

    model: str
    size: int
    fits: int
    fails: int
    params: float
    """Millions of parameters."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, help="only this part")
    parser.add_argument("--model", default="", help="only timm models whose name contains this")
    parser.add_argument("--slice", default="0:", help="a slice of timm's models, from:to")
    parser.add_argument("--seconds", type=int, default=240, help="time limit of a model")
    parser.add_argument("--minutes", type=float, default=60, help="start no timm model after this time")
    parser.add_argument("--verdicts", type=Path, help="file of timm's verdicts, which the next run continues")
    options = parser.parse_args()
    import_torchvision()  # timm and transformers look for it
    for name, part in PARTS.items():
        if options.part in (None, name):
            part(options)


def timm_batches(options: argparse.Namespace) -> None:
    """Print each model at the batch that ran, which must fit, and at the next one, which must not."""
    import timm

    if not timm.__version__.startswith(f"{TIMM_RELEASE}."):
        raise SystemExit(f"timm {timm.__version__} has other models than {TIMM_RELEASE}: {TIMM_CURE}")
    usable = find_gpu("RTX 3090").usable_bytes // MIB
    print(
        f"\n{TIMM}\n{'model':42} {'ran':>4} {'predicted':>10} {'not':>4} {'predicted':>10}  of {usable - USUAL:,} MiB"
    )
    first, _, last = options.slice.partition(":")
    lines = [line for line in read_batches() if options.model in line.model][int(first) : int(last) if last else None]
    began, file = time.monotonic(), options.verdicts
    verdicts: dict[str, list[str]] = json.loads(file.read_text()) if file and file.exists() else {}
    for line in lines:
        if line.model in verdicts or time.monotonic() - began > 60 * options.minutes:
            continue
        try:
            with time_limit(options.seconds):
                verdicts[line.model] = judge(line)
        except (Exception, Timeout) as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            print(f"{line.model:42} did not run: {why}", flush=True)
        if file:
            file.write_text(json.dumps(verdicts, indent=0))
    for number, context in enumerate(CONTEXTS):
        counts = Counter(verdict[number] for verdict in verdicts.values())
        told = f"too high {counts['too high']}, too low {counts['too low']}"
        print(f"context {context:,} MiB: agree {counts['']} of {len(verdicts)}; {told}")


def read_batches() -> Iterator[Batch]:
    """Yield the lines of the data file."""
    with DATA.open(newline="") as file:
        for line in csv.DictReader(file):
            yield Batch(line["model"], int(line["size"]), int(line["fits"]), int(line["fails"]), float(line["params"]))


def judge(line: Batch) -> list[str]:
    """Print a model's line; return what is wrong for each context: the batch that ran must fit, the other must not."""
    import timm

    model = timm.create_model(line.model)
    params = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    if abs(params / line.params - 1) > 0.01:
        raise ValueError(f"another model: {params:.2f} million parameters, {line.params} in the file")
    ran, failed = (
        estimate_memory(
            model, (3, line.size, line.size), batch, "cuda", train_step=amp_classifier_step(), gpu="RTX 3090"
        )
        for batch in (line.fits, line.fails)
    )
    gpu = find_gpu("RTX 3090")
    taken_off = gpu.context_bytes[1]
    verdicts = []
    for context in CONTEXTS:
        memory = gpu.usable_bytes - context * MIB + taken_off
        verdicts.append("too high" if not ran.fits(memory) else "too low" if failed.fits(memory) else "")
    print(
        f"{line.model:42} {line.fits:4} {peak_mib(ran):6,} MiB {line.fails:4} {peak_mib(failed):6,} MiB"
        f"  {verdicts[CONTEXTS.index(USUAL)]}".rstrip(),
        flush=True,
    )
    return verdicts


def peak_mib(estimate: MemoryEstimate) -> int:
    return estimate.peak_bytes // MIB


def bert_anatomy(options: argparse.Namespace) -> None:
    """Print BERT-large with sequences of 512: the device memory in use at the end, including the context."""
    print(f"\n{BERT}\n{'configuration':44} {'predicted':>11} {'published':>11} {'ratio':>6}")
    model = bert_large()
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    show("weights alone", weights + V100_CONTEXT, 2631 * MIB)
    for name, published, settings in BERT_ROWS:
        estimate = bert_estimate(**settings)
        show(name, estimate.reserved_bytes + V100_CONTEXT, published * MIB)


BERT_ROWS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("fp32, batch 4", 14_949, {"batch": 4}),
    ("fp32, batch 1, 4 accumulated", 8_681, {"batch": 1, "accumulated": 4}),
    ("the same, checkpointed", 6_775, {"batch": 1, "accumulated": 4, "checkpointed": True}),
    ("fp16 autocast, batch 4", 13_939, {"batch": 4, "autocast": torch.float16}),
    (
        "fp16 autocast, 4 accumulated, checkpointed",
        7_275,
        {"batch": 1, "accumulated": 4, "checkpointed": True, "autocast": torch.float16},
    ),
)


def bert_estimate(batch: int, checkpointed: bool = False, **settings: Any) -> MemoryEstimate:
    """Estimate a step of the trainer of that time: per-parameter AdamW, gradients zeroed in place."""
    model = bert_large()
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    data = {"input_ids": torch.zeros(batch, 512, dtype=torch.long), "labels": torch.zeros(batch, dtype=torch.long)}
    return estimate_memory(model, input_data=data, device="cuda", train_step=bert_step(**settings), gpu="V100 16GB")


def tuned_peak(options: argparse.Namespace) -> None:
    """Print Llama 3.2 3B in bfloat16 with AdamW on two packed samples of 4,096 tokens."""
    print(f"\n{TUNE}\n{'configuration':44} {'predicted':>11} {'published':>11} {'ratio':>6}")
    ids, positions = (torch.zeros(2, LENGTH, dtype=torch.long, device="meta") for _ in range(2))
    estimate = estimate_memory(
        tuned_llama(),
        input_data=(ids, positions),
        device="cuda",
        optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
        loss=next_token_loss,
        gpu="A100 80GB",
    )
    show("Llama 3.2 3B, 2 x 4,096 tokens", estimate.peak_bytes, int(60.0 * 1024 * MIB))


def zero_states(options: argparse.Namespace) -> None:
    """Print Adam in mixed precision: 2 + 2 + 12 bytes a parameter, and a rank's share when sharded over 64 devices."""
    print(f"\n{ZERO}\n{'model states':44} {'predicted':>11} {'published':>11} {'ratio':>6}")
    count, states = measured_states(gpt2_xl())
    show(f"GPT-2, {count / 1e9:.2f}e9 parameters", states, int(24e9))
    for name, published, per_parameter in (
        ("7.5e9 parameters, not sharded", 120e9, 16.0),
        ("optimizer state over 64", 31.4e9, 4 + 12 / 64),
        ("and gradients", 16.6e9, 2 + 14 / 64),
        ("and parameters", 1.9e9, 16 / 64),
    ):
        show(name, int(7.5e9 * per_parameter * states / count / 16), int(published))


def measured_states(model: nn.Module) -> tuple[int, int]:
    """Return the parameters, and the bytes of parameters, gradients and optimizer state at the optimizer's peak."""
    model = model.to(torch.float16)
    estimate = estimate_memory(
        model,
        input_data=torch.zeros(1, 8, dtype=torch.long),
        device="cuda",
        optimizer=Mixed,
        loss=lambda out: out.logits.sum(),
    )
    count = sum(parameter.numel() for parameter in model.parameters())
    kinds = ("parameters", "gradients", "optimizer_state")
    return count, max(sum(dict(point.live)[kind] for kind in kinds) for point in estimate.timeline)


def show(name: str, predicted: int, published: int) -> None:
    print(f"{name:44} {predicted / MIB:7,.0f} MiB {published / MIB:7,.0f} MiB {predicted / published:6.3f}", flush=True)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "bert": bert_anatomy,
    "tune": tuned_peak,
    "zero": zero_states,
    "timm": timm_batches,
}


if __name__ == "__main__":
    main()
