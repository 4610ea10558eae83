"""The data of an estimate: peak, reserved and device bytes, what they are made of, who holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, compress

from ..data.errors import InputError
from ..data.memory_records import LEAST_DOUBT, MemoryLog, RowMemory, StepInfo
from ..data.units import MIB, describe
from .allocator_options import AllocatorOptions
from .attribution import (
    TimelinePoint,
    allocator_for,
    at_edge,
    give_back,
    kinds_of,
    new_allocator,
    path_of,
    run_log,
    storage_kinds,
    timeline,
)
from .contexts import is_of_a_library
from .footprint import Footprint, call_memory, footprints, inclusive, parents
from .gpus import context_range, named_gpu, parse_memory


@dataclass(frozen=True, slots=True)
class ModuleMemory:
    """What a module holds at the peak, in bytes by kind, and what it adds to the whole step.

    ``inclusive_bytes`` and ``inclusive`` add the modules inside it.
    """

    path: str
    at_peak: tuple[tuple[str, int], ...]
    own_bytes: int
    inclusive_bytes: int
    own: Footprint
    inclusive: Footprint


@dataclass(frozen=True)
class Estimate:
    """The memory of a step. Every figure is in bytes; ``at_peak`` and the modules' own bytes add up to ``peak_bytes``.

    ``peak_bytes`` is what ``torch.cuda.max_memory_allocated`` would say, ``reserved_bytes`` what the caching allocator
    has taken from the device, ``steady_bytes`` what is left between steps. ``outside_bytes`` is what no module owns at
    the peak (inputs, the loss, what the optimizer works with); ``by_module`` has it in the root. ``unknown`` names the
    operators whose scratch memory no rule models, with how often each ran.
    """

    peak_bytes: int
    reserved_bytes: int
    steady_bytes: int
    peak_phase: str
    peak_location: str
    peak_operator: str
    at_peak: Mapping[str, int]
    by_module: tuple[ModuleMemory, ...]
    outside_bytes: int
    phase_peaks: Mapping[str, int]
    unknown: tuple[tuple[str, int], ...]
    info: StepInfo
    backend: str
    options: AllocatorOptions
    log: MemoryLog

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was taken for sizes and values that only data tell, and where: from one real forward, or the most."""
        return self.log.assumptions

    @property
    def mult_adds(self) -> Mapping[str, int] | None:
        """Multiply-adds of the last step by phase: "forward" (with the loss), "backward" and "optimizer".

        None for a measured step. Operators without a formula are in ``log.uncounted``; with any, the counts are
        lower bounds.
        """
        if self.log.mult_adds is None:
            return None
        return {phase: dict(self.log.mult_adds).get(phase, 0) for phase in ("forward", "backward", "optimizer")}

    @property
    def total_train_mult_adds(self) -> int | None:
        """Multiply-adds of a whole training step; None for inference and for a measured step."""
        done = self.mult_adds
        return None if done is None or self.info.mode != "train" else sum(done.values())

    @property
    def requested_bytes(self) -> int:
        """What tensors and kernels asked for at the peak, which the allocator's blocks round up to ``peak_bytes``."""
        at_peak = run_log(self.log, self.backend, self.options).at_peak
        return sum(self.log.storages[storage].nbytes for storage in at_peak)

    @property
    def device_bytes(self) -> tuple[int, int]:
        """Reserved bytes and the CUDA context: the least and the most that one takes, on the card where it is known.

        A rank of many has NCCL's buffers beside them, for each group of processes that it sends to.
        """
        is_cuda = self.backend == "cuda"
        low, high = context_range(self.info.gpu or 0, uses_libraries(self.log)) if is_cuda else (0, 0)
        least, most = communicator_range(self.log, self.backend)
        return self.reserved_bytes + low + least, self.reserved_bytes + high + most

    @property
    def peak_range(self) -> tuple[int, int]:
        """The least and the most that ``peak_bytes`` may be, by the error bands of the rules for scratch memory.

        Both are ``peak_bytes`` where every rule is exact and no number of iterations is assumed. What ``unknown`` names
        opens the range upwards: by the most that each such operator may hold while it runs, and by a page at least.
        Where ``assumptions`` were guessed, it holds the peaks of other answers as well.
        """
        edges = self._edges(self.log, self.peak_bytes)
        for log in self.log.others:
            edges += self._edges(log, run_log(log, self.backend, self.options).peak_bytes)
        return min(edges), max(edges)

    def _edges(self, log: MemoryLog, peak: int) -> tuple[int, ...]:
        """The least and the most that the peak of a log may be.

        An optimizer whose iterations are assumed may keep what is a Python number here, such as its step, as a tensor.
        """
        is_assumed = any(storage.assumed for storage in log.storages)
        if not log.unknown and not is_assumed and not any(storage.band for storage in log.storages):
            return peak, peak
        low, high = (run_log(at_edge(log, sign), self.backend, self.options).peak_bytes for sign in (-1, 1))
        return min(low, peak), max(high, peak + (LEAST_DOUBT if log.unknown or is_assumed else 0))

    @property
    def timeline(self) -> tuple[TimelinePoint, ...]:
        """The live bytes by kind over the steps, a point for each operator that changed them."""
        return tuple(timeline(self.log, allocator_for(self.log, self.backend, self.options)))

    @property
    def by_call(self) -> tuple[tuple[str, RowMemory], ...]:
        """The calls of modules in the last step, in the order they began: path, bytes kept, bytes live at its end."""
        return tuple(call_memory(self.log, allocator_for(self.log, self.backend, self.options)))

    def fits(self, memory: int | str) -> bool:
        """Whether the step runs in so much memory: bytes, "24GiB", or a GPU's name; the context is taken off first.

        That is the most that one takes on the card named, or on the step's own, or else on any. The log is replayed
        under the limit, so that the allocator may give cached segments back before it fails, and a kernel does without
        the scratch memory that it can spare. Raises :class:`InputError` for a text that is neither, and for a card
        where the step is not on CUDA.
        """
        return log_fits(self.log, self.backend, self.options, memory, self.info.gpu)


