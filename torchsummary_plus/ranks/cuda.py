"""CUDA on a machine without it, as torch.distributed uses it: streams that only record which one is current."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import torch

from .stand_ins import set_to


class Streams:
    """A device's streams; ``current`` is the number of the one that memory is currently allocated in."""

    def __init__(self, device: torch.device) -> None:
        streams = self
        numbers = count()

        class Stream:
            """A replacement for ``torch.cuda.Stream`` and ``torch.Stream``."""

            def __init__(self, *_: Any, **__: Any) -> None:
                self.number = self.stream_id = self.cuda_stream = next(numbers)
                self.device, self.device_index, self.device_type = device, device.index, 1

            def wait_stream(self, other: Any) -> None: ...

            def wait_event(self, event: Any) -> None: ...

            def synchronize(self) -> None: ...

            def record_event(self, event: Any = None) -> Any:
                return event or Event()

            def query(self) -> bool:
                return True

            def __enter__(self) -> Any:
                streams.stack.append(self)
                return self

            def __exit__(self, *_: object) -> None:
                streams.stack.pop()

        self.kind = Stream
        self.default = Stream()
        self.stack: list[Any] = [self.default]

    @property
    def current(self) -> int:
        """Return the current stream's number."""
        number: int = self.stack[-1].number
        return number

    @contextmanager
    def within(self, stream: Any) -> Iterator[None]:
        """Return the context that replaces ``torch.cuda.stream(stream)``."""
        if stream is None:
            yield
            return
        with stream:
            yield


class Event:
    """A replacement for ``torch.cuda.Event`` and ``torch.Event``, at which all work is already done."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, stream: Any = None) -> Event:
        """Return the event."""
        return self

    def wait(self, stream: Any = None) -> None:
        """Do nothing: all work is done."""

    def synchronize(self) -> None:
        """Do nothing: all work is done."""

    def query(self) -> bool:
        """Return True."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """Return 0."""
        return 0.0


@contextmanager
def cuda_alone(device: torch.device, cards: int) -> Iterator[Streams]:
    """Have ``torch.cuda`` and ``torch.accelerator`` answer as on a machine with this many GPUs.

    CUDA is not initialised. Queries from torch/distributed/fsdp/_fully_shard, device_mesh.py and pipelining are
    answered; everything else fails as it would on a build or machine without CUDA.
    """
    streams = Streams(device)

    def current(*_: Any, **__: Any) -> Any:
        return streams.stack[-1]

    answers: dict[str, Any] = {
        "current_device": lambda: device.index,
        "device_count": lambda: cards,
        "is_available": lambda: True,
        "current_stream": current,
        "default_stream": lambda *_, **__: streams.default,
        "stream": streams.within,
        "Stream": streams.kind,
        "Event": Event,
        "get_rng_state": lambda *_: torch.empty(_RNG_STATE_BYTES, dtype=torch.uint8, device="cpu"),
        "set_rng_state": lambda *_: None,
        **{name: _no_op() for name in _NO_OPS},
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(set_to(torch.cuda, name, answer))
        stack.enter_context(set_to(torch, "Stream", streams.kind))
        stack.enter_context(set_to(torch, "Event", Event))
        stack.enter_context(set_to(torch.accelerator, "current_stream", current))
        stack.enter_context(set_to(torch._C, "_get_accelerator", lambda *_: torch.device("cuda")))
        yield streams


_RNG_STATE_BYTES = 16
"""A seed and an offset, on the CPU (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, ``get_state``)."""
_NO_OPS = ("set_device", "synchronize", "empty_cache", "_lazy_init", "manual_seed", "manual_seed_all")


def _no_op() -> Callable[..., None]:
    """Return a new function: torch._dynamo keeps a table of torch's functions, in which none may occur twice."""
    return lambda *_, **__: None
