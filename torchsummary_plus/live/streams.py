"""CUDA streams without a GPU: the current stream, and tensors passed to ``record_stream``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol

import torch

from .compat import replaced
from .cuda_answers import captures_undone


class Follower(Protocol):
    """Is notified of stream switches and of ``record_stream``."""

    def switched(self, stream: int) -> None:
        """Note that a stream is the current one from now on."""

    def handed_over(self, tensor: torch.Tensor, stream: int) -> None:
        """Note that ``record_stream`` gives a tensor to a stream."""


class Streams:
    """A device's streams by number, 0 being the default one."""

    active: Streams | None = None
    """The streams of the current pass, if it is on CUDA."""

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
                streams._switched()
                return self

            def __exit__(self, *_: object) -> None:
                streams.stack.pop()
                streams._switched()

        self.kind = Stream
        self.default = Stream()
        self.stack: list[Any] = [self.default]
        self.follower: Follower | None = None
        self._real: dict[Any, Any] = {}

    @property
    def current(self) -> int:
        """Return the current stream's number."""
        number: int = self.stack[-1].number
        return number

    def ours(self, stream: Any) -> Any:
        """Return a replacement stream; one of torch's own, created before the pass, gets a new number."""
        if isinstance(stream, self.kind):
            return stream
        if stream.cuda_stream == 0:
            return self.default
        return self._real.setdefault(stream.cuda_stream, self.kind())

    @contextmanager
    def within(self, stream: Any) -> Iterator[None]:
        """Return the context that replaces ``torch.cuda.stream(stream)``."""
        if stream is None:
            yield
            return
        with self.ours(stream):
            yield

    def switch(self, stream: Any) -> None:
        """Replace ``torch.cuda.set_stream(stream)``."""
        if stream is not None:
            self.stack[-1] = self.ours(stream)
            self._switched()

    def record(self, tensor: torch.Tensor, stream: Any) -> None:
        """Replace ``tensor.record_stream(stream)``."""
        if self.follower is not None:
            self.follower.handed_over(tensor, self.ours(stream).number)

    def _switched(self) -> None:
        if self.follower is not None:
            self.follower.switched(self.current)


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
def streams_alone(device: torch.device) -> Iterator[None]:
    """Make ``torch.cuda``'s streams and events work without a GPU, and report ``record_stream``."""
    streams = Streams(device)
    answers: dict[tuple[Any, str], Any] = {
        (torch.cuda, "Stream"): streams.kind,
        (torch.cuda, "Event"): Event,
        (torch.cuda, "stream"): streams.within,
        (torch.cuda, "set_stream"): streams.switch,
        (torch.cuda, "current_stream"): lambda *_, **__: streams.stack[-1],
        (torch.cuda, "default_stream"): lambda *_, **__: streams.default,
        (torch, "Stream"): streams.kind,
        (torch, "Event"): Event,
        (torch.Tensor, "record_stream"): lambda tensor, stream: streams.record(tensor, stream),
        (Streams, "active"): streams,
    }
    with captures_undone(answers), replaced(answers):
        yield
