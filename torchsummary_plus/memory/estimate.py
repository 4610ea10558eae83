"""An estimate's data: peak, reserved and device bytes, by kind and by module, and whether the step fits in a memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, compress

from ..data.answers import FREES_CACHE, OF_RANK
from ..data.errors import InputError
from ..data.memory_records import (
    COMPILED,
    COMPILED_ON_CUDA,
    LEAST_DOUBT,
    SCRIPT,
    SECOND_ORDER,
    MemoryLog,
    RowMemory,
    StepInfo,
    highest,
)
from ..data.units import MIB, describe, in_common_unit
from ..live.compat import since
from .allocator import AllocatorOptions
from .attribution import (
    Footprint,
    Replayed,
    TimelinePoint,
    allocator_for,
    at_edge,
    call_memory,
    footprints,
    give_back,
    held_back,
    inclusive,
    kinds_of,
    last_cache,
    new_allocator,
    path_of,
    replay,
    storage_kinds,
    timeline,
)
from .gpus import context_range, named_gpu, other_device, parse_memory

ORDER_BAND = 0.25
"""How far an unknown order of gradients of gradients on CUDA may move a peak, as a share of what autograd holds there.

Random programs on the no-op runtime (``benchmarks.cuda.programs``) were up to 23 % of it off.
"""

RESERVED_BAND = 0.12
"""How far the reserved bytes of a step predicted as compiled on CUDA may be below the estimate.

Up to 0.1 was measured where cuDNN's workspaces come from a table (ResNet-18 on a T4), none elsewhere.
"""
TIMED_BYTES = 128 << 20
"""The most that torch's timing of kernels leaves reserved; 100 MiB was measured."""

BY_AGE = since("2.13")
"""Whether the running torch reuses memory by the age of segments; earlier, by addresses, which the driver chooses."""
ADDRESS_BAND = 0.15
"""How far reserved bytes may be off if it does not, as a share of them: up to 0.12 was measured."""

RANK_BAND = 0.1
"""How far the peak of one rank on CUDA may be off, as a share of it; its reserved bytes may be off by as much.

No rank was measured for this package. Published peaks and reserved bytes of programs that are known in full, without
torch's compiler, are up to 7 % off (``benchmarks.published.ranks``), others up to 10 %.
"""

OWN_FORWARD, NO_MODULE = "the model's own forward", "the inputs, loss and optimizer"
"""What holds memory besides the modules inside a model."""

OF_AUTOGRAD = ("saved_activations", "temporaries", "gradients")
"""The kinds whose lifetimes depend on that order."""

OF_COMPILER = ("saved_activations", "temporaries", "workspace")
"""The kinds that torch's compiler may keep longer, fuse away or recompute."""


@dataclass(frozen=True, slots=True)
class ModuleMemory:
    """A module's bytes at the peak, by kind, and its footprint in the whole step.

    ``inclusive_bytes`` and ``inclusive`` include the modules inside it.
    """

    path: str
    at_peak: tuple[tuple[str, int], ...]
    own_bytes: int
    inclusive_bytes: int
    own: Footprint
    inclusive: Footprint


