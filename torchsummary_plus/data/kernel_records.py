"""The kernels of a step as frozen data: what each computes and moves. The measured time of a real step."""

from __future__ import annotations

from dataclasses import dataclass

MATMUL, CONVOLUTION, DEPTHWISE = "matmul", "convolution", "depthwise_convolution"
GROUPED, GROUPED_BACKWARD = "grouped_convolution", "grouped_convolution_backward"
ATTENTION, RECURRENT, LAYOUT, NORM, NORM_BACKWARD = "attention", "recurrent", "layout", "norm", "norm_backward"
COPY, POOLING, ELEMENTWISE = "copy", "pooling", "elementwise"
PRODUCTS = (MATMUL, CONVOLUTION, DEPTHWISE, GROUPED, GROUPED_BACKWARD, ATTENTION, RECURRENT)
KERNEL_KINDS = (*PRODUCTS, LAYOUT, NORM, NORM_BACKWARD, COPY, POOLING, ELEMENTWISE)
"""Kinds of kernels: those of one kind reach the same share of a GPU's peaks.

"layout" is a convolution's conversion between NCHW and NHWC, in which cuDNN computes 16-bit convolutions.
"""

TF32 = "tf32"
"""The dtype of a float32 product in tensor cores, where torch's switches allow that."""


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
