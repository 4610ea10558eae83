"""Operators that read lengths from CPU tensors to determine shapes: packed sequences and CTC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..live.fakes import new_fake

Read = Callable[[Tensor], "list[int] | None"]
"""Returns a tensor's content; None if unknown."""

aten: Any = torch.ops.aten


def reading(func: Any) -> Callable[..., Any] | None:
    """Return the fake kernel of an operator that reads lengths; it takes a :data:`Read` before the arguments."""
    return _KERNELS.get(id(func))


def _pack(read: Read, x: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    """The concatenated rows of each step and their counts; unknown lengths are assumed the longest."""
    steps = x.shape[1 if batch_first else 0]
    known = read(lengths) or [steps] * lengths.numel()
    sizes = torch.tensor([sum(length > step for length in known) for step in range(max(known))])
    return new_fake((sum(known), *x.shape[2:]), x.dtype, x.device), sizes


def _unpack(read: Read, grad: Tensor, input_size: Sequence[int], batch_sizes: Tensor, batch_first: bool) -> Tensor:
    return new_fake(input_size, grad.dtype, grad.device)


def _ctc(read: Read, scores: Tensor, targets: Tensor, inputs: Any, lengths: Any, *_: Any, **__: Any) -> Any:
    """Each sequence's loss, and the table for the backward: two columns per label, and one."""
    steps, batch = scores.shape[:2]
    known = read(lengths) if isinstance(lengths, Tensor) else list(lengths)
    longest = max(known) if known else longest_target(scores, targets)
    table = new_fake((batch, steps, 2 * longest + 1), scores.dtype, scores.device)
    return new_fake((batch,), scores.dtype, scores.device), table


def longest_target(scores: Tensor, targets: Tensor) -> int:
    """Return the most labels that a CTC sequence can have."""
    return targets.shape[1] if targets.dim() == 2 else scores.shape[0]


def _ctc_backward(read: Read, grad: Tensor, scores: Tensor, *_: Any, **__: Any) -> Tensor:
    return new_fake(scores.shape, scores.dtype, scores.device)


def _by_cudnn(read: Read, *_: Any, **__: Any) -> bool:
    """Always False: cuDNN's CTC needs concatenated int32 targets on the CPU, so torch's own kernel is assumed."""
    return False


def _overloads(name: str) -> list[Any]:
    """Return all overloads of an operator; none if this torch lacks it."""
    packet = getattr(aten, name, None)
    return [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]


_NAMES: dict[Callable[..., Any], tuple[str, ...]] = {
    _pack: ("_pack_padded_sequence",),
    _unpack: ("_pack_padded_sequence_backward",),
    _ctc: ("_ctc_loss",),
    _ctc_backward: ("_ctc_loss_backward",),
    _by_cudnn: ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"),
}
_KERNELS = {id(overload): kernel for kernel, names in _NAMES.items() for name in names for overload in _overloads(name)}
"""Keyed by id: operators are slow to hash, and every operator of a pass is looked up."""
