"""MemTracker: the real memory of live tensors, line by line."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ContextDecorator, ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain, compress, repeat
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import nn

from ..data.arguments import names_cures
from ..formats.text import printable
from ..live import compat
from ..live.isolation import no_collection
from ..live.structures import SPARSE, dtype_name, inner_tensors
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
        self._population = Population(self.device)
        self._points: list[TrackPoint] = []
        self._modules: list[WatchedModule] = []

    def track(self, label: str | None = None) -> TrackPoint:
        """Write and return the changes since the last call; the first call lists all live tensors."""
        self._live_bytes()
        since, self._population.changes = self._population.changes, ([], [])
        brief = set.intersection(*({id(holding) for holding in holdings} for holdings in since))
        appeared, gone = (  # Without storages that both appeared and disappeared.
            _grouped(each for each in holdings if id(each) not in brief) for holdings in since
        )
        caller = sys._getframe()
        while caller.f_code.co_filename in OWN_FILES and caller.f_back is not None:
            caller = caller.f_back
        storages, nbytes = self._population.live()
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
        self._population = Population(self.device)

    def __enter__(self) -> MemTracker:
        self.track()
        return self

    def __exit__(self, *raised: object) -> None:
        self.track()

    def _live_bytes(self) -> int:
        self._population.update()
        return self._population.live()[1]

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


def _grouped(holdings: Iterable[TensorGroup]) -> tuple[TensorGroup, ...]:
    """Group holdings by shape, dtype and class, largest group first; empty storages are left out."""
    alike: dict[tuple[tuple[int, ...], str, str], list[TensorGroup]] = defaultdict(list)
    for holding in holdings:
        if holding.nbytes:
            alike[holding.shape, holding.dtype, holding.class_name].append(holding)
    groups = [
        TensorGroup(
            *key,
            count=len(members),
            nbytes=sum(each.nbytes for each in members),
            owners=tuple(dict.fromkeys(owner for each in members for owner in each.owners)),
        )
        for key, members in alike.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.nbytes, group.shape, group.dtype)))


PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)

WATCHED = frozenset((torch.Tensor, nn.Module, torch.optim.Optimizer))

YOUNG = (0, 1) if sys.version_info < (3, 14) else (0,)
"""The collector's generations of young objects: what survives a collection moves to the next one, and then is old."""


