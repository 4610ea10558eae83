"""Compare the no-op runtime alone with memory that others have measured, without a prediction.

``python -m benchmarks.nocuda --card V100 -m benchmarks.published_runtime bert`` runs the steps of Hugging Face's
anatomy of BERT-large, ``--card A100 ... tune`` torchtune's step of Llama 3.2 3B: torch's CUDA build, its allocator and
its choice of kernels, on kernels that do nothing. Any difference is the runtime's, or that of newer releases of torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_truth import placed
from benchmarks.published_memory import BERT, BERT_ROWS, MIB, TUNE, V100_CONTEXT, show
from benchmarks.published_memory_steps import bert_large, bert_step
from benchmarks.published_memory_tune import LENGTH, next_token_loss, tuned_llama

STEPS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    PARTS[parser.parse_args().part]()


def bert() -> None:
    """Print the device memory in use at the end of BERT-large's steps, including the context."""
    print(BERT)
    for name, published, settings in BERT_ROWS:
        _, reserved = bert_bytes(**settings)
        show(name, reserved + V100_CONTEXT, published * MIB)


def bert_bytes(batch: int, checkpointed: bool = False, **settings: Any) -> tuple[int, int]:
    """Run the trainer's steps; return the peak and the reserved bytes."""
    model = bert_large()
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    ids = torch.zeros(batch, 512, dtype=torch.long, device="cuda")
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")
    step = bert_step(**settings)
    return run(model, lambda model: step(model, input_ids=ids, labels=labels))


def tune() -> None:
    """Print the peak of torchtune's step on two packed samples."""
    print(TUNE)
    ids, positions = (torch.zeros(2, LENGTH, dtype=torch.long, device="cuda") for _ in range(2))
    optimizers: list[torch.optim.Optimizer] = []

    def step(model: nn.Module) -> None:
        optimizer = optimizers[0] if optimizers else torch.optim.AdamW(model.parameters(), fused=True)
        optimizers[:] = [optimizer]
        next_token_loss(model(ids, positions)).backward()
        optimizer.step()
        optimizer.zero_grad()

    peak, _ = run(tuned_llama(), step)
    show("Llama 3.2 3B, 2 x 4,096 tokens", peak, int(60.0 * 1024 * MIB))


def run(model: nn.Module, step: Callable[[nn.Module], None]) -> tuple[int, int]:
    """Run steps of a model on the GPU, from an empty cache; return the peak and the reserved bytes."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = placed(model, "cuda").train()
    for _ in range(STEPS):
        step(model)
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


PARTS: dict[str, Callable[[], None]] = {"bert": bert, "tune": tune}


if __name__ == "__main__":
    main()
