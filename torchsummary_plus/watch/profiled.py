"""A profile of real steps with marks -> a memory log like that of fake steps.

The profile starts and ends without kineto's messages on standard error. Memory that a library frees without a report to
it, as QNNPACK's allocator does, is added (c10/core/CPUAllocator.cpp, ``DefaultMobileCPUAllocator``).
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch.autograd.profiler import profile

from ..data.errors import UnsupportedError
from ..data.memory_records import MemoryLog, StorageSpec, highest, without
from ..data.units import SMALL_REQUEST
from ..live import compat
from ..live.isolation import safe_point
from ..live.structures import all_tensors
from ..live.weights import all_stored
from ..table.forward import Frame
from ..trace.values import OUTSIDE
from .recording import Account, Recording

SIGN = "torchsummary_plus "

STOP = "stop"
"""Name of the marks at the end of the steps and of the collection that follows."""


class Marks(Account):
    """Writes marks, which a :class:`ProfileReader` reads, for phases, module calls and kinds of tensors.

    A mark is an empty ``record_function`` whose name is its content.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.existing: dict[int, int] = {}
        """The bytes of each storage from before the steps, by address."""
        self.if_used: set[int] = set()
        """Those that count only if the steps use them."""
        self._followed: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.released: set[int] = set()
        """The addresses of earlier storages that the steps released."""
        self.in_threads: set[int] = set()
        """Modules called in threads that the model starts; the profiler records none of their operators."""

    def enter(self, phase: str, step: int) -> None:
        """Mark the beginning of a phase."""
        self._note_resized()
        super().enter(phase, step)
        write("enter", phase, step)

    def classify(self, tensors: Iterable[torch.Tensor], kind: str, owner: int = OUTSIDE) -> None:
        """Mark the kind of existing tensors; of those from before the steps, also the release.

        A profiler reports the release only of those that it saw allocated.
        """
        found = _storages(tensors, self.device)
        write("name", kind, owner, [*found])
        if self.phase == "setup":
            self.existing |= {address: storage.nbytes() for address, storage in found.items()}
            for address, storage in found.items():
                self._followed[address] = weakref.ref(storage, partial(self._release, address))

    def record_if_used(self, holding: Any) -> None:
        """Mark the kind of a tensor that counts only if the steps use it."""
        self.if_used |= _storages([holding.tensor], self.device).keys() - self.existing.keys()
        super().record_if_used(holding)

    def _release(self, address: int, _: object) -> None:
        self.released.add(address)
        write("free", address)

    def _note_resized(self) -> None:
        """Mark the old and new addresses of earlier storages that an operator resized."""
        resized = [
            (address, storage.data_ptr())
            for address, reference in self._followed.items()
            if (storage := reference()) is not None and storage.data_ptr() != address
        ]
        for address, present in resized:
            del self._followed[address]
            self.released.add(address)
            write("resized", address, present)

    def stop(self) -> None:
        """Mark the end of the steps, and that of a collection of the garbage that they left."""
        self._followed.clear()
        write(STOP)
        gc.collect()
        write(STOP)

    def begin(self, frame: Frame) -> None:
        """Mark the beginning of a module's call."""
        super().begin(frame)
        if frame.module is not None:
            if not compat.profiler_enabled():
                self.in_threads.add(frame.module)
            write("begin_call", frame.module, compat.sequence_number())

    def end(self, frame: Frame, output: Any) -> None:
        """Mark the end of a module's call, with its outputs."""
        super().end(frame, output)
        self._note_resized()
        if frame.module is not None:
            write("end_call", frame.module, compat.sequence_number(), [*_storages(all_tensors(output), self.device)])


def write(*mark: Any) -> None:
    """Write a mark among the profiler's events."""
    with torch.profiler.record_function(SIGN + json.dumps(mark)):
        pass


def _storages(tensors: Iterable[torch.Tensor], device: torch.device) -> dict[int, torch.UntypedStorage]:
    """Return tensors' storages on a kind of device by their addresses."""
    here = (tensor.untyped_storage() for tensor in all_stored(tensors) if tensor.device.type == device.type)
    return {storage.data_ptr(): storage for storage in here}


ENGINE = "autograd::engine::evaluate_function"
"""Prefix of the events of autograd nodes, before the node's name."""


