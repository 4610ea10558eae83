"""Sizes of a kernel's tensors, and of the copies that a kernel makes to read them in another layout."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import torch

from ..shapes.registry import is_channels_last

NATIVE = "aten/src/ATen/native/"
INT64 = 8
"""Bytes of an index, and of the float64 or int64 that a Python number becomes."""


def elements(tensor: Any) -> int:
    """Return the number of elements."""
    return int(prod(tensor.shape))


def itemsize(tensor: Any) -> int:
    """Return the bytes of one element."""
    return int(tensor.element_size())


def nbytes(tensor: Any) -> int:
    """Return the bytes of the elements, each counted once."""
    return elements(tensor) * itemsize(tensor)


def suggested(tensor: Any) -> Any:
    """Return the memory format that torch's kernels derive from the strides."""
    if not is_channels_last(tensor):
        return torch.contiguous_format
    return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d


def copied(tensor: Any, layout: Any = torch.contiguous_format) -> int:
    """Return the bytes of the copy that ``tensor.contiguous(memory_format=layout)`` makes; 0 if none is needed."""
    return 0 if tensor is None or tensor.is_contiguous(memory_format=layout) else nbytes(tensor)


def flattened(tensor: Any) -> int:
    """Return the bytes of the copy that ``tensor.reshape(-1)`` makes; 0 if a view does.

    >>> flattened(torch.zeros(2, 3)[:, ::3]), flattened(torch.zeros(1, 3).expand(2, 3))
    (0, 24)
    """
    axes = [(size, step) for size, step in zip(tensor.shape, tensor.stride()) if size != 1]
    is_even = all(step == size * inner for (_, step), (size, inner) in pairwise(axes))
    return 0 if is_even or not tensor.numel() else nbytes(tensor)
