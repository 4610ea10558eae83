"""A step as frozen data: its memory events and kernels, and the words for its optimizer and device."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, get_args

from .arguments import GENERATE

ProductKind = Literal[
    "matmul", "convolution", "depthwise_convolution", "grouped_convolution", "grouped_convolution_backward",
    "attention", "recurrent",
]  # fmt: skip
KernelKind = Literal[ProductKind, "layout", "norm", "norm_backward", "copy", "pooling", "elementwise"]
"""Kinds of kernels: those of one kind reach the same share of a GPU's peaks.

"layout" is a convolution's conversion between NCHW and NHWC, in which cuDNN computes 16-bit convolutions.
"""
PRODUCTS: tuple[ProductKind, ...] = get_args(ProductKind)
KERNEL_KINDS: tuple[KernelKind, ...] = get_args(KernelKind)

TF32 = "tf32"  # The dtype of a float32 product in tensor cores, where torch's switches allow that.


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: its floating-point operations (2 for a multiply-add), and the bytes that it reads and writes.

    ``moment`` is the index of its operator's moment, which has its module, phase and step. ``dtype`` is what a product
    computes in; its result has ``m`` rows and ``n`` columns, of ``k`` products each, or 0 where they are not known.
    """

    moment: int
    kind: str
    dtype: str
    flops: int
    read_bytes: int
    written_bytes: int
    m: int = 0
    n: int = 0
    k: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its sizes, which follow its moment, kind and dtype."""
        return self.flops, self.read_bytes, self.written_bytes, self.m, self.n, self.k

    @property
    def nbytes(self) -> int:
        """The bytes it reads and writes."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """The seconds of each run of a step, in order of length, and the parts of the run in the middle.

    A part is a phase, a module's number (-1 is outside all modules), and its own seconds.
    """

    runs: tuple[float, ...]
    parts: tuple[tuple[str, int, float], ...]


KINDS = (
    "parameters", "buffers", "gradients", "optimizer_state", "inputs", "saved_activations", "temporaries", "workspace",
)  # fmt: skip
"""Kinds of memory; at any moment they add up to the live bytes."""

UNSHARDED, ALL_GATHER, REDUCE_SCATTER, BUCKETS = (
    "unsharded_parameters", "all_gather_buffers", "reduce_scatter_buffers", "buckets",
)  # fmt: skip
RANK_KINDS = (UNSHARDED, ALL_GATHER, REDUCE_SCATTER, BUCKETS)
"""Further kinds in the step of a distributed rank: gathered weights, and the buffers of collectives."""
KV_CACHE = "kv_cache"  # Inference's cache of the tokens so far: keys and values, or a recurrent model's states.
SOME_KINDS = (KV_CACHE, *RANK_KINDS)  # Kinds that only some steps have; an estimate lists them where they occur.
ALL_KINDS = (*KINDS, *SOME_KINDS)


SECOND_ORDER = "torch::autograd::create_graph"
"""The entry in ``unknown`` for gradients of gradients on CUDA, whose nodes may run in another order there."""
SCRIPT = "torch::jit::DifferentiableGraphBackward"
"""The entry for the gradient of a scripted function, whose first calls save what autograd does, later ones more."""

# Assumptions that an estimate lists.
IDLE_SCALER = (
    "a GradScaler is disabled, by enabled=False or as torch found no GPU when it was created: no loss is scaled"
)
WITHOUT_GRAPH = "inputs with a graph: gradients stop at them, and what their graph saved is not counted"
UNREGISTERED = "modules that the forward creates count as temporaries; an optimizer made before does not train them"
SUMMED = 'no loss was given: the sum of the output is used; a real loss such as loss="cross_entropy" takes more memory'
_HELD = (
    "record_stream: memory is assumed to be reusable as soon as it is freed; the upper end of device_bytes keeps it "
)
HELD_TO_THE_END = f"{_HELD}until the step ends"
HELD_FOR_GATHERS = f"{_HELD}until FSDP has gathered four more groups of parameters (limit_all_gathers)"
TUNED = "cudnn.benchmark is on: cuDNN times its convolutions and keeps the fastest, which may be others on another GPU"

# Those about compiled code: estimated as its source, how to do better, or as compiled.
COMPILED = "torch.compile: estimated as the uncompiled source; autograd and kernels may hold more or less"
HOW_COMPILED = "compiled=True estimates the step as torch.compile runs it"
AS_COMPILED = "torch.compile: estimated as compiled; the first step, which compiles, may hold more"
COMPILED_ON_CUDA = "torch.compile on CUDA: compared with simulated GPUs only; kernels that it times leave more reserved"
PADDED = "matrix products whose sizes are not aligned: torch.compile may pad them, which it decides by timing"
NO_GRAPH = "torch.compile: no graph was found, so the code runs as it is"  # Such as a single recurrent layer.
NOT_COMPILED = "compiled=True: "  # How it begins where it says why the source was estimated all the same.


@dataclass(frozen=True, slots=True)
class Moment:
    """An operator of a step: its name, its module's number (-1: none), the phase and the step."""

    operator: str
    module: int
    phase: str
    step: int


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """A storage: its bytes, its kind if recorded, and the number of the module that owns it (-1: none).

    ``lesser`` lists the smaller sizes that optional scratch memory can shrink to when memory runs out, in descending
    order; 0 if the kernel can do without it. ``band`` is the largest relative error observed for the rule behind the
    bytes; 0 if it is exact. An ``assumed`` storage may not exist: the event it belongs to was assumed. When a storage
    that ``empties`` is freed, torch returns its allocator's cache to the device. One used ``elsewhere`` was given to
    another stream by ``record_stream``: once freed, it returns to the cache when that stream is done with it.
    """

    nbytes: int
    kind: str | None
    owner: int
    lesser: tuple[int, ...] = ()
    band: float = 0.0
    assumed: bool = False
    empties: bool = False
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Shard:
    """A sharded parameter: its name in its module, its full shape, and the shape of this rank's part."""

    name: str
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]

    def __str__(self) -> str:
        whole = "" if self.local_shape == self.shape else f" of {list(self.shape)}"
        return f"{self.name} {list(self.local_shape)}{whole}"


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A module's call in a forward: ``events[start:stop]`` happened during it.

    ``outer`` is the index of the enclosing call (-1: none); ``outputs`` are the storages it returned.
    """

    module: int
    step: int
    outer: int
    start: int
    stop: int
    outputs: tuple[int, ...]


LEAST_DOUBT = 4096
"""Minimum uncertainty in bytes of a step with an operator without a rule, even if its operands are small."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An operator that may hold up to ``nbytes`` more than the log says, just before ``events[event]``.

    ``lasting`` of them may be a workspace that is never freed.
    """

    event: int
    moment: int
    nbytes: int
    lasting: int = 0


@dataclass(frozen=True, slots=True)
class MemoryLog:
    """All allocations and frees of a step, in order.

    An event is ``(moment, storage, nbytes)``, with 0 bytes for a free; moments and storages are indices into
    ``moments`` and ``storages``. ``calls`` lists the modules' calls that returned, in the order they began. ``unknown``
    counts calls of operators without a scratch-memory rule, each with one of the ``doubts``; ``assumptions`` says what
    was assumed for values that depend on data; ``others`` has the logs under other assumptions. ``in_blocks`` means
    that the bytes are already rounded by an allocator. ``streams`` has each storage's stream, () if all are the default
    one; ``communicators`` is the number of process groups that a rank communicated in.
    """

    moments: tuple[Moment, ...]
    events: tuple[tuple[int, int, int], ...]
    storages: tuple[StorageSpec, ...]
    module_paths: tuple[str, ...]
    calls: tuple[ModuleCall, ...] = ()
    unknown: tuple[tuple[str, int], ...] = ()
    assumptions: tuple[str, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    in_blocks: bool = False
    others: tuple[MemoryLog, ...] = ()
    streams: tuple[int, ...] = ()
    communicators: int = 0
    mult_adds: tuple[tuple[str, int], ...] | None = None
    """Multiply-adds of the last step by phase; None where they were not counted."""
    uncounted: tuple[tuple[str, int], ...] = ()
    """Operators of the last step without a formula for multiply-adds, and how often each ran."""
    shards: tuple[tuple[str, tuple[Shard, ...]], ...] = ()
    """This rank's parts of sharded parameters, by the path of the module that holds them."""
    bands: tuple[tuple[str, float], ...] = ()
    """The error bands of the rules that were used, by operator; operators with exact rules are absent."""
    spread: tuple[int, int] = (0, 0)
    """Bytes by which a further draw of random numbers, or a choice by timing, may be below and above the logs."""
    kernels: tuple[Kernel, ...] = ()
    """The kernels of the last step, in order; none where the step ran for real."""
    measured_time: MeasuredTime | None = None
    """The time of a step that ran for real, if it was measured."""

    @property
    def is_consistent(self) -> bool:
        """Whether every number is that of something here, and storages are allocated once, and freed after that."""
        moments, modules, storages = map(len, (self.moments, self.module_paths, self.storages))
        of_moments = {doubt.moment for doubt in self.doubts} | {kernel.moment for kernel in self.kernels}
        of_modules = {moment.module for moment in self.moments} | {call.module for call in self.calls}
        of_modules |= {storage.owner for storage in self.storages}
        live: set[int] = set()
        for moment, storage, nbytes in self.events:
            is_known = 0 <= moment < moments and 0 <= storage < storages and nbytes >= 0
            if not is_known or (storage in live) == bool(nbytes) or nbytes not in (0, self.storages[storage].nbytes):
                return False
            live ^= {storage}
        are_during = all(0 <= call.start <= call.stop <= len(self.events) for call in self.calls)
        return are_during and of_moments <= set(range(moments)) and of_modules <= set(range(-1, modules))

    def stream(self, storage: int) -> int:
        """Return the stream a storage was allocated in; 0 is the default one."""
        return self.streams[storage] if storage < len(self.streams) else 0


