"""StepTime: how long a step takes on a GPU, by phase, module and kind of kernel, with a measured range.

A roofline with few constants, each fitted on published throughputs: a kernel takes as long as its arithmetic or its
traffic, whichever is longer, and a launch: ``max(flops / rate, bytes / bandwidth) + launch``. The rate is the GPU's
dense peak in the kernel's dtype, or the fastest product measured on it, times the share that products reach; narrow
products reach less of it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..data.answers import assumed
from ..data.arguments import GENERATE
from ..data.errors import InputError
from ..data.memory_records import (
    AS_COMPILED,
    COMPILED,
    PRODUCTS,
    TF32,
    TUNED,
    Kernel,
    MeasuredTime,
    MemoryLog,
    StepInfo,
    a_gpu,
    on_device,
)
from ..data.units import describe, rate_text
from ..memory.attribution import inclusive
from ..memory.gpus import GPU, Peaks, find_gpu, other_device

FUSIBLE = ("elementwise", "norm", "copy")
"""Kinds that torch's compiler fuses."""
HALVES, FLOAT8 = ("float16", "bfloat16"), "float8"


@dataclass(frozen=True, slots=True)
class Constants:
    """What kernels reach of a GPU's peaks.

    Fitted by ``python -m benchmarks.step_time`` (November 2026) on timm's published throughputs of half of its models
    on the RTX 3090 (timm's results/benchmark-*-rtx3090.csv: inference of torch 2.4, training of torch 1.12); ``fused``
    on the RTX 4090 (torch 2.9). ``launch`` is a round number, and so is ``product``, at which the error is as small.
    """

    product: float = 0.95
    """The share of the peak that a wide matrix product, convolution or attention reaches."""
    half_n: float = 20.0
    """The width of a product, the narrower side of its result, at which it reaches half of its rate."""
    half_k: float = 68.0
    """The number of products summed at which it reaches half of its rate."""
    depthwise: float = 0.08
    """The share of the float32 peak that a depthwise convolution reaches, in any dtype; twice that in 16-bit NHWC."""
    grouped_backward: float = 0.24
    """The share of its forward's rate that the backward of a grouped convolution reaches."""
    bandwidth: float = 0.88
    """The share of the memory's bandwidth that kernels reach."""
    norm_backward: float = 0.36
    """The same for the backward of a normalisation or softmax, which reduces before it writes."""
    layout: float = 0.61
    """The part of a 16-bit convolution's tensors in NCHW that cuDNN converts to NHWC and back."""
    fused: float = 0.44
    """The part of the traffic of element-wise kernels, copies and normalisations that torch's compiler leaves."""
    launch: float = 3e-6
    """The seconds between two kernels."""


CONSTANTS = Constants()


def kernel_seconds(
    kernel: Kernel, gpu: GPU, constants: Constants = CONSTANTS, is_compiled: bool = False
) -> tuple[float, float]:
    """Return the seconds of a kernel's arithmetic, and of its traffic; it takes the longer of the two, and a launch."""
    peaks = gpu.peaks
    assert peaks is not None
    nbytes: float = kernel.nbytes
    if kernel.kind == "layout":
        nbytes *= constants.layout
    elif is_compiled and kernel.kind in FUSIBLE:
        nbytes *= constants.fused
    reached = constants.norm_backward if kernel.kind == "norm_backward" else constants.bandwidth
    memory = nbytes / (1e9 * peaks.gb_per_s * reached * peaks.realised)
    if kernel.kind not in PRODUCTS or not kernel.flops:
        return 0.0, memory
    if kernel.kind == "depthwise_convolution":
        rate = peaks.fp32_tflops * constants.depthwise * (kernel.n or 1)
    else:
        rate = peak_tflops(kernel.dtype, gpu, peaks) * constants.product
        rate *= constants.grouped_backward if kernel.kind == "grouped_convolution_backward" else 1.0
        for width, half in ((min(kernel.m, kernel.n), constants.half_n), (kernel.k, constants.half_k)):
            rate *= width / (width + half) if width else 1.0
    return kernel.flops / (1e12 * rate * peaks.realised), memory


def peak_tflops(dtype: str, gpu: GPU, peaks: Peaks) -> float:
    """Return the dense peak in a dtype, less what no measured product reached; GPUs without its units use float32's.

    The clock of a GeForce card rises above the published one, so that products may exceed the peak; the peak counts.

    >>> from torchsummary_plus.memory.gpus import find_gpu
    >>> a100, t4 = find_gpu("A100 80GB"), find_gpu("T4")
    >>> peak_tflops("float16", a100, a100.peaks), peak_tflops("bfloat16", t4, t4.peaks)
    (271.2, 8.1)
    """
    ceiling = min(1.0, (peaks.matmul_tflops or peaks.half_tflops) / peaks.half_tflops)
    if dtype in HALVES:
        has_units = dtype == "float16" or gpu.compute_capability >= (8, 0)
        return peaks.half_tflops * ceiling if has_units else peaks.fp32_tflops
    if dtype == TF32 and peaks.tf32_tflops is not None:
        return peaks.tf32_tflops * ceiling
    if dtype.startswith(FLOAT8) and peaks.fp8_tflops is not None:
        return peaks.fp8_tflops * ceiling
    return peaks.fp32_tflops


