"""Operators that read lengths from tensors on the CPU, so that their results have shapes: packed sequences and CTC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..live.fakes import new_fake

Read = Callable[[Tensor], "list[int] | None"]
"""What a tensor holds; None where that is not known."""

aten: Any = torch.ops.aten


def reading(func: Any) -> Callable[..., Any] | None:
    """The fake kernel of an operator that reads lengths: called with the arguments, a :data:`Read` in front of them."""
    return _KERNELS.get(id(func))


def _pack(read: Read, x: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    """The rows of each step, one after the other, and how many these are; of unknown lengths all are the longest."""
    steps = x.shape[1 if batch_first else 0]
    known = read(lengths) or [steps] * lengths.numel()
    sizes = torch.tensor([sum(length > step for length in known) for step in range(max(known))])
    return new_fake((sum(known), *x.shape[2:]), x.dtype, x.device), sizes


def _unpack(read: Read, grad: Tensor, input_size: Sequence[int], batch_sizes: Tensor, batch_first: bool) -> Tensor:
    return new_fake(input_size, grad.dtype, grad.device)


def _ctc(read: Read, scores: Tensor, targets: Tensor, inputs: Any, lengths: Any, *_: Any, **__: Any) -> Any:
    """The loss of each sequence, and the table that the backward reads: two columns a label, and one."""
    steps, batch = scores.shape[:2]
    known = read(lengths) if isinstance(lengths, Tensor) else list(lengths)
    longest = max(known) if known else targets.shape[1] if targets.dim() == 2 else steps
    table = new_fake((batch, steps, 2 * longest + 1), scores.dtype, scores.device)
    return new_fake((batch,), scores.dtype, scores.device), table


def _ctc_backward(read: Read, grad: Tensor, scores: Tensor, *_: Any, **__: Any) -> Tensor:
    return new_fake(scores.shape, scores.dtype, scores.device)


def _by_cudnn(read: Read, *_: Any, **__: Any) -> bool:
    """cuDNN's CTC wants targets of 32-bit integers, one after the other, on the CPU: torch's own kernel is the rule."""
    return False


def _overloads(name: str) -> list[Any]:
    """All overloads of an operator; none where this torch does not have it."""
    packet = getattr(aten, name, None)
    return [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]


_NAMES: dict[Callable[..., Any], tuple[str, ...]] = {
    _pack: ("_pack_padded_sequence",),
    _unpack: ("_pack_padded_sequence_backward",),
    _ctc: ("_ctc_loss",),
    _ctc_backward: ("_ctc_loss_backward",),
    _by_cudnn: ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"),
}
_KERNELS = {id(one): kernel for kernel, names in _NAMES.items() for name in names for one in _overloads(name)}
"""By identity: operators hash slowly, and every one of a pass is looked up."""