@dataclass(frozen=True)
class Change:
    """Bytes allocated at an address, negative for a free; or a mark.

    ``nbytes`` is the block's size, ``requested`` the requested bytes if fewer (0: the same). ``names`` are the
    enclosing operators, outermost first, ``calls`` their numbers; ``node`` is the sequence number of the enclosing
    autograd node (-1: none). For a change that is not placed, the surroundings are unknown.
    """

    time_ns: int
    address: int
    nbytes: int
    names: tuple[str, ...]
    calls: tuple[int, ...]
    node: int = -1
    mark: tuple[Any, ...] = ()
    requested: int = 0
    is_placed: bool = True


def changes(profile: QuietProfile, device: str) -> tuple[list[Change], set[int]]:
    """Return every allocation and free on a kind of device, and every mark, in order.

    With a profile of arguments, return also the addresses of all storages that operators received.
    """
    recorded: list[Change] = []
    received: set[int] = set()
    waiting: list[tuple[Any, tuple[str, ...], tuple[int, ...], int]]
    waiting = [(root, (), (), -1) for root in reversed(profile.roots())]
    count = 0
    while waiting:
        safe_point()
        event, names, calls, node = waiting.pop()
        fields = event.extra_fields
        if event.tag == compat.EventType.Allocation:
            if fields.device.type == device:
                recorded.append(Change(event.start_time_ns, fields.ptr, fields.alloc_size, names, calls, node))
            continue
        if event.name.startswith(SIGN):
            mark = tuple(json.loads(event.name.removeprefix(SIGN)))
            recorded.append(Change(event.start_time_ns, 0, 0, names, calls, node, mark))
            continue
        if event.tag == compat.EventType.TorchOp:
            node = fields.sequence_number if event.name.startswith(ENGINE) else node
            for spec in fields.inputs:
                arguments = spec if isinstance(spec, list) else [spec]
                received.update(getattr(argument, "storage_data_ptr", None) or 0 for argument in arguments)
        count += 1
        inside = (*names, event.name), (*calls, count), node
        waiting.extend((child, *inside) for child in reversed(event.children))
    return sorted(recorded, key=lambda change: change.time_ns), received


def with_history(changes: Sequence[Change], happened: list[tuple[int, int, int]]) -> list[Change]:
    """Add the requested bytes, and the frees that the profile left out, from the allocator's history, in order.

    torch's profiler reports no CUDA frees outside operators, such as that of an output Python drops.
    """
    result = list(changes)
    waiting: dict[int, deque[int]] = {}
    for place, change in enumerate(changes):
        if not change.mark:
            waiting.setdefault(change.address, deque()).append(place)
    for time_ns, address, nbytes in happened:
        places = waiting.get(address)
        if places and (result[places[0]].nbytes > 0) == (nbytes > 0):
            place = places.popleft()
            if nbytes > 0:
                result[place] = replace(result[place], requested=min(nbytes, result[place].nbytes))
        elif nbytes < 0:
            result.append(Change(time_ns, address, nbytes, (), (), is_placed=False))
    return sorted(result, key=lambda change: change.time_ns)


@cache
def composites() -> frozenset[str]:
    """Return the operators that consist of others on every device, so that a dispatch mode sees only those."""
    listed = compat.composite_registrations
    composite, own = (
        {name.partition(".")[0] for key in keys for name in listed(key)}
        for keys in (("CompositeImplicitAutograd",), ("CPU", "CompositeExplicitAutograd"))
    )
    return frozenset(composite - own | {"aten::linear"})


@cache
def depth_of(names: tuple[str, ...]) -> int:
    """Return the index, among enclosing names, of the operator that a dispatch mode would see; -1 without one."""
    for depth, name in enumerate(names):
        outside = name.startswith(("autograd::", "torch::autograd::", "profiler::"))
        if "::" in name and not outside and name not in composites():
            return depth
    return -1


