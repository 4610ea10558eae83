"""MemTracker: the real memory of live tensors, line by line."""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ContextDecorator, ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import nn

from ..data.arguments import names_cures
from ..formats.text import printable
from ..results.track_report import (
    DeviceMemory,
    TensorGroup,
    TrackPoint,
    TrackReport,
    WatchedModule,
    point_text,
    table_head,
    table_row,
)
from ..table.inputs import as_device
from ..table.modules import class_name
from ..watch.population import Holding, Population

STATM = Path("/proc/self/statm")
OWN_FILES = (__file__, sys.modules[ContextDecorator.__module__].__file__)  # Whose frames call no tracker.


class MemTracker(ContextDecorator):
    """Report at each :meth:`track` which tensors appeared and disappeared, and the device's memory.

    A storage counts once, by its own bytes, however many tensors share it; gradients and optimizer state are named
    after their owners. No tensor is kept alive. Tensors held only by the autograd graph appear only in the device's
    totals.

    Args:
        detail: list the tensors as well as the totals.
        path: a file to append to, or a folder for a new file, in the lines of Pytorch-Memory-Utils; None writes a
            table to ``stream``, with a row for each call.
        device: the device to watch; None for CUDA's current one, else MPS, else the CPU.
        stream: where to write without a path; None for standard output.

    As a context manager or decorator it tracks at entry and exit.

    >>> import io
    >>> tracker = MemTracker(stream=io.StringIO(), device="cpu")
    >>> tracker.track().label
    ''
    >>> kept = torch.zeros(1000, dtype=torch.int16)
    >>> tracker.track("a thousand").appeared[0].nbytes
    2000
    """

    @names_cures({"verbose": "detail=", "frame": "nothing: the calling line is found without it"})
    def __init__(
        self, detail: bool = True, path: str | Path | None = None, device: Any = None, stream: TextIO | None = None
    ) -> None:
        self.detail = detail
        has_mps, has_cuda = torch.backends.mps.is_available(), torch.cuda.is_available()
        self.device = as_device(device) or torch.device("cuda" if has_cuda else "mps" if has_mps else "cpu")
        if self.device.type == "cuda" and self.device.index is None:  # Tensors are on a device with an index.
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._file = None if path is None else Path(path)
        if self._file is not None and self._file.is_dir():
            self._file /= f"{datetime.now():%d-%b-%y-%H:%M:%S}-gpu_mem_track.txt"
        self._stream = stream
        self._population = Population()
        self._points: list[TrackPoint] = []
        self._modules: list[WatchedModule] = []

    def track(self, label: str | None = None) -> TrackPoint:
        """Write and return the changes since the last call; the first call lists all live tensors."""
        self._live_bytes()
        since, self._population.changes = self._population.changes, ([], [])
        brief = set.intersection(*({id(holding) for holding in holdings} for holdings in since))
        appeared, gone = (  # Without storages that both appeared and disappeared.
            _grouped(each for each in holdings if each.device == str(self.device) and id(each) not in brief)
            for holdings in since
        )
        caller = sys._getframe()
        while caller.f_code.co_filename in OWN_FILES and caller.f_back is not None:
            caller = caller.f_back
        storages, nbytes = self._population.live(str(self.device))
        point = TrackPoint(
            label=label or "",
            file=Path(caller.f_code.co_filename).name,
            line=caller.f_lineno,
            function=caller.f_code.co_name,
            time=f"{datetime.now():%d-%b-%y-%H:%M:%S}",
            appeared=appeared,
            gone=gone,
            storages=storages,
            tensor_bytes=nbytes,
            memory=_device_memory(self.device),
        )
        self._points.append(point)
        self._write(point)
        return point

    def clear_cache(self) -> None:
        """Collect garbage and release the caching allocator's unused memory to the device."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.device.type == "mps":
            torch.mps.empty_cache()

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[MemTracker]:
        """Inside the block, also record how much live tensors grow during each module's calls."""
        seen: dict[str, WatchedModule] = {}
        active: list[tuple[int, list[int]]] = []  # The bytes live before each call, and the growth of those inside it.

        def before(*_: Any) -> None:
            active.append((self._live_bytes(), []))

        def after(path: str, *_: Any) -> None:
            at_start, inner = active.pop()
            live = self._live_bytes()
            added = live - at_start
            if active:
                active[-1][1].append(added)
            module = seen[path]
            seen[path] = replace(
                module,
                calls=module.calls + 1,
                added_bytes=module.added_bytes + added,
                own_bytes=module.own_bytes + added - sum(inner),
                highest_bytes=max(module.highest_bytes, live),
            )

        with ExitStack() as hooks:
            for path, module in model.named_modules():
                seen[path] = WatchedModule(path, class_name(module), 0, 0, 0, 0)
                hooks.enter_context(module.register_forward_pre_hook(before, prepend=True))
                hooks.enter_context(module.register_forward_hook(partial(after, path), always_call=True))
            hooks.callback(lambda: self._modules.extend(module for module in seen.values() if module.calls))
            yield self

    def report(self) -> TrackReport:
        """Return all points so far as data, with every format and a plot."""
        return TrackReport(str(self.device), tuple(self._points), tuple(self._modules))

    def close(self) -> None:
        """Stop tracking, and forget the tensors so far."""
        self._population = Population()

    def __enter__(self) -> MemTracker:
        self.track()
        return self

    def __exit__(self, *raised: object) -> None:
        self.track()

    def _live_bytes(self) -> int:
        self._population.update()
        return self._population.live(str(self.device))[1]

    def _write(self, point: TrackPoint) -> None:
        """Write a point: a row of a table to a stream, the older tool's lines to a file."""
        is_first = len(self._points) == 1
        if self._file is None:
            stream = self._stream or sys.stdout
            name = f" ({torch.cuda.get_device_name(self.device)})" if self.device.type == "cuda" else ""
            head = table_head(f"{self.device}{name}") if is_first else ""
            stream.write(printable(head + table_row(len(self._points), point, self.detail), stream))
        else:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(point_text(point, self.detail, is_first))


def _device_memory(device: torch.device) -> DeviceMemory:
    """Return a device's figures; the peak is since the last call, which resets CUDA's peak statistics."""
    process = None
    if STATM.exists():
        import resource

        process = int(STATM.read_text().split()[1]) * resource.getpagesize()
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        return DeviceMemory(allocated, reserved, peak, total - free, process)
    if device.type == "mps":
        allocated, driver = torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()
        return DeviceMemory(allocated, driver, None, None, process)
    return DeviceMemory(process_bytes=process)


def _grouped(holdings: Iterable[Holding]) -> tuple[TensorGroup, ...]:
    """Group holdings by shape, dtype and class, largest group first; empty storages are left out."""
    alike: dict[tuple[tuple[int, ...], str, str], list[Holding]] = defaultdict(list)
    for holding in holdings:
        if holding.nbytes:
            alike[holding.shape, holding.dtype, holding.class_name].append(holding)
    groups = [
        TensorGroup(
            *key,
            count=len(members),
            nbytes=sum(each.nbytes for each in members),
            owners=tuple(dict.fromkeys(each.owner for each in members if each.owner)),
        )
        for key, members in alike.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.nbytes, group.shape, group.dtype)))
