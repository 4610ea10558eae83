"""CUDA on a machine without it, as torch.distributed uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..live.streams import Streams, set_to


@contextmanager
def cuda_alone(device: torch.device, cards: int) -> Iterator[None]:
    """Have ``torch.cuda`` and ``torch.accelerator`` answer as on a machine with this many GPUs.

    CUDA is not initialised. Queries from torch/distributed/fsdp/_fully_shard, device_mesh.py and pipelining are
    answered; everything else fails as it would on a build or machine without CUDA. The pass supplies the streams.
    """
    answers: dict[str, Any] = {
        "current_device": lambda: device.index,
        "device_count": lambda: cards,
        "is_available": lambda: True,
        "get_rng_state": lambda *_: torch.empty(_RNG_STATE_BYTES, dtype=torch.uint8, device="cpu"),
        "set_rng_state": lambda *_: None,
        **{name: _no_op() for name in _NO_OPS},
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(set_to(torch.cuda, name, answer))
        if Streams.active is not None:
            current = Streams.active.stack
            stack.enter_context(set_to(torch.accelerator, "current_stream", lambda *_, **__: current[-1]))
        stack.enter_context(set_to(torch._C, "_get_accelerator", lambda *_: torch.device("cuda")))
        yield


_RNG_STATE_BYTES = 16
"""A seed and an offset, on the CPU (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, ``get_state``)."""
_NO_OPS = ("set_device", "synchronize", "empty_cache", "_lazy_init", "manual_seed", "manual_seed_all")


def _no_op() -> Callable[..., None]:
    """Return a new function: torch._dynamo keeps a table of torch's functions, in which none may occur twice."""
    return lambda *_, **__: None