class ProfileReader(Recording):
    """Records changes, by address; ``existing`` lists earlier storages: address, bytes, block's bytes."""

    def __init__(self, existing: Iterable[tuple[int, int, int]]) -> None:
        super().__init__()
        self.reused: set[int] = set()
        """Storages freed unseen: their memory was allocated again before a free was reported."""
        self._open: list[tuple[int, int, tuple[int, ...]]] = []
        """The modules' active calls: each one's number among the forwards' calls (-1: none), and the events around it.

        When these events end, so does the call, since an exception may have left it.
        """
        self._maker: dict[int, int] = {}
        self._present = -1
        self._around: tuple[int, ...] = ()
        for address, nbytes, block in existing:
            self._take(address, block, nbytes, OUTSIDE)
        self._earlier = dict(self.live)
        """Earlier storages by address."""

    def read(self, changes: Iterable[Change]) -> None:
        """Process changes in order, up to the mark that ends the steps, or the collection after them."""
        for change in changes:
            safe_point()
            if change.is_placed:
                self._around = change.calls
            while self._open and self._open[-1][2] != self._around[: len(self._open[-1][2])]:
                self._open.pop()
            if not change.mark:
                self._change(change)
            elif change.mark[0] == STOP:
                return
            else:
                getattr(self, change.mark[0])(*change.mark[1:])

    def log(self, module_paths: tuple[str, ...], assumptions: tuple[str, ...] = (), **fields: Any) -> MemoryLog:
        """Return the recording as plain data, whose bytes are those of blocks."""
        return super().log(module_paths, assumptions, in_blocks=True, **fields)

    def peak_bytes(self) -> int:
        """Return the events' peak in bytes of blocks."""
        return highest(self.events)[0]

    def _change(self, change: Change) -> None:
        depth = depth_of(change.names)
        operator = change.names[depth] if depth >= 0 else ""
        call = change.calls[depth] if depth >= 0 else -1
        owner = self._open[-1][0] if self._open else OUTSIDE
        if not self._open and self.phase == "backward" and change.node >= 0:
            owner = self.node_modules.of(change.node)
        if call != self._present or call < 0 or self.moments[-1].phase != self.phase:
            self.begin_moment(operator, owner)
            self._present = call
        if change.nbytes > 0:
            self._maker[self._take(change.address, change.nbytes, change.requested or change.nbytes, owner)] = call
            return
        number = self.free(change.address)
        if number is not None and call >= 0 and self._maker.get(number) == call:
            self.change(number, kind="workspace")

    def _take(self, address: int, block: int, nbytes: int, owner: int) -> int:
        number = len(self.storages)
        self.storages.append(StorageSpec(nbytes, None, owner))
        if block:
            if address in self.live:
                self.reused.add(self.live[address])
                self.free(address)
            self.live[address] = number
            self.event(number, block)
        return number

    def enter(self, phase: str, step: int) -> None:
        """Begin a phase of a step."""
        self._present = -1
        super().enter(phase, step)

    def name(self, kind: str, owner: int, addresses: list[int]) -> None:
        """Set the kind of the storages at some addresses."""
        for address in addresses:
            if address in self.live:
                self.hold(self.live[address], kind, owner)

    def resized(self, address: int, present: int) -> None:
        """Free the memory that an earlier storage had, unless another one lies there since; it has a new block."""
        number = self._earlier.pop(address, None)
        if number is None:
            return
        if self.live.get(address) == number:
            self.free(address)
        self.reused.discard(number)
        if present in self.live:
            before = self.storages[number]
            self.change(self.live[present], kind=before.kind, owner=before.owner)

    def begin_call(self, module: int, node: int) -> None:
        """Begin a module's call."""
        self.node_modules.turn(node, module)
        outer = self._open[-1][1] if self._open else -1
        call = self.open_call(module, outer) if self.phase == "forward" else -1
        self._open.append((module, call, self._around))

    def end_call(self, module: int, node: int, addresses: list[int]) -> None:
        """End a module's call, and those inside it that an exception left."""
        while self._open:
            ended, call, _ = self._open.pop()
            if ended == module:
                if call >= 0:
                    self.close_call(call, addresses)
                break
        self.node_modules.turn(node, self._open[-1][0] if self._open else OUTSIDE)


NOTE = b"USDT:"
"""Prefix of kineto's lines for tracing tools (libkineto/src/SyncActivityProfilerHandler.cpp)."""


class QuietProfile:
    """The memory events of the CPU, and of a CUDA device if asked; other lines still reach standard error.

    ``torch.profiler.profile``, which wraps torch's class, imports its compiler stack (seconds).
    """

    def __init__(self, device: str = "cpu", with_arguments: bool = False) -> None:
        cuda = "cuda" if device == "cuda" else None
        self._profile: Any = profile(
            use_device=cuda, profile_memory=True, use_kineto=True, record_shapes=with_arguments
        )

    def __enter__(self) -> QuietProfile:
        with without_notes():
            self._profile.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        with without_notes():
            self._profile.__exit__(None, None, None)

    def roots(self) -> list[Any]:
        """Return the outermost events, each with its children."""
        results = self._profile.kineto_results
        return [] if results is None else list(results.experimental_event_tree())


