"""CUDA on a machine without it, as torch.distributed uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..live import compat
from ..live.device_indices import numbers_named
from ..live.fakes import Fake
from ..live.streams import Streams, set_to
from .compat import SCATTER_STREAMS
from .stand_ins import replaced


class Gpus:
    """A machine's GPUs: their number, and the index of the current one."""

    def __init__(self, count: int) -> None:
        self.count = count

    @property
    def current(self) -> int:
        """Return the current GPU's number."""
        return Fake.current_gpu

    def switch(self, device: Any) -> int:
        """Select a device and return the previous one; a negative index changes nothing."""
        before = Fake.current_gpu
        index = device if isinstance(device, int) else torch.device(device).index
        if index is not None and index >= 0:
            Fake.current_gpu = index
        return before


@contextmanager
def cuda_alone(device: torch.device, count: int) -> Iterator[None]:
    """Have ``torch.cuda`` and ``torch.accelerator`` answer as on a machine with ``count`` GPUs.

    ``device`` is the current one. CUDA is not initialised. Queries from torch/distributed/fsdp, device_mesh.py,
    pipelining and torch/nn/parallel are answered; everything else fails as it would on a build or machine without CUDA.
    The pass supplies the streams.
    """
    gpus = Gpus(count)
    answers: dict[str, Any] = {
        "current_device": lambda: gpus.current,
        "device_count": lambda: gpus.count,
        "is_available": lambda: True,
        "get_rng_state": lambda *_: torch.empty(_RNG_STATE_BYTES, dtype=torch.uint8, device="cpu"),
        "set_rng_state": lambda *_: None,
        **{name: (lambda device: gpus.switch(device)) for name in _SWITCHES},
        **{name: _no_op() for name in _NO_OPS},
    }
    of_accelerator = dict(zip(compat.accelerator_places, _of_accelerator(gpus)))
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(set_to(torch.cuda, name, answer))
        if Streams.active is not None:
            current = Streams.active.stack
            stack.enter_context(set_to(torch.accelerator, "current_stream", lambda *_, **__: current[-1]))
        stack.enter_context(compat.replaced(of_accelerator))
        stack.enter_context(replaced(SCATTER_STREAMS, lambda _: None))
        stack.enter_context(compat.fakes_without_card())
        stack.enter_context(numbers_named())
        stack.enter_context(set_to(Fake, "current_gpu", device.index))
        yield


def _of_accelerator(gpus: Gpus) -> tuple[Callable[..., Any], ...]:
    """Return the answers to :data:`compat.accelerator_places`, in their order."""
    return (
        *(lambda *_: torch.device("cuda"), lambda *_: torch.device("cuda")),
        *(lambda *_: gpus.current, lambda device: gpus.switch(device) and None),
        *(lambda device: gpus.switch(device), lambda device: gpus.switch(device), lambda *_: None),
    )


_RNG_STATE_BYTES = 16
"""A seed and an offset, on the CPU (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, ``get_state``)."""
_SWITCHES = ("set_device", "_exchange_device", "_maybe_exchange_device")
_NO_OPS = (
    *("synchronize", "empty_cache", "_lazy_init", "manual_seed", "manual_seed_all", "ipc_collect"),
    *("reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated"),
)


def _no_op() -> Callable[..., None]:
    """Return a new function that does nothing; torch._dynamo's table of torch's functions must not list one twice."""
    return lambda *_, **__: None