def build_estimate(log: MemoryLog, info: StepInfo, backend: str, options: AllocatorOptions) -> Estimate:
    """A log explained: replayed by the allocator of its device, its peak by kind and by module."""
    done = run_log(log, backend, options)
    kinds = storage_kinds(log)
    moment = log.moments[done.peak_moment]
    at_peak = dict.fromkeys(kinds_of(log), 0)
    for storage, nbytes in done.at_peak.items():
        at_peak[kinds[storage]] += nbytes
    return Estimate(
        peak_bytes=done.peak_bytes,
        reserved_bytes=done.peak_reserved_bytes,
        steady_bytes=done.final_bytes,
        peak_phase=moment.phase,
        peak_location=path_of(log, moment.module),
        peak_operator=moment.operator,
        at_peak=at_peak,
        by_module=_by_module(log, kinds, done.at_peak),
        outside_bytes=sum(nbytes for storage, nbytes in done.at_peak.items() if log.storages[storage].owner < 0),
        phase_peaks=dict(done.phase_peaks),
        unknown=log.unknown,
        info=info,
        backend=backend,
        options=options,
        log=log,
    )


def log_fits(log: MemoryLog, backend: str, options: AllocatorOptions, memory: int | str, gpu: str = "") -> bool:
    """Whether a log runs in so much memory, the most that a context may take being taken off.

    Where there is no memory left for a kernel's scratch, it does with less if it can.
    """
    _, outside = communicator_range(log, backend)
    room = room_for_tensors(memory, backend, uses_libraries(log), gpu) - outside
    allocator = new_allocator(backend, options, room)
    spared: set[int] = set()
    for _, storage, nbytes in log.events:
        stream = log.stream(storage)
        if storage in spared:
            spared.remove(storage)
        elif not nbytes:
            give_back(allocator, log, storage)
        elif allocator.allocate(storage, nbytes, stream):
            lesser = log.storages[storage].lesser
            taken = next((size for size in lesser if not size or not allocator.allocate(storage, size, stream)), None)
            if taken is None:
                return False
            if not taken:
                spared.add(storage)
    return True


COMMUNICATOR_BYTES = (512 * MIB, 717 * MIB)
"""What NCCL takes of a device for one communicator, outside torch's allocator: the least and the most reported.

Source: NVIDIA/nccl issue 964 (688 MB on 3 to 4 A100 with NVLink; 0.5 to 0.7 GiB elsewhere).
"""


def communicator_range(log: MemoryLog, backend: str) -> tuple[int, int]:
    """The least and the most bytes of NCCL's buffers."""
    low, high = COMMUNICATOR_BYTES if backend == "cuda" else (0, 0)
    return log.communicators * low, log.communicators * high


def uses_libraries(log: MemoryLog) -> bool:
    """Whether a step loads kernels of cuBLAS or cuDNN."""
    return any(is_of_a_library(moment.operator) for moment in log.moments)


def room_for_tensors(memory: int | str, backend: str, with_libraries: bool = True, gpu: str = "") -> int:
    """What the allocator gets of so much memory: all but the most that a CUDA context may take.

    Raises :class:`InputError` for a card where the step is not on CUDA.
    """
    card = named_gpu(memory)
    if card is not None and backend != "cuda":
        raise InputError(
            f"memory is {describe(memory)}, a card, and the step is one on the {backend.upper()}; accepted: bytes, or "
            f"an estimate with gpu={describe(card.name)}"
        )
    return parse_memory(memory) - (context_range(memory, with_libraries, gpu)[1] if backend == "cuda" else 0)


def least(log: MemoryLog) -> MemoryLog:
    """A log without the scratch memory that kernels can spare."""
    fewest = {n: storage.lesser[-1] for n, storage in enumerate(log.storages) if storage.lesser}
    events = [(moment, n, nbytes and fewest.get(n, nbytes)) for moment, n, nbytes in log.events]
    kept = [fewest.get(storage, 1) > 0 for _, storage, _ in events]
    before = [0, *accumulate(kept)]
    calls = tuple(replace(call, start=before[call.start], stop=before[call.stop]) for call in log.calls)
    doubts = tuple(replace(doubt, event=before[doubt.event]) for doubt in log.doubts)
    return replace(log, events=tuple(compress(events, kept)), calls=calls, doubts=doubts)


def _by_module(log: MemoryLog, kinds: tuple[str, ...], live: Mapping[int, int]) -> tuple[ModuleMemory, ...]:
    """The bytes of the peak by owner; what no module owns stands with the root."""
    own: dict[int, dict[str, int]] = {}
    for storage, nbytes in live.items():
        owner = max(0, log.storages[storage].owner)
        held = own.setdefault(owner, {})
        held[kinds[storage]] = held.get(kinds[storage], 0) + nbytes
    sums = [sum(own.get(index, {}).values()) for index in range(len(log.module_paths))]
    total = list(sums)
    for index, parent in reversed(list(enumerate(parents(log.module_paths)))):
        if index:
            total[parent] += total[index]
    made = footprints(log)
    with_inner = inclusive(log.module_paths, made)
    return tuple(
        ModuleMemory(path, tuple(sorted(own.get(i, {}).items())), sums[i], total[i], made[i], with_inner[i])
        for i, path in enumerate(log.module_paths)
    )