def alone() -> AbstractContextManager[None]:
    """Refuse other profilers inside this context: torch would end the active profile silently for another's start."""

    def refuse(*_: Any, **__: Any) -> None:
        raise UnsupportedError(
            "the step starts one of torch's profilers, but is itself measured by one, and torch runs only one at a "
            "time; remove the profiler from the step (estimate_memory needs none, unless it has to measure the step)"
        )

    return compat.replaced(dict.fromkeys(compat.profiler_starts, refuse))


@contextmanager
def without_notes() -> Iterator[None]:
    """Hold back the process's standard error, and write it on exit without kineto's messages."""
    try:
        stderr = os.dup(2)
    except OSError:  # Standard error is closed, as in a service.
        yield
        return
    with tempfile.TemporaryFile() as held_back:
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held_back.seek(0)
            for line in held_back:
                if not line.startswith(NOTE):
                    os.write(2, line)


def read_log(
    profile: QuietProfile,
    marks: Marks,
    history: AllocatorHistory,
    module_paths: tuple[str, ...],
    assumptions: Callable[[Sequence[str]], tuple[str, ...]],
    packed_bytes: int,
) -> tuple[MemoryLog, set[int]]:
    """Return the log of profiled steps, with ``assumptions`` and those about the profile, and the garbage they left."""
    changed, received = changes(profile, marks.device.type)
    unused = marks.if_used - received - marks.released
    existing = [item for item in marks.existing.items() if item[0] not in unused]
    before = [(address, nbytes, history.blocks.get(address, nbytes)) for address, nbytes in existing]
    later = iter(with_history(changed, history.happened))
    reader = ProfileReader(before)
    reader.read(later)
    missed = _missed(reader, before, history)
    if paths := [module_paths[index] for index in sorted(marks.in_threads)]:
        names = ", ".join([*paths[:3], *["..."] * (len(paths) > 3)])
        why = "called in threads that the model starts, whose allocations torch's profiler does not record"
        missed += (f"{names}: {why}; the measured peak may be too low",)
    log = with_unseen_frees(reader.log(module_paths, assumptions(missed)), reader.reused, packed_bytes)
    left = set(reader.live.values())
    reader.read(later)
    return log, left.difference(reader.live.values())


def _missed(
    reader: ProfileReader, before: Iterable[tuple[int, int, int]], history: AllocatorHistory
) -> tuple[str, ...]:
    """Return a note if the allocator's own peak differs from the profile's."""
    if history.peak_bytes is None:
        return ()
    own = history.peak_bytes + sum(block for _, _, block in before)
    seen = reader.peak_bytes()
    return () if own == seen else (f"the allocator reports a peak of {own:,} bytes, but the profile shows {seen:,}",)


def with_unseen_frees(log: MemoryLog, reused: Collection[int], packed_bytes: int) -> MemoryLog:
    """Widen a log's range if frees were not reported: the storages concerned may all be live, or all be freed.

    ``reused`` are storages whose memory was allocated again before a free was reported; the library may also have freed
    every other storage that operators left. ``packed_bytes`` were packed before the steps by the same allocator.
    """
    left: set[int] = set()  # The storages of no known kind that the steps' operators allocate and do not free.
    for moment, number, nbytes in log.events:
        if not nbytes:
            left.discard(number)
        elif log.moments[moment].operator and log.storages[number].kind is None:
            left.add(number)
    if not reused and not (left and torch.backends.quantized.engine == "qnnpack"):
        return log
    unseen = left | set(reused)
    events = tuple(event for event in log.events if event[2] or event[1] not in reused)
    before = (0, len(log.storages), packed_bytes)
    storages = (*log.storages, StorageSpec(packed_bytes, "workspace", OUTSIDE))
    most = replace(log, events=(before, *events) if packed_bytes else events, storages=storages, calls=(), doubts=())
    nbytes = sum(log.storages[number].nbytes for number in unseen)
    note = f"torch's profiler did not record the release of up to {nbytes:,} bytes of the steps"
    return replace(log, others=(*log.others, without(log, unseen), most), assumptions=(*log.assumptions, note))