@dataclass(frozen=True)
class Estimate:
    """The memory of a step, in bytes; ``at_peak`` and the modules' own bytes each add up to ``peak_bytes``.

    ``peak_bytes`` corresponds to ``torch.cuda.max_memory_allocated``, ``reserved_bytes`` to the memory the caching
    allocator has taken from the device; ``steady_bytes`` remains between steps. ``outside_bytes`` belongs to no module
    at the peak (inputs, the loss, the optimizer's temporaries) and is part of the root in ``by_module``. ``unknown``
    lists operators without a measured scratch-memory rule, with the number of their calls.
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
    kv_cache_bytes: int = 0
    """In inference, the cache of keys and values, or recurrent states, at the end of the last forward."""

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """How data-dependent sizes and values were determined, and where: from a real run, or as a maximum.

        The last lines name the operators whose rules have an error band.
        """
        bands = [(name, band) for name, band in self.log.bands if name not in dict(self.log.unknown)]
        gpu = self.info.gpu
        most = self.reserved_bytes + bytes_outside(self.log, self.backend, gpu)[1]
        frees_cache = gpu and most > parse_memory(gpu) and self.fits()
        return (
            *self.log.assumptions,
            *((_OF_RANK,) if self._rank_doubt else ()),
            *((_FREES_CACHE,) if frees_cache else ()),
            *(f"{name}: scratch memory known to within {band:.0%}" for name, band in bands),
        )

    @property
    def mult_adds(self) -> Mapping[str, int] | None:
        """Multiply-adds of the last step by phase: "forward" (with the loss), "backward" and "optimizer".

        None for a measured step. ``log.uncounted`` lists operators without a formula; if there are any, the counts are
        lower bounds.
        """
        if self.log.mult_adds is None:
            return None
        return {phase: dict(self.log.mult_adds).get(phase, 0) for phase in ("forward", "backward", "optimizer")}

    @property
    def total_train_mult_adds(self) -> int | None:
        """Multiply-adds of a whole training step; None for inference and for a measured step."""
        counts = self.mult_adds
        return None if counts is None or self.info.mode != "train" else sum(counts.values())

    @property
    def holders(self) -> tuple[tuple[str, int], ...]:
        """The bytes that each module itself holds at the peak, by path, largest first.

        Two are no paths: ``OWN_FORWARD``, for the code of the model's own forward, and ``NO_MODULE``, for
        ``outside_bytes``.
        """
        root, *inner = self.by_module
        own = [(module.path, module.own_bytes) for module in inner]
        own += [(OWN_FORWARD, root.own_bytes - self.outside_bytes), (NO_MODULE, self.outside_bytes)]
        return tuple(sorted(own, key=lambda holder: -holder[1]))

    def _run(self, log: MemoryLog) -> Replayed:
        return replay(log, self.backend, self.options)

    @property
    def requested_bytes(self) -> int:
        """Bytes requested by tensors and kernels at the peak, which the allocator rounds up to ``peak_bytes``."""
        return sum(self.log.storages[storage].nbytes for storage in self._run(self.log).at_peak)

    @property
    def device_bytes(self) -> tuple[int, int]:
        """``reserved_range`` plus the CUDA context, as least and most; the GPU's own context if the GPU is known.

        One rank of many also has NCCL's buffers, for each process group it communicates in.
        """
        (least, most), (low, high) = self.reserved_range, bytes_outside(self.log, self.backend, self.info.gpu or 0)
        return least + low, most + high

    @property
    def reserved_range(self) -> tuple[int, int]:
        """The least and the most that ``reserved_bytes`` may be.

        They differ for one rank of many on CUDA and for compiled code, as far as those extend ``peak_range``,
        and before torch 2.13, unless segments are expandable, by ``ADDRESS_BAND``. The most includes memory that
        ``record_stream`` keeps from being used again until another stream is done with it.
        """
        doubt = self._compiler_doubt + self._rank_doubt
        least = most = self.reserved_bytes
        if COMPILED_ON_CUDA in self.log.assumptions:
            least, most = round((1 - RESERVED_BAND) * least), most + TIMED_BYTES + self.log.spread[1]
        if self.backend == "cuda" and not (BY_AGE or self.options.expandable_segments):
            doubt += round(ADDRESS_BAND * least)
        if any(storage.elsewhere for storage in self.log.storages):
            most = max(most, self._run(held_back(self.log)).peak_reserved_bytes)
        return max(0, least - doubt), most + doubt

    @property
    def _compiler_doubt(self) -> int:
        """The bytes by which code may need less or more compiled than its source: what autograd and kernels hold."""
        is_compiled = COMPILED in self.log.assumptions
        return sum(self.at_peak.get(kind, 0) for kind in OF_COMPILER) if is_compiled else 0

    @property
    def _rank_doubt(self) -> int:
        """The bytes by which one rank of many on CUDA may need less or more."""
        is_rank = self.backend == "cuda" and self.info.world_size > 1
        return round(RANK_BAND * self.peak_bytes) if is_rank else 0

    @property
    def peak_range(self) -> tuple[int, int]:
        """The least and the most that ``peak_bytes`` may be, by the error bands of the scratch-memory rules.

        Both equal ``peak_bytes`` if every rule is exact and no number of iterations is assumed. Operators in
        ``unknown`` extend the range upwards, by the most each may hold while it runs and by at least a page; gradients
        of gradients on CUDA in an unknown order extend it both ways, by ``ORDER_BAND``, and those of scripted functions
        downwards, by what autograd has saved at the peak and a page: their first calls save less.

        If ``assumptions`` were guessed, the range includes the peaks of other guesses; after few draws of random
        numbers, it is where 95 % of normally distributed peaks would lie. Compiled code that is estimated as its source
        extends it both ways, by all that autograd and kernels hold at the peak; so do matrix products that a GPU may
        pad, by the largest of them, and one rank of many on CUDA, by ``RANK_BAND``.
        """
        edges = self._edges(self.log, self.peak_bytes)
        for log in self.log.others:
            edges += self._edges(log, self._run(log).peak_bytes)
        doubt = self._compiler_doubt + self._rank_doubt
        below, above = self.log.spread
        return max(0, min(edges) - doubt - below), max(edges) + doubt + above

    def _edges(self, log: MemoryLog, peak: int) -> tuple[int, ...]:
        """Return the least and the most that a log's peak may be.

        An optimizer with assumed iterations may keep a tensor that is a Python number here, such as its step size, and
        holds its first loss during further ones only if there are any.
        """
        is_assumed = any(storage.assumed for storage in log.storages)
        if not log.unknown and not is_assumed and not any(storage.band for storage in log.storages):
            return peak, peak
        low, high = (self._run(at_edge(log, sign)).peak_bytes for sign in (-1, 1))
        lowest, most = min(low, high, peak), max(low, high, peak)
        is_split = self.backend != "cuda" or self.options.expandable_segments
        if not is_split and any(storage.band and storage.nbytes > MIB for storage in log.storages):
            # The rests that the allocator leaves in blocks, of at most 1 MiB in the large pool, count as allocated.
            # Scratch memory of another size makes it choose other blocks, so the rests at the peak may vanish, or take
            # twice as much; what is requested in any blocks is the least.
            at_peak = self._run(log).at_peak
            rests = max(MIB, sum(nbytes - log.storages[storage].nbytes for storage, nbytes in at_peak.items()))
            requested = replay(at_edge(log, -1), "cpu", self.options).peak_bytes
            lowest, most = min(lowest, max(lowest - rests, requested)), most + rests
        order, doubt, names = 0, LEAST_DOUBT if log.unknown or is_assumed else 0, dict(log.unknown)
        if SECOND_ORDER in names:
            order = round(ORDER_BAND * sum(self.at_peak.get(kind, 0) for kind in OF_AUTOGRAD))
        lowest -= LEAST_DOUBT if is_assumed else 0
        lowest -= LEAST_DOUBT + self.at_peak.get("saved_activations", 0) if SCRIPT in names else 0
        return max(0, lowest - order), max(most, peak + doubt) + order

    @property
    def timeline(self) -> tuple[TimelinePoint, ...]:
        """Live bytes by kind over the steps: one point per operator that changed them."""
        return tuple(timeline(self.log, allocator_for(self.log, self.backend, self.options)))

    @property
    def by_call(self) -> tuple[tuple[str, RowMemory], ...]:
        """The module calls of the last step, in the order they began: path, bytes kept, and bytes live at the end."""
        return tuple(call_memory(self.log, allocator_for(self.log, self.backend, self.options)))

    def fits(self, memory: int | float | str | None = None) -> Fit:
        """Return whether the step runs in ``memory``: bytes, "24GiB", or a device's name, less the context.

        The answer is true or false, and printed with what is left or missing. None means the GPU that the step was
        estimated for. The CUDA context counts at its maximum, for the GPU named,
        else the step's own, else any. The log is replayed under this limit: the allocator may return cached segments
        before it fails, and kernels do without optional scratch memory. For devices of AMD, Apple and Intel ("M2 Max
        32GB"), only tensors are counted, and a ``NotModelledWarning`` says so. Raises :class:`InputError` for any other
        text, for a GPU if the step does not run on CUDA, and for None if no GPU was named.
        """
        if memory is None and not self.info.gpu:
            raise InputError(
                "no GPU was named; accepted: fits('24GiB'), fits('RTX 4090'), or an estimate made with gpu="
            )
        memory = self.info.gpu if memory is None else memory
        fits = log_fits(self.log, self.backend, self.options, memory, self.info.gpu)
        other = other_device(memory)
        cure = "what_if(...) tries settings that need less" if self.backend == "cuda" else ""
        if self.info.batch_size > 1:  # One batch does not tell which one would fit.
            cure = "max_batch_size(...) finds the largest batch that fits"
        if other is not None:
            return Fit(fits, tensors_peak(self.log), other.usable_bytes, cure=cure)
        usable, needed = room_of_log(self.log, self.backend, memory, self.info.gpu), self.peak_bytes
        if needed > usable or not fits:
            needed = self._run(least(self.log)).peak_bytes
        return Fit(fits, needed, usable, 0 if needed < self.peak_bytes else self.peak_range[1], cure)


_OF_RANK = f"{OF_RANK}: compared only with published figures; ranges allow for {RANK_BAND:.0%} of the peak either way"
_FREES_CACHE = f"{FREES_CACHE} when memory runs out, which is slow"


def build_estimate(log: MemoryLog, info: StepInfo, backend: str, options: AllocatorOptions) -> Estimate:
    """Build an estimate: replay the log with its device's allocator, and attribute the peak to kinds and modules."""
    replayed = replay(log, backend, options)
    kinds = storage_kinds(log)
    moment = log.moments[replayed.peak_moment]
    at_peak, outside = dict.fromkeys(kinds_of(log), 0), 0
    own: list[dict[str, int]] = [{} for _ in log.module_paths]  # By module and kind; the root has what no module owns.
    for storage, nbytes in replayed.at_peak.items():
        kind, owner = kinds[storage], log.storages[storage].owner
        at_peak[kind] += nbytes
        outside += nbytes if owner < 0 else 0
        by_kind = own[max(0, owner)]
        by_kind[kind] = by_kind.get(kind, 0) + nbytes
    sums, of_step = [sum(by_kind.values()) for by_kind in own], footprints(log)
    total, with_inner = inclusive(log.module_paths, sums), inclusive(log.module_paths, of_step)
    by_module = tuple(
        ModuleMemory(path, tuple(sorted(own[i].items())), sums[i], total[i], of_step[i], with_inner[i])
        for i, path in enumerate(log.module_paths)
    )
    return Estimate(
        peak_bytes=replayed.peak_bytes,
        reserved_bytes=replayed.peak_reserved_bytes,
        steady_bytes=replayed.final_bytes,
        peak_phase=moment.phase,
        peak_location=path_of(log, moment.module),
        peak_operator=moment.operator,
        at_peak=at_peak,
        by_module=by_module,
        outside_bytes=outside,
        phase_peaks=dict(replayed.phase_peaks),
        unknown=log.unknown,
        info=info,
        backend=backend,
        options=options,
        log=log,
        kv_cache_bytes=last_cache(log, backend, options),
    )


def tensors_peak(log: MemoryLog) -> int:
    """Return the most bytes of tensors at once, without kernels' scratch memory or an allocator's rounding."""
    scratch = {storage for storage, kind in enumerate(storage_kinds(log)) if kind == "workspace"}
    return highest(event for event in log.events if event[1] not in scratch)[0]


def log_fits(log: MemoryLog, backend: str, options: AllocatorOptions, memory: int | float | str, gpu: str = "") -> bool:
    """Return whether a log runs in this much memory, less the most that a context may take.

    Kernels do without optional scratch memory if there is none left.
    """
    other = other_device(memory)
    if other is not None:
        other.warn()
        return tensors_peak(log) <= other.usable_bytes
    allocator = new_allocator(backend, options, room_of_log(log, backend, memory, gpu))
    spared: set[int] = set()
    plans: dict[tuple[int, ...], int] = {}
    for _, storage, nbytes in log.events:
        if storage in spared:
            spared.remove(storage)
        elif not nbytes:
            give_back(allocator, log, storage)
        else:
            # A convolution begins with the workspace of its cached plan, the one that ran before: a failed try of a
            # larger one would have emptied the allocator's cache (``run_single_conv`` in Conv_v8.cpp of ATen's cudnn).
            sizes = (nbytes, *log.storages[storage].lesser)
            tried = (*((plans[sizes],) if sizes in plans else ()), *sizes)
            stream = log.stream(storage)
            size = next((size for size in tried if not size or not allocator.allocate(storage, size, stream)), None)
            if size is None:
                return False
            if not size:
                spared.add(storage)
            if len(sizes) > 1:
                plans[sizes] = size
    return True


COMMUNICATOR_BYTES = (512 * MIB, 717 * MIB)
"""Device memory of one NCCL communicator, outside torch's allocator: the least and the most reported.

Source: NVIDIA/nccl issue 964 (688 MB on 3 to 4 A100 with NVLink; 0.5 to 0.7 GiB elsewhere).
"""


def bytes_outside(log: MemoryLog, backend: str, memory: int | float | str, gpu: str = "") -> tuple[int, int]:
    """Return the least and the most bytes outside the allocator: the CUDA context and NCCL's buffers."""
    if backend != "cuda":
        return 0, 0
    context, (low, high) = context_range(memory, gpu), COMMUNICATOR_BYTES
    return context[0] + log.communicators * low, context[1] + log.communicators * high


def room_of_log(log: MemoryLog, backend: str, memory: int | float | str, gpu: str = "") -> int:
    """Return the bytes that remain for a log's tensors: all but a CUDA context and NCCL's buffers, at their most.

    Raises :class:`InputError` for a GPU if the step does not run on CUDA.
    """
    gpu_model = named_gpu(memory)
    if gpu_model is not None and backend != "cuda":
        raise InputError(
            f"memory is {describe(memory)}, a GPU, but the step runs on the {backend.upper()}; pass bytes, or estimate "
            f"with gpu={describe(gpu_model.name)}"
        )
    return parse_memory(memory) - bytes_outside(log, backend, memory, gpu)[1]


def least(log: MemoryLog) -> MemoryLog:
    """Return a log without optional scratch memory."""
    fewest = {n: storage.lesser[-1] for n, storage in enumerate(log.storages) if storage.lesser}
    events = [(moment, n, nbytes and fewest.get(n, nbytes)) for moment, n, nbytes in log.events]
    necessary = [fewest.get(storage, 1) > 0 for _, storage, _ in events]
    before = [0, *accumulate(necessary)]
    calls = tuple(replace(call, start=before[call.start], stop=before[call.stop]) for call in log.calls)
    doubts = tuple(replace(doubt, event=before[doubt.event]) for doubt in log.doubts)
    return replace(log, events=tuple(compress(events, necessary)), calls=calls, doubts=doubts)


IN_PIECES = "the free memory is in pieces too small for the next tensor"
"""Why a step may not fit although its peak is below the limit: torch's allocator cannot join freed blocks."""


class Fit(int):
    """1 or 0, as ``bool(fit)`` and ``fit == True`` have it, printed with the headroom, and the cure if there is none.

    ``needed_bytes`` is the step's peak, without optional scratch memory if there is no room for it, and ``most_bytes``
    the most that it may be; ``usable_bytes`` is the memory without a CUDA context.

    >>> Fit(True, 20 << 30, 22 << 30), Fit(False, 24 << 30, 22 << 30)
    (yes, 2.00 GiB left, no, 2.00 GiB missing)
    >>> Fit(False, 24 << 30, 22 << 30, cure="max_batch_size(...) finds the largest batch that fits")
    no, 2.00 GiB missing; max_batch_size(...) finds the largest batch that fits
    >>> Fit(True, 20 << 30, 22 << 30, most_bytes=25 << 30)
    probably, 2.00 GiB left, but it may take up to 25.00 GiB
    """

    needed_bytes: int
    usable_bytes: int
    most_bytes: int
    cure: str

    def __new__(cls, fits: bool, needed_bytes: int, usable_bytes: int, most_bytes: int = 0, cure: str = "") -> Fit:
        fit = super().__new__(cls, fits)
        fit.needed_bytes, fit.usable_bytes, fit.most_bytes = needed_bytes, usable_bytes, most_bytes
        fit.cure = "" if fits else cure
        return fit

    def __getnewargs__(self) -> tuple[bool, int, int, int, str]:  # type: ignore[override]  # For copies and pickles.
        return bool(self), self.needed_bytes, self.usable_bytes, self.most_bytes, self.cure

    @property
    def left_bytes(self) -> int:
        """The usable bytes beyond the needed ones; less than 0 if some are missing."""
        return self.usable_bytes - self.needed_bytes

    @property
    def of_usable(self) -> str:
        """The needed and the usable bytes, in words."""
        return f"{in_common_unit(self.needed_bytes, self.usable_bytes)} usable"

    @property
    def headroom(self) -> str:
        """The answer, with what is left or missing, in words."""
        if self and self.most_bytes > self.usable_bytes:
            left, most = in_common_unit(max(0, self.left_bytes)), in_common_unit(self.most_bytes)
            return f"probably, {left} left, but it may take up to {most}"
        if self:
            return f"yes, {in_common_unit(max(0, self.left_bytes))} left"
        if self.left_bytes < 0:
            return f"no, {in_common_unit(-self.left_bytes)} missing"
        return f"no, {self.of_usable}, but {IN_PIECES}"

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.headroom, self.cure)))

    __repr__ = __str__