def highest(events: Iterable[tuple[int, int, int]]) -> tuple[int, int]:
    """Return the most bytes that are live at once, as requested, and the last event after which they are.

    >>> highest([(0, 0, 4), (0, 1, 8), (0, 0, 0), (0, 2, 4)])
    (12, 3)
    """
    sizes: dict[int, int] = {}
    level, most = 0, (0, -1)
    for number, (_, storage, nbytes) in enumerate(events):
        level += nbytes - sizes.get(storage, 0)
        sizes[storage] = nbytes
        most = max(most, (level, number))
    return most


def without(log: MemoryLog, storages: Collection[int]) -> MemoryLog:
    """Return the events of a log without some storages, to compare peaks: it has no calls and no doubts."""
    events = tuple(event for event in log.events if event[1] not in storages)
    return replace(log, events=events, calls=(), doubts=())


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The step of an estimate, in words: the device's name, batch size, mode and other options.

    ``gpu`` is the GPU that was named, ``dtype`` the parameters' dtypes, ``loss`` what was minimised, ``train_step`` the
    name of the user's own step, ``model`` the model's class; "" if there is none. ``measured`` is True for a step that
    ran for real. ``world_size`` is 0 except for the step of one ``rank`` of many, which may be the worst of several
    ``ranks``. The batch size is that of each of ``micro_batches``. ``new_tokens`` is what a generation generates for
    each sequence.
    """

    device: str
    batch_size: int
    mode: str
    optimizer: str = ""
    autocast: str = ""
    gpu: str = ""
    measured: bool = False
    dtype: str = ""
    loss: str = ""
    train_step: str = ""
    world_size: int = 0
    rank: int = 0
    ranks: int = 0
    micro_batches: int = 1
    model: str = ""
    new_tokens: int = 0

    @property
    def settings(self) -> str:
        """What the figures depend on besides the batch: optimizer, dtypes, loss, GPU or other device."""
        trains = self.mode == "train" and not self.train_step
        parts = [
            (optimizer_words(self.optimizer) or "no optimizer") if trains else self.train_step,
            f"autocast to {self.autocast}" if self.autocast else self.dtype,
            f"loss: {self.loss}" if " " in self.loss else self.loss,
            f"gradients of {self.micro_batches:,} micro-batches" if self.micro_batches > 1 else "",
            f"rank {self.rank} of {self.world_size}" if self.world_size else "",
            f"the highest peak of {self.ranks} ranks" if self.ranks > 1 else "",
            on_device(self.device, self.gpu),
        ]
        return ", ".join(part for part in parts if part)

    @property
    def step(self) -> str:
        """The kind of step, in words."""
        if self.mode == GENERATE:
            return "Generation"
        return "Training step" if self.mode == "train" else "Inference step"

    def __str__(self) -> str:
        model = f"{self.model}, " if self.model else ""
        measured = ", measured" if self.measured else ""
        return f"{self.step}: {model}batch {self.batch_size:,}, {self.settings}{measured}"


@dataclass(frozen=True, slots=True)
class RowMemory:
    """A table row's memory in bytes: saved for the backward, gradients, optimizer state.

    These three add up over the rows. ``peak_bytes`` is everything live when the call returns; None without a call.
    ``shards`` are the module's own parameters, where the memory is that of one rank of many. ``seconds`` is the time of
    the module's own kernels on the step's GPU, which adds up too; None if it is not known.
    """

    saved_bytes: int = 0
    grad_bytes: int = 0
    optimizer_bytes: int = 0
    peak_bytes: int | None = None
    shards: tuple[Shard, ...] = ()
    seconds: float | None = None

    @property
    def local_params(self) -> int:
        """The number of elements of the module's own parameters on this rank."""
        return sum(prod(shard.local_shape) for shard in self.shards)

    @property
    def any(self) -> bool:
        """Return whether any figure is not 0."""
        return bool(self.saved_bytes or self.grad_bytes or self.optimizer_bytes)

    def __add__(self, other: RowMemory) -> RowMemory:
        return replace(
            self,
            saved_bytes=self.saved_bytes + other.saved_bytes,
            grad_bytes=self.grad_bytes + other.grad_bytes,
            optimizer_bytes=self.optimizer_bytes + other.optimizer_bytes,
            seconds=other.seconds if self.seconds is None else self.seconds + (other.seconds or 0.0),
        )