Happened = list[tuple[int, int, int]]
"""Every allocation and free in order: time in nanoseconds, address, bytes (negative for a free)."""


def happened(trace: Iterable[Mapping[str, Any]]) -> Happened:
    """Return the allocations and frees in a trace of ``torch.cuda.memory._snapshot()``.

    A free counts from its request, as in ``allocated_bytes``: c10/cuda/CUDACachingAllocator.cpp.

    >>> happened([{"action": "free_requested", "addr": 64, "size": 8, "time_us": 5}, {"action": "free_completed"}])
    [(5000, 64, -8)]
    """
    signs = {"alloc": 1, "free_requested": -1}
    signed = ((signs[entry["action"]], entry) for entry in trace if entry["action"] in signs)
    return [(entry["time_us"] * 1000, entry["addr"], sign * entry["size"]) for sign, entry in signed]


class AllocatorHistory:
    """Records the history of a CUDA device's allocator while open; on other devices, does nothing.

    A recording that the user has started continues. On exit, ``happened`` and ``peak_bytes`` are set, the second as the
    most allocated above the initial level; ``blocks`` are those initially in use.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.happened: Happened = []
        self.blocks: dict[int, int] = {}
        self.peak_bytes: int | None = None
        self._is_ours = False
        self._before = self._start_bytes = 0

    def __enter__(self) -> AllocatorHistory:
        if self.device.type == "cuda":
            self._is_ours = not compat.history_enabled()
            if self._is_ours:
                compat.record_history("all", context=None, stacks="python", device=self.device, clear_history=True)
            snapshot = compat.allocator_snapshot(self.device)
            blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
            self.blocks = {b["address"]: b["size"] for b in blocks if b["state"] == "active_allocated"}
            self._before = len(snapshot["device_traces"][index_of(self.device)])
            self._start_bytes = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        return self

    def __exit__(self, *raised: object) -> None:
        if self.device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(self.device) - self._start_bytes
            entries = compat.allocator_snapshot(self.device)["device_traces"][index_of(self.device)][self._before :]
            self.happened = happened(entries)
            if self._is_ours:
                compat.record_history(None, device=self.device)


def index_of(device: torch.device) -> int:
    """Return the number of a CUDA device."""
    return torch.cuda.current_device() if device.index is None else device.index


@contextmanager
def free_blocks_taken(device: torch.device) -> Iterator[None]:
    """Take the free blocks of a CUDA device's cached segments, so that what runs inside gets its own segments.

    Does nothing on other devices, and with an allocator other than torch's own.
    """
    fillers: list[torch.Tensor] = []
    if device.type == "cuda" and torch.cuda.get_allocator_backend() == "native":
        reserved = torch.cuda.memory_reserved(device)
        stream, pool = torch.cuda.current_stream(device).cuda_stream, (0, 0)
        segments = [
            segment
            for segment in torch.cuda.memory_snapshot()
            if segment["device"] == index_of(device)
            and (segment["stream"], tuple(segment["segment_pool_id"])) == (stream, pool)
        ]
        for nbytes in requests_that_fill(segments):
            fillers.append(torch.empty(nbytes, dtype=torch.uint8, device=device))
            if torch.cuda.memory_reserved(device) > reserved:  # the allocator's options round this request up
                fillers.pop()
                torch.cuda.empty_cache()
    try:
        yield
    finally:
        fillers.clear()


def requests_that_fill(segments: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the requests in bytes, in order, that take every free block; the allocator gives the smallest that fits.

    A free block of the small pool may be larger than what it serves, and takes several requests. Large blocks of at
    most 1 MiB serve nothing.

    >>> def segment(kind, *sizes):
    ...     return {"segment_type": kind, "blocks": [{"state": "inactive", "size": size} for size in sizes]}
    >>> requests_that_fill([segment("small", 512, 1536 * 1024), segment("large", 3 << 20, 4096)])
    [512, 1048576, 524288, 3145728]
    """
    free = [
        (block["size"], segment["segment_type"])
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    requests: list[int] = []
    for size, kind in sorted(free):
        if kind == "large":
            requests.extend([size] if size > SMALL_REQUEST else [])
        else:
            requests.extend(min(SMALL_REQUEST, size - start) for start in range(0, size, SMALL_REQUEST))
    return requests