RANGES = {"eval": 1.34, "train": 1.5, GENERATE: 1.34}
"""By mode, the factor around the answer that held about 9 of 10 published throughputs; see docs/time.md."""
CALIBRATED = 1.2
"""The same factor after one measurement on the GPU."""
WIDER = 1.3
"""A further factor for each assumption about kernels that the throughputs do not cover."""
LAUNCH_BOUND, SLOW_LAUNCH = 5e-6, 10e-6
"""Mean seconds of a kernel below which Python's launches may take longer than the GPU, and what a launch may take."""


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """A module's seconds, its own and with the modules inside it, and the share that the memory's bandwidth limits.

    The share is None where the time was measured, and for a module without any.
    """

    path: str
    own_seconds: float
    inclusive_seconds: float
    memory_bound: float | None


@dataclass(frozen=True, repr=False)
class StepTime:
    """The seconds of a step's kernels on a GPU; by phase, by kind and the modules' own ones each add up to ``seconds``.

    ``low`` and ``high`` are the range that held about nine of ten published figures. ``memory_bound`` is the share of
    the time that memory bandwidth limits, rather than arithmetic; ``bound`` names the larger one. ``factor`` is the
    ratio of a measurement to the prediction, 1 without one. ``tokens`` are those that a language model reads in the
    step, 0 for any other model; ``decode_seconds`` is the part of a generation after its first token. Data loading,
    copies from the host, and communication are not included. What no module runs, such as the loss and the optimizer,
    belongs to the root in ``by_module``.

    A step that :func:`measure_memory` ran with ``time=True`` has the time of the run in the middle, its ``low`` and
    ``high`` are the fastest and the slowest run, and it has no ``gpu``, ``by_kind`` or ``memory_bound``.

    >>> from torch import nn
    >>> from torchsummary_plus import estimate_time
    >>> time = estimate_time(nn.Linear(4096, 4096), (4096,), 8192, gpu="T4", mode="eval", progress=False)
    >>> time.low < time.seconds < time.high, time.bound
    (True, 'compute')
    """

    seconds: float
    low: float
    high: float
    by_phase: Mapping[str, float]
    by_kind: Mapping[str, float]
    by_module: tuple[ModuleTime, ...]
    memory_bound: float | None
    kernels: int
    gpu: str
    info: StepInfo
    assumptions: tuple[str, ...]
    factor: float = 1.0
    tokens: int = 0
    decode_seconds: float = 0.0

    @property
    def bound(self) -> str | None:
        """What limits most of the time: "memory" or "compute"; None where it was measured."""
        return bound_by(self.memory_bound)

    @property
    def samples_per_second(self) -> float:
        """Samples, of all micro-batches, per second of the GPU's time."""
        return self.info.batch_size * self.info.micro_batches / self.seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of a language model's step per second of the GPU's time; None for any other model."""
        return self.tokens / self.seconds if self.tokens else None

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds of the GPU's time for each further token of a generation, for all of its sequences; else None.

        It is a lower bound: the kernels of a single token are short, and Python takes longer to launch them.
        """
        further = self.info.new_tokens - 1
        return self.decode_seconds / further if further > 0 else None

    def __str__(self) -> str:
        middle, *ends = (duration(seconds) for seconds in (self.seconds, self.low, self.high))
        unit = middle.rpartition(" ")[2]
        same = all(end.endswith(f" {unit}") for end in ends)
        low, high = (end.removesuffix(f" {unit}") if same else end for end in ends)
        phase, longest = max(self.by_phase.items(), key=lambda item: item[1])
        place = f"on {a_gpu(self.gpu)}" if self.gpu else f"measured {on_device(self.info.device, self.info.gpu)}"
        head = f"{middle} ({low} to {high}) {place}"
        rate = f"{rate_text(self.samples_per_second)} samples/s"
        if self.seconds_per_token is not None:
            rate = f"at least {duration(self.seconds_per_token)} for each further token"
        elif self.tokens_per_second is not None:
            rate += f", {rate_text(self.tokens_per_second)} tokens/s"
        shares = f"{phase} {longest / self.seconds:.0%}"
        if self.memory_bound is not None:
            shares += f"; {self.bound}-bound {max(self.memory_bound, 1 - self.memory_bound):.0%}"
        return "\n".join([f"{head}: {rate}; {shares}", *assumed(self.assumptions)])

    __repr__ = __str__