SPELLINGS = {
    name.lower(): name
    for name in (
        "AdamW", "Adam", "SGD", "Adagrad", "Adadelta", "Adamax", "ASGD", "LBFGS", "NAdam", "RAdam", "RMSprop", "Rprop",
        "SparseAdam", "Adafactor", "Muon", "Lion",
    )
}  # fmt: skip
"""Optimizers' names as their papers and torch spell them."""

SPELT_OUT = "AEFHILMNORSX"  # Letters whose names begin with a vowel: "an RTX 4090", "a T4".


def optimizer_words(name: str) -> str:
    """Return an optimizer's name for a sentence.

    >>> optimizer_words("adamw"), optimizer_words("paged_adamw_8bit"), optimizer_words("MyOptimizer")
    ('AdamW', 'paged 8-bit AdamW', 'MyOptimizer')
    """
    plain = name.lower().removesuffix("_torch").removesuffix("_torch_fused")
    base = plain.removeprefix("paged_").removesuffix("8bit").rstrip("_")
    if base not in SPELLINGS:
        return name
    return "paged " * plain.startswith("paged_") + "8-bit " * plain.endswith("8bit") + SPELLINGS[base]


def a_gpu(name: str) -> str:
    """Return a GPU's name with its article.

    >>> a_gpu("RTX 4090"), a_gpu("T4"), a_gpu("Jetson Orin NX 8GB"), a_gpu("Arc A770")
    ('an RTX 4090', 'a T4', 'a Jetson Orin NX 8GB', 'an Arc A770')
    """
    is_a_word = name[1:2].islower()
    return f"{'an' if name[:1] in ('AEIOU' if is_a_word else SPELT_OUT) else 'a'} {name}"


def on_device(device: str, gpu: str) -> str:
    """Return where a step runs: "on an RTX 4090", "on the CPU", "on cuda:1"."""
    return f"on {a_gpu(gpu)}" if gpu else {"cpu": "on the CPU", "cuda:0": "on CUDA"}.get(device, f"on {device}")
