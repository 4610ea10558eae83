"""The true memory of models with tensor subclasses as weights, by torch's profiler."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from tests.truth.memory_truth import cpu_changes
from torchsummary_plus.api.memory import estimate_memory, measure_memory
from torchsummary_plus.live.weights import stored

STEPS = "steps"
OptimizerMaker = Callable[[Any], torch.optim.Optimizer]


def true_peak(
    build: Callable[[], nn.Module], data: Callable[[], Any], mode: str, optimizer: OptimizerMaker | None = None
) -> int:
    """The most bytes during two steps of a model, which is made under the profiler so that all its frees are seen."""

    def run() -> None:
        model, x = build().train(mode == "train"), data()
        gc.collect()
        with record_function(STEPS), torch.set_grad_enabled(mode == "train"):
            chosen = None if optimizer is None else optimizer([p for p in model.parameters() if p.requires_grad])
            for _ in range(2):
                once(model, x, mode, chosen)

    run()
    level = peak = 0
    for change in cpu_changes(run):
        level += change.nbytes
        if change.names[:1] == (STEPS,):
            peak = max(peak, level)
    return peak


def once(model: nn.Module, x: Any, mode: str, optimizer: torch.optim.Optimizer | None) -> None:
    output = model(x)
    if mode == "eval":
        return
    loss = output.sum()
    del output
    loss.backward()
    del loss
    if optimizer is None:
        model.zero_grad()
    else:
        optimizer.step()
        optimizer.zero_grad()


def agree(
    build: Callable[[], nn.Module], data: Callable[[], Any], mode: str, optimizer: OptimizerMaker | None = None
) -> int:
    """Estimate and measurement are what the profiler saw, to the byte; returns it.

    A first model makes what its library keeps for all of them and no step reads.
    """
    build()
    truth = true_peak(build, data, mode, optimizer)
    model, x = build(), data()
    measured = measure_memory(model, input_data=x, mode=mode, optimizer=optimizer)
    predicted = estimate_memory(model, input_data=x, mode=mode, optimizer=optimizer)
    assert f"{measured.peak_bytes:,} {predicted.peak_bytes:,}" == f"{truth:,} {truth:,}"
    assert measured.at_peak["parameters"] == predicted.at_peak["parameters"]
    assert sum(predicted.at_peak.values()) == predicted.peak_bytes
    return truth


def rows(count: int, width: int, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(count, width, dtype=dtype)


def everything(model: nn.Module) -> list[Any]:
    """What a model holds: each parameter and buffer, the tensors inside and beside it, and what these contain."""
    facts: list[Any] = []
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        facts += [name, id(tensor), type(tensor), tensor.requires_grad, id(tensor.grad)]
        for part in stored(tensor):
            facts += [id(part), tuple(part.shape), part.dtype, part.flatten().tolist()]
    facts += [(name, sorted(vars(module))) for name, module in model.named_modules()]
    return facts