def bound_by(memory_bound: float | None) -> str | None:
    """Return what limits most of the time, by the share that memory bandwidth limits."""
    return None if memory_bound is None else "memory" if memory_bound >= 0.5 else "compute"


def duration(seconds: float) -> str:
    """Format seconds with three digits, in the unit that suits them.

    >>> duration(0.2264), duration(1.5), duration(0.00000812)
    ('226 ms', '1.50 s', '8.12 us')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        value = seconds * scale
        if value >= 1 or unit == "us":
            return f"{value:,.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"
    raise AssertionError


def step_time(
    log: MemoryLog, info: StepInfo, backend: str, gpu: str | None = None, measured: float | StepTime | None = None
) -> StepTime:
    """Return the time of a recorded step on a GPU, by default the one it was estimated for.

    ``measured`` calibrates it: the time of this step as measured on that GPU, or another step's calibrated time.
    Raises :class:`InputError` without a GPU, without its published peaks, for a step that was not recorded for CUDA or
    that ran for real without being timed, and for a measurement that is not positive.
    """
    if log.measured_time is not None and gpu is None and measured is None:
        return _measured(log.measured_time, log.module_paths, info)
    if info.measured:
        raise InputError("the step ran for real, so its kernels are unknown; measure_memory(time=True) adds its time")
    card = gpu_with_peaks(gpu or info.gpu)
    if backend != "cuda":
        raise InputError(
            f"the step runs on the {backend.upper()}, whose time is not modelled; measure_memory(time=True) measures "
            f"it, and an estimate with gpu={describe(card.name)} has the time there"
        )
    if not log.kernels:
        raise InputError("no kernel was recorded: the step was estimated by running it, or computes nothing")
    is_compiled = not {COMPILED, AS_COMPILED}.isdisjoint(log.assumptions)
    own: defaultdict[int, float] = defaultdict(float)
    own_memory: defaultdict[int, float] = defaultdict(float)
    by_phase: defaultdict[str, float] = defaultdict(float)
    by_kind: defaultdict[str, float] = defaultdict(float)
    decode = launches = 0.0
    # A long generation records the forward that reads the prompt, and a few that stand for all of further tokens.
    starts = [log.events[call.start][0] for call in log.calls if call.outer < 0 and call.start < len(log.events)]
    further = (info.new_tokens - 1) / (len(starts) - 1) if info.new_tokens and len(starts) > 1 else 0.0
    for kernel in log.kernels:
        is_decoded = bool(further) and kernel.moment >= starts[1]
        times = further if is_decoded else 1.0
        if is_compiled and kernel.kind == "layout":
            continue
        arithmetic, memory = kernel_seconds(kernel, card, is_compiled=is_compiled)
        seconds = (max(arithmetic, memory) + CONSTANTS.launch) * times
        moment = log.moments[kernel.moment]
        decode += seconds if is_decoded else 0.0
        launches += times
        module = max(0, moment.module)
        own[module] += seconds
        own_memory[module] += seconds if memory >= arithmetic else 0.0
        by_phase[moment.phase if moment.phase in ("backward", "optimizer") else "forward"] += seconds
        by_kind[kernel.kind] += seconds
    total = sum(own.values())
    factor = _factor(measured, total)
    notes = tuple(_notes(log, info, card, total / launches))
    usual = RANGES[info.mode] if measured is None else CALIBRATED
    spread = math.hypot(math.log(usual), *(math.log(WIDER) for _ in notes))
    high = math.exp(spread) * total
    if total < LAUNCH_BOUND * launches:
        high = max(high, SLOW_LAUNCH * launches)
    return StepTime(
        seconds=total * factor,
        low=total * factor / math.exp(spread),
        high=high * factor,
        by_phase={phase: by_phase[phase] * factor for phase in ("forward", "backward", "optimizer") if by_phase[phase]},
        by_kind={kind: seconds * factor for kind, seconds in sorted(by_kind.items(), key=lambda item: -item[1])},
        by_module=_by_module(log.module_paths, own, own_memory, factor),
        memory_bound=sum(own_memory.values()) / total,
        kernels=round(launches),
        gpu=card.name,
        info=info,
        assumptions=notes,
        factor=factor,
        tokens=0 if info.new_tokens else _tokens(log, info),
        decode_seconds=decode * factor,
    )


def _measured(time: MeasuredTime, paths: tuple[str, ...], info: StepInfo) -> StepTime:
    """Return the time of a step that ran for real."""
    own, by_phase = defaultdict[int, float](float), defaultdict[str, float](float)
    for phase, module, seconds in time.parts:
        own[max(0, module)] += seconds
        by_phase[phase] += seconds
    modules = _by_module(paths, own, None, 1.0)
    total = math.fsum(own.values())
    return StepTime(total, time.runs[0], time.runs[-1], dict(by_phase), {}, modules, None, 0, "", info, ())


def _tokens(log: MemoryLog, info: StepInfo) -> int:
    """Return the tokens of a language model's step: its embedding's look-ups, if they are more than the samples."""
    looked_up = max((kernel.m for kernel in log.kernels if _operator(log, kernel) == "aten::embedding"), default=0)
    return looked_up * info.micro_batches if looked_up > info.batch_size else 0


def _operator(log: MemoryLog, kernel: Kernel) -> str:
    """Return the name of a kernel's operator, without its overload."""
    return log.moments[kernel.moment].operator.partition(".")[0]


