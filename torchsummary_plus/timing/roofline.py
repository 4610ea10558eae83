"""A kernel -> its seconds on a GPU: a roofline with few constants, each fitted on published throughputs.

A kernel takes as long as its arithmetic or its traffic, whichever is longer, and a launch:
``max(flops / rate, bytes / bandwidth) + launch``. The rate is the GPU's dense peak in the kernel's dtype, or the
fastest product measured on it, times the share that products reach; narrow products reach less of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..data.memory_records import (
    COPY,
    DEPTHWISE,
    ELEMENTWISE,
    GROUPED_BACKWARD,
    LAYOUT,
    NORM,
    NORM_BACKWARD,
    PRODUCTS,
    TF32,
    Kernel,
)
from ..memory.gpus import GPU, Peaks

FUSIBLE = (ELEMENTWISE, NORM, COPY)
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


def roofline(gpu: GPU, constants: Constants = CONSTANTS, is_compiled: bool = False) -> Callable[[Kernel], float]:
    """Return the function from a kernel to its seconds on a GPU with peaks."""
    peaks = gpu.peaks
    assert peaks is not None

    def seconds(kernel: Kernel) -> float:
        arithmetic, memory = parts(kernel, gpu, peaks, constants, is_compiled)
        if kernel.kind == LAYOUT and is_compiled:
            return 0.0
        return max(arithmetic, memory) / peaks.realised + constants.launch

    return seconds


def parts(
    kernel: Kernel, gpu: GPU, peaks: Peaks, constants: Constants = CONSTANTS, is_compiled: bool = False
) -> tuple[float, float]:
    """Return the seconds of a kernel's arithmetic, and of its traffic; it takes the longer of the two."""
    nbytes: float = kernel.nbytes
    if kernel.kind == LAYOUT:
        nbytes *= constants.layout
    elif is_compiled and kernel.kind in FUSIBLE:
        nbytes *= constants.fused
    reached = constants.norm_backward if kernel.kind == NORM_BACKWARD else constants.bandwidth
    memory = nbytes / (1e9 * peaks.gb_per_s * reached)
    if kernel.kind not in PRODUCTS or not kernel.flops:
        return 0.0, memory
    return kernel.flops / (1e12 * _rate(kernel, gpu, peaks, constants)), memory


def _rate(kernel: Kernel, gpu: GPU, peaks: Peaks, constants: Constants) -> float:
    """Return the TFLOPS of a product, at most the peak of its dtype."""
    if kernel.kind == DEPTHWISE:
        return peaks.fp32_tflops * constants.depthwise * (kernel.n or 1)
    share = constants.product * (constants.grouped_backward if kernel.kind == GROUPED_BACKWARD else 1.0)
    narrow = min(kernel.m, kernel.n)
    if narrow:
        share *= narrow / (narrow + constants.half_n)
    if kernel.k:
        share *= kernel.k / (kernel.k + constants.half_k)
    return share * peak_tflops(kernel.dtype, gpu, peaks)


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
