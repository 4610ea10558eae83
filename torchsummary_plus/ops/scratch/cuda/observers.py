"""CUDA: memory of quantisation-aware training."""

from __future__ import annotations

from typing import Any

import torch

from ....data.capability import Capability
from ....data.rounding import MIN_BLOCK
from ..observers import OPERATOR, fitted, is_per_channel
from ..registry import Course, lasting, scratch
from ..sizes import NATIVE, copied, itemsize
from .allocations import Allocations, buffers, copies
from .reductions import extremes

SOURCE = f"{NATIVE}quantized/cuda/FusedObsFakeQuant.cu"


@lasting("cuda", OPERATOR, source=SOURCE, band=0.0)
def _observers(out: Any, x: Any, is_on: Any, is_used: Any, *rest: Any) -> tuple[tuple[int, int], ...]:
    return fitted(x, rest, MIN_BLOCK)


@scratch("cuda", OPERATOR, source=SOURCE, band=0.0, by_capability=True)
def observed(capability: Capability, out: Any, x: Any, is_on: Any, is_used: Any, *rest: Any) -> Course:
    """A contiguous copy throughout; before the results, the extremes of each channel or of the whole tensor.

    With more than two axes, they are flattened, which copies once more, and with channels the mask precedes the result.
    """
    per_channel = is_per_channel(*rest[4:])
    axis, count = (1, len(x)) if per_channel else (None, 1)
    shape = (count, x.numel() // count) if per_channel else x.shape
    read = x if per_channel and x.dim() == 2 else torch.empty(shape, dtype=x.dtype, device="meta")
    steps = Allocations()
    steps.append(copies(x))
    flattened = copied(x) if per_channel and x.dim() > 2 else 0
    both = steps.append(buffers(flattened, count * itemsize(x), count * itemsize(x)))
    steps.append(extremes(capability, (x, x), read, dim=axis))
    steps.free(*both)
    steps.result(*((1, 0) if per_channel else (0, 1)))
    return steps.course()