def gpu_with_peaks(name: str | None) -> GPU:
    """Return the GPU of a name. Raises :class:`InputError` for any other device, and without published peaks."""
    if not name:
        raise InputError("no GPU was named; accepted: gpu='RTX 4090', of the estimate or of its time()")
    other = other_device(name)
    if other is not None:
        raise InputError(f"{other.words}, so its time is unknown; accepted: an NVIDIA GPU with published peaks")
    card = find_gpu(name)
    if card.peaks is None:
        raise InputError(
            f"gpu is {describe(card.name)}, for which no published peaks are known; accepted: a GPU with peaks in "
            "memory/gpus.csv, or one registered with register_gpu(GPU(..., peaks=Peaks(...)))"
        )
    return card


def _factor(measured: float | StepTime | None, total: float) -> float:
    if isinstance(measured, StepTime):
        return measured.factor if measured.gpu else measured.seconds / total
    if measured is None:
        return 1.0
    if isinstance(measured, bool) or not isinstance(measured, (int, float)) or not 0 < measured < float("inf"):
        raise InputError(f"measured is {describe(measured)}; accepted: seconds, or a StepTime with a measurement")
    return measured / total


def _by_module(
    paths: tuple[str, ...], own: Mapping[int, float], memory: Mapping[int, float] | None, factor: float
) -> tuple[ModuleTime, ...]:
    each = [own.get(number, 0.0) * factor for number in range(len(paths))]
    whole = inclusive(paths, each)
    limited = None if memory is None else inclusive(paths, [memory.get(number, 0.0) for number in range(len(paths))])
    return tuple(
        ModuleTime(
            path, each[number], whole[number],
            None if limited is None or not whole[number] else limited[number] * factor / whole[number],
        )
        for number, path in enumerate(paths)
    )  # fmt: skip


def _notes(log: MemoryLog, info: StepInfo, gpu: GPU, mean: float) -> Iterator[str]:
    """Yield what widens the range: kernels and ways to run that the published throughputs do not cover."""
    operators = {_operator(log, kernel) for kernel in log.kernels}
    dtypes = Counter[str]()
    for kernel in log.kernels:
        dtypes[kernel.dtype] += kernel.flops if kernel.kind in PRODUCTS else 0
    if mean < LAUNCH_BOUND:
        yield (
            f"launch-bound: {duration(mean)} a kernel on average; Python may take longer to launch them than the GPU "
            "to run them"
        )
    if TUNED in log.assumptions:
        yield TUNED
    if not {COMPILED, AS_COMPILED}.isdisjoint(log.assumptions):
        yield "torch.compile: element-wise kernels, copies and normalisations are assumed to be fused"
    if any("group_norm" in name for name in operators):
        yield "group normalisation: its kernels vary more than others"
    if any(kernel.kind == "recurrent" for kernel in log.kernels):
        yield "recurrent layers: their steps run one after another, and are counted as one product"
    if log.uncounted:
        yield f"{', '.join(name for name, _ in log.uncounted[:3])}: arithmetic unknown, only the traffic is counted"
    if info.world_size > 1:
        yield f"rank {info.rank} of {info.world_size}: communication is not included"
    most = sum(dtypes.values())  # Named are dtypes in which at least a tenth of the arithmetic is done.
    main = [dtype for dtype, flops in dtypes.items() if 10 * flops >= most > 0]
    if TF32 in main and gpu.peaks is not None and gpu.peaks.tf32_tflops is not None:
        yield "float32 products run in TF32, as torch's switches allow"
    elif TF32 in main or "float32" in main:
        yield "float32 products run on CUDA cores: TF32 is off (torch.set_float32_matmul_precision), or not available"
    if "bfloat16" in main and gpu.compute_capability < (8, 0):
        yield f"{gpu.name} has no units for bfloat16; its products are assumed to be as fast as float32's"
    known = (*HALVES, TF32, "float32")
    others = [dtype for dtype in main if dtype not in known and not dtype.startswith(FLOAT8)]
    if others:
        yield f"{', '.join(others)}: no peak is known; its products are assumed to be as fast as float32's"
