"""Memory statistics, ranges for profilers and the like in a step on CUDA, where no GPU is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_RESETS = ("reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated")
_READS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


def statistics_answered() -> dict[tuple[Any, str], Callable[..., Any]]:
    """Return replacements for functions that fail without a GPU, or write to the statistics of one that is in use.

    What reads statistics is replaced only where torch finds no GPU: there are none then. Each replacement is a function
    of its own, by which modules that copied it get torch's back.
    """
    answers = {(torch.cuda, name): _always(None) for name in (*_RESETS, "reset_max_memory_cached", "ipc_collect")}
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        answers |= {(accelerator, name): _always(None) for name in _RESETS}
    if torch.cuda.is_available():
        return answers
    answers |= {(torch.cuda, "memory_summary"): _always(""), (torch.cuda, "memory_snapshot"): lambda *_, **__: []}
    answers |= {(torch.cuda.nvtx, name): _always(0) for name in ("range_push", "range_pop", "mark")}
    if accelerator is not None and not accelerator.is_available():
        answers |= {(accelerator, name): _always(None) for name in ("synchronize", "empty_cache")}
        answers |= {(accelerator, name): _always(0) for name in _READS}
        answers[accelerator, "memory_stats"] = lambda *_, **__: {}
    return answers


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer
