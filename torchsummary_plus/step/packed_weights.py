"""The memory of quantized modules' packed weights and biases, held by C++ objects instead of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..live import compat
from ..live.packed import graph_constants, opened, packed_objects, repacked, unpacked
from ..watch.profiled import QuietProfile, changes

BY_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)
"""Ways of quantizing with a scale and a zero point of each channel."""


def unreadable_weights(modules: Iterable[nn.Module]) -> int:
    """Return the number of packed objects that do not unpack."""
    objects = [packed for module in modules for packed in packed_objects(module)]
    if not objects:
        return 0
    with compat.no_modes(), compat.no_function():
        return sum(opened(packed) is None for packed in objects)


def packed_blocks(modules: Iterable[nn.Module]) -> tuple[list[tuple[int, int]], int]:
    """Return the bytes of each block that packed objects hold, with the module's number, and the bytes held elsewhere.

    A library such as FBGEMM packs weights into its own memory. Of torch's memory an object holds the storages that it
    returns at every call, and those that a copy of it allocates. Optimized models hold oneDNN's tensors.
    """
    modules = list(modules)
    constants = [(constant, index) for index, module in enumerate(modules) for constant in graph_constants(module)]
    objects = [(packed, index) for index, module in enumerate(modules) for packed in packed_objects(module)]
    if not objects and not constants:
        return [], 0
    with compat.no_modes(), compat.no_function():
        blocks = [(compat.onednn_bytes(constant), index) for constant, index in constants if constant.is_mkldnn]
        stored = sum(nbytes for nbytes, _ in blocks)
        for packed, index in objects:
            tensors = list(unpacked(packed))
            stored += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            blocks += [(nbytes, index) for nbytes in (*_own_bytes(tensors, unpacked(packed)), *_copy_bytes(packed))]
    return blocks, max(0, stored - sum(nbytes for nbytes, _ in blocks))


def _own_bytes(tensors: Iterable[Tensor], again: Iterable[Tensor]) -> Iterator[int]:
    """Yield the bytes of the storages that two calls both return: the object's own. C++ vectors are not torch's."""
    first, same = ({storage.data_ptr(): storage for storage in _storages(answer)} for answer in (tensors, again))
    yield from (
        storage.nbytes()
        for place, storage in same.items()
        if place in first and storage.resizable() and storage.nbytes()
    )


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
    with torch.no_grad(), QuietProfile() as profile:
        copy = repacked(packed)
    blocks: dict[int, int] = {}
    for change in changes(profile, "cpu"):
        blocks[change.address] = change.nbytes
    del copy
    return [nbytes for nbytes in blocks.values() if nbytes > 0]
