"""The memory of quantized modules' packed weights and biases, held by C++ objects instead of parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..live import compat
from ..live.packed import graph_constants, opened, packed_objects, repacked, unpacked
from .kernel_trials import block_sizes

BY_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)
"""Ways of quantizing with a scale and a zero point of each channel."""


def packed_blocks(modules: Iterable[nn.Module]) -> tuple[list[tuple[int, int]], int, int]:
    """Return the bytes of each block that packed objects hold, with the module's number, and the bytes held elsewhere.

    The last is the number of objects that do not unpack. A library such as FBGEMM packs weights into its own memory. Of
    torch's memory an object holds the storages that it returns at every call, but for C++ vectors, and those that a
    copy of it allocates. Optimized models hold oneDNN's tensors.
    """
    modules = list(modules)
    constants = [(constant, index) for index, module in enumerate(modules) for constant in graph_constants(module)]
    objects = [(packed, index) for index, module in enumerate(modules) for packed in packed_objects(module)]
    if not objects and not constants:
        return [], 0, 0
    with compat.no_modes(), compat.no_function():
        blocks = [(compat.onednn_bytes(constant), index) for constant, index in constants if constant.is_mkldnn]
        stored = sum(nbytes for nbytes, _ in blocks)
        unreadable = sum(opened(packed) is None for packed, _ in objects)
        for packed, index in objects:
            tensors, again = list(unpacked(packed)), unpacked(packed)
            stored += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            first, same = ({storage.data_ptr(): storage for storage in _storages(part)} for part in (tensors, again))
            own = (storage.nbytes() for at, storage in same.items() if at in first and storage.resizable())
            blocks += [(nbytes, index) for nbytes in (*filter(None, own), *_copy_bytes(packed))]
    return blocks, max(0, stored - sum(nbytes for nbytes, _ in blocks)), unreadable


def _storages(tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
    """Yield the tensors' storages, also those of scales and zero points by channel."""
    for tensor in tensors:
        yield tensor.untyped_storage()
        if tensor.is_quantized and tensor.qscheme() in BY_CHANNEL:
            yield tensor.q_per_channel_scales().untyped_storage()
            yield tensor.q_per_channel_zero_points().untyped_storage()


def _copy_bytes(packed: Any) -> list[int]:
    """Return the bytes of the blocks that a copy of the object holds; none while another profile runs."""
    if compat.profiler_enabled():
        return []
    with torch.no_grad(), block_sizes() as sizes:
        copy = repacked(packed)
    del copy
    return [*(Counter(size for size in sizes if size > 0) - Counter(-size for size in sizes if size < 0)).elements()]
