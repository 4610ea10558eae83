"""oneDNN's scratch memory in convolutions on the CPU: the blocked copies of what they read and write."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from .workspace_registry import scratch

MEASURED = "measured with torch's profiler, one thread, AVX2, torch 2.13"


def _lanes() -> int:
    """Channels in a block of oneDNN's blocked layouts: 16 with AVX-512, else 8."""
    return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8


def _blocked(shape: Sequence[int], axes: tuple[int, ...], itemsize: int) -> int:
    """Bytes of a tensor in a blocked layout: some axes rounded up to whole blocks."""
    lanes = _lanes()
    return itemsize * prod(-(-size // lanes) * lanes if axis in axes else size for axis, size in enumerate(shape))


def _is_depthwise(x: Any, groups: int) -> bool:
    return groups == x.shape[1] and groups > 1


@scratch("cpu", "aten::convolution", source=MEASURED, band=0.05)
def _cpu_convolution(
    out: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, *rest: Any
) -> int:
    """oneDNN reorders what it reads into blocks, and what it wrote back: x + w + y blocked, then y twice.

    An input of at most 4 channels is read as it is.
    """
    size = x.element_size()
    few = x.shape[1] <= 4
    read = 0 if few else _blocked(x.shape, (1,), size)
    axes = (0,) if few else (0, 1)
    kernel = weight.numel() * size if _is_depthwise(x, rest[1]) else _blocked(weight.shape, axes, size)
    written = _blocked(out.shape, (1,), size)
    result: int = out.numel() * size
    return max(read + kernel + written, written + result) - result


@scratch("cpu", "aten::convolution_backward", source=MEASURED, band=0.05)
def _cpu_convolution_backward(out: Any, grad: Any, x: Any, weight: Any, *rest: Any) -> int:
    """The pass for the input, then the pass for the weights, each with blocked copies of what it reads and writes."""
    size = x.element_size()
    groups, wanted = rest[6], rest[7]
    few = x.shape[1] <= 4
    incoming = _blocked(grad.shape, (1,), size)
    depthwise = _is_depthwise(x, groups)
    plain = weight.numel() * size
    given = x.numel() * size if wanted[0] else 0
    peaks = [0]
    if wanted[0]:
        outgoing = _blocked(x.shape, (1,), size)
        apart = plain if depthwise else _blocked(weight.shape, (0, 1), size)
        peaks += [incoming + apart + outgoing, outgoing + given]
    kernel = plain if depthwise else _blocked(weight.shape, (0,) if few else (0, 1), size)
    peaks.append(given + incoming + (0 if few else _blocked(x.shape, (1,), size)) + kernel)
    results: int = sum(t.numel() * size for t in out if t is not None)
    return max(peaks) - results
