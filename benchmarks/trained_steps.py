"""Published throughputs of whole training steps, on data-centre and other GPUs, beside the predicted ones.

``benchmarks/data/lambda_training.csv`` has samples per second of NVIDIA's reference networks in float16, from Lambda's
deeplearning-benchmark; ``llm_training_tokens.csv`` tokens per second and GPU of MPT in bfloat16, from MosaicML's
llm-foundry: 8 GPUs with FSDP, without checkpointing. Nothing is fitted on them.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.gpt2 import GPT2, Config
from examples.llama import llama2_7b
from examples.resnet import resnet50
from torchsummary_plus import estimate_memory
from torchsummary_plus.memory.gpus import find_gpu
from torchsummary_plus.results.memory_estimate import MemoryEstimate

DATA = Path(__file__).parent / "data"
NAMES = {"A100 80GB SXM4": "A100 80GB", "H100 80GB PCIe Gen5": "H100 PCIe"}
BERT = {
    "bert_base_squad": {},
    "bert_large_squad": {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096
    },
}  # fmt: skip
"""The differences from transformers' default, the base size."""
MPT = {
    "mpt-125m": (768, 12, 12), "mpt-350m": (1024, 24, 16), "mpt-760m": (1536, 24, 12), "mpt-1b": (2048, 24, 16),
    "mpt-3b": (2560, 32, 20), "mpt-7b": (4096, 32, 32), "mpt-13b": (5120, 40, 40),
}  # fmt: skip
"""Width, depth and heads (scripts/train/yamls/pretrain); the architecture is that of a GPT-2."""
SHARDS = 8
"""GPUs that share the optimizer's work."""

Throughput = tuple[str, str, float, float]
"""A GPU, a model, and predicted and published samples per second."""


def rows(name: str) -> Iterator[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def record(model: Any, size: Any, batch: int, **options: Any) -> MemoryEstimate:
    return estimate_memory(model, size, batch, gpu="A100 80GB", cudnn="rule", progress=False, **options)


@cache
def reference_step(network: str) -> MemoryEstimate:
    """Record a step of one of NVIDIA's reference networks: ResNet-50 in NCHW, BERT with eager attention, 384 tokens."""
    if network == "resnet50":
        with torch.device("meta"):
            model: Any = resnet50()
        return record(model, (3, 224, 224), 256, autocast=torch.float16, optimizer="sgd", loss="cross_entropy")
    from transformers import BertConfig, BertForQuestionAnswering

    with torch.device("meta"):
        model = BertForQuestionAnswering(BertConfig(attn_implementation="eager", **BERT[network])).half()
    return record(model, (384,), 64, dtypes=torch.long, optimizer="adamw", loss=span_loss)


def span_loss(output: Any) -> Tensor:
    """Return what the cross entropy of a span's two ends costs."""
    start, end = (logits.float().logsumexp(-1).sum() for logits in (output.start_logits, output.end_logits))
    return start + end


def on_lambda(networks: Collection[str] = ("resnet50", *BERT)) -> Iterator[Throughput]:
    for row in rows("lambda_training.csv"):
        if row["network"] not in networks:
            continue
        gpu, step, batch = NAMES.get(row["gpu"], row["gpu"]), reference_step(row["network"]), int(row["batch_size"])
        predicted = per_second(step, gpu, step.info.batch_size / batch)
        yield gpu, row["network"], predicted, float(row["samples_per_second_fp16_training"])


def of_language_models() -> Iterator[Throughput]:
    for row in rows("llm_training_tokens.csv"):
        (width, depth, heads), length = MPT[row["model"]], int(row["sequence_length"])
        with torch.device("meta"):
            model = GPT2(Config(width, depth, heads, vocabulary=50368, context=length, dropout=0.0))
        options = {"dtypes": torch.long, "autocast": torch.bfloat16, "optimizer": "adamw", "loss": "cross_entropy"}
        step = record(model, (length,), int(row["micro_batch_size"]), **options)
        published = float(row["tokens_per_second_per_gpu"]) / length
        yield row["gpu"], f"{row['model']} {length}", per_second(step, row["gpu"], 1 / SHARDS), published


def per_second(step: MemoryEstimate, gpu: str, optimizer: float) -> float:
    """Return predicted samples per second, with a share of the recorded optimizer's time."""
    time = step.time(gpu)
    of_optimizer = time.by_phase["optimizer"]
    return step.info.batch_size / (time.seconds - of_optimizer + optimizer * of_optimizer)


def realised() -> Iterator[str]:
    """Yield what whole training steps on data-centre GPUs reached of their roofline, by other published throughputs."""
    with torch.device("meta"):
        image, llama = resnet50().to(memory_format=torch.channels_last), llama2_7b().to(torch.bfloat16)
    x = torch.empty(256, 3, 224, 224, device="meta").to(memory_format=torch.channels_last)
    images = estimate_memory(
        image, input_data=x, gpu="A100 80GB", autocast=torch.float16, optimizer="sgd", loss="cross_entropy",
        cudnn="rule", progress=False,
    )  # fmt: skip
    tokens = record(llama, (4096,), 2, dtypes=torch.long)
    for gpu, step, rate, source in (
        ("A100 80GB", images, 2470 / 256, "ResNet-50, NVIDIA/DeepLearningExamples, PyTorch 21.03"),
        ("A100 80GB", tokens, 3700 / 8192, "Llama 2 7B, foundation-model-stack/fms-fsdp"),
        ("H100 SXM", tokens, 7500 / 8192, "Llama 2 7B, foundation-model-stack/fms-fsdp"),
    ):
        peaks = find_gpu(gpu).peaks
        assert peaks is not None
        yield f"{gpu}, {source}: {step.time(gpu).seconds * peaks.realised * rate:.2f} of the roofline"


def table() -> Iterator[str]:
    """Yield the table of errors of predicted seconds, and each GPU's and model's."""
    sets: dict[str, Sequence[Throughput]] = {
        "Lambda, 6 GPUs, ResNet-50 and BERT": [*on_lambda()],
        "MosaicML, 8 A100, MPT 125M to 13B": [*of_language_models()],
    }
    yield "| training steps, nothing fitted | figures | median error | largest | within 25% |"
    yield "|---|--:|--:|--:|--:|"
    for name, found in sets.items():
        off = [abs(published / predicted - 1) for _, _, predicted, published in found]
        near = statistics.fmean(error <= 0.25 for error in off)
        yield f"| {name} | {len(off)} | {statistics.median(off):.1%} | {max(off):.1%} | {near:.0%} |"
    for gpu, model, predicted, published in (row for found in sets.values() for row in found):
        yield f"{gpu}, {model}: {predicted:,.4g} samples/s predicted, {published:,.4g} published"