class Population:
    """All tensors that Python knows and their storages on a device, held by weak reference.

    One walk over Python's objects finds the tensors at the start. A tensor that appears later is young, unless the
    garbage collector has made it old since: after a collection that may have, the next update walks over all objects
    again. Storages and gradients of known tensors are reread at each update, since they may change without notice.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = str(device)
        self._lock = threading.RLock()
        self._tensors: dict[int, weakref.ref[torch.Tensor]] = {}
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], TensorGroup]] = {}
        """Each storage, described by the first tensor on it."""
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._names: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._numbers = (0, 0)
        self.changes: tuple[list[TensorGroup], list[TensorGroup]] = [], []
        """The storages that have appeared and disappeared; a resized one counts in both."""
        self._collections: list[int] | None = None
        """Collections so far that make objects old, as of the last update."""

    def live(self) -> tuple[int, int]:
        """Return the number of non-empty storages and their bytes, as of the last ``update``."""
        sizes = [holding.nbytes for _, holding in self._storages.values() if holding.nbytes]
        return len(sizes), sum(sizes)

    def update(self) -> None:
        """Add to the changes what has appeared and disappeared since the last call."""
        with self._lock:
            self._find()
            for tensor in (ref() for ref in self._tensors.values()):
                if tensor is None:
                    continue
                is_plain = _is_plain(tensor)
                for part in (tensor,) if is_plain else _parts(tensor):
                    self._record(part, tensor)
                if is_plain and tensor.is_leaf and (gradient := tensor.grad) is not None:
                    for part in _parts(gradient):
                        self._record(part, gradient, tensor)
            for key, (ref, holding) in list(self._storages.items()):
                storage = ref()
                nbytes = None if storage is None else storage.nbytes()
                if nbytes == holding.nbytes:
                    continue
                self.changes[1].append(holding)
                del self._storages[key]
                if nbytes is not None:
                    self._storages[key] = ref, replace(holding, nbytes=nbytes)
                    self.changes[0].append(self._storages[key][1])

    def _find(self) -> None:
        """Register the tensors, modules and optimizers that are new, and forget dead tensors."""
        with no_collection():  # None moves objects from a generation that is still to be read to one that is not.
            collections = [generation["collections"] for generation in gc.get_stats()[YOUNG[-1] :]]
            generations = YOUNG if collections == self._collections else (None,)
            self._collections = collections
            objects = [value for generation in generations for value in watched_objects(generation)]
        tensors = []
        for value in objects:
            if torch.Tensor in type(value).__mro__:
                tensors.append(value)
            else:
                (self._modules if isinstance(value, nn.Module) else self._optimizers).add(value)
        known = {key: ref for key, ref in self._tensors.items() if ref() is not None}
        # Leaves describe the storages that others share.
        for tensor in sorted(tensors, key=lambda each: not (_is_plain(each) and each.requires_grad and each.is_leaf)):
            known.setdefault(id(tensor), weakref.ref(tensor))
        self._tensors = known

    def _record(self, part: torch.Tensor, whole: torch.Tensor, leaf: torch.Tensor | None = None) -> None:
        """Register the storage of a part of a tensor; ``leaf`` is that of a gradient."""
        try:
            storage = part.untyped_storage()
        except (RuntimeError, NotImplementedError):  # A wrapper: its inner tensors are registered on their own.
            return
        ref, holding = self._storages.get(id(storage), (None, None))
        is_known = ref is not None and ref() is storage
        if is_known or str(storage.device) != self._device or nn.parameter.is_lazy(part):
            return
        if holding is not None:  # Its storage is gone, and this one has its place.
            self.changes[1].append(holding)
        owner = self._name(part) if leaf is None else f"gradient of {self._name(leaf) or 'a leaf'}"
        holding = TensorGroup(
            shape=tuple(part.shape),
            dtype=dtype_name(part.dtype),
            class_name=f"{type(whole).__module__}.{type(whole).__qualname__}",
            count=1,
            nbytes=storage.nbytes(),
            owners=(owner,) if owner else (),
        )
        self._storages[id(storage)] = weakref.ref(storage), holding
        self.changes[0].append(holding)

    def _name(self, tensor: torch.Tensor) -> str:
        """Return a tensor's name in its module or optimizer, all of which are reread if there are new ones; else ""."""
        numbers = len(self._modules), sum(len(optimizer.state) for optimizer in self._optimizers)
        if numbers != self._numbers or (isinstance(tensor, nn.Parameter) and id(tensor) not in self._names):
            self._numbers = numbers
            self._names = {}
            for owned, name in self._owned():
                self._names[id(owned)] = weakref.ref(owned), name
        ref, name = self._names.get(id(tensor), (None, ""))
        return name if ref is not None and ref() is tensor else ""

    def _owned(self) -> Iterator[tuple[torch.Tensor, str]]:
        """Yield the tensors of modules and optimizers, with their names."""
        inner = {id(child) for module in self._modules for child in module._modules.values()}
        for root in [module for module in self._modules if id(module) not in inner]:
            for path, tensor in chain(root.named_parameters(), root.named_buffers()):
                yield tensor, f"{type(root).__name__}.{path}"
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        _, of = self._names.get(id(parameter), (None, "a parameter"))
                        yield value, f"{type(optimizer).__name__} {key} of {of}"


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in compat.PLAIN and tensor.layout is torch.strided and not tensor.is_quantized


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the plain tensors that hold a tensor's memory: itself, a sparse one's values and indices, or scales."""
    if _is_plain(tensor):
        yield tensor
        return
    with compat.no_subclass_function():
        if tensor.layout in SPARSE:
            yield from inner_tensors(tensor)
        elif tensor.layout is torch.strided and not compat.is_wrapper_subclass(tensor):
            yield tensor
            if tensor.is_quantized and tensor.qscheme() in PER_CHANNEL:
                yield from (tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points())


def watched_objects(generation: int | None) -> list[Any]:
    """Return the tensors, modules and optimizers in a generation; None for all generations.

    No other thread may run while a list refers to all objects: a tuple that it is building could not grow ("bad
    argument to internal function"). Therefore one call in C requests a list, reads it and drops it: first for the
    classes, of which libraries define thousands, then twice side by side for the objects.
    """
    kinds = set(map(type, chain.from_iterable(map(gc.get_objects, (generation,)))))
    watched = {kind for kind in kinds if not WATCHED.isdisjoint(kind.__mro__)}
    twice = chain.from_iterable(map(repeat, map(gc.get_objects, (generation,)), (2,)))
    objects = chain.from_iterable(chain(twice, ((None,),)))  # At the end, both places ask for another list.
    return list(compress(objects, map(watched.__contains__, map(type, chain.from_iterable(twice)))))
