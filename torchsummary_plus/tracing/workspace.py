"""Scratch bytes inside a kernel, out of the dispatcher's sight: a registry of rules, each with its source.

A rule gives the bytes above what is live before the operator that its kernel holds at its own peak, less the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

Rule = Callable[..., int]

UNMODELLED: dict[str, frozenset[str]] = {
    "cpu": frozenset({"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"}),
    "cuda": frozenset({"aten::convolution", "aten::convolution_backward", "aten::cudnn_batch_norm"}),
}
"""Operators known to take scratch memory for which there is no rule yet: an estimate names them."""

_RULES: dict[tuple[str, str], Rule] = {}


def rule(backend: str, *operators: str) -> Callable[[Rule], Rule]:
    """Register the scratch rule of some operators on one backend; a second one for the same is refused."""

    def register(function: Rule) -> Rule:
        for operator in operators:
            if (backend, operator) in _RULES:
                raise ValueError(f"{operator} on {backend} has a rule already")
            _RULES[backend, operator] = function
        return function

    return register


def scratch_bytes(backend: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int | None:
    """Bytes that a kernel holds beside its outputs: 0 where none are known of, None where it takes some by no rule."""
    name = func.name() if hasattr(func, "name") else ""
    found = _RULES.get((backend, name))
    if found is not None:
        return max(0, found(out, *args, **kwargs))
    return None if name in UNMODELLED[backend] else 0


def _lanes() -> int:
    """Channels in a block of oneDNN's blocked layouts: 16 with AVX-512, else 8."""
    return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8


def _blocked(shape: Sequence[int], axes: tuple[int, ...], itemsize: int) -> int:
    """Bytes of a tensor in a blocked layout: some axes rounded up to whole blocks."""
    lanes = _lanes()
    return itemsize * prod(-(-size // lanes) * lanes if axis in axes else size for axis, size in enumerate(shape))


def _is_depthwise(x: Any, groups: int) -> bool:
    return groups == x.shape[1] and groups > 1


@rule("cpu", "aten::convolution")
def _cpu_convolution(
    out: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, *rest: Any
) -> int:
    """oneDNN reorders what it reads into blocks, and what it wrote back: x + w + y blocked, then y twice.

    Source: measured with torch's profiler, AVX2, torch 2.13 (an input of at most 4 channels is read as it is).
    """
    size = x.element_size()
    few = x.shape[1] <= 4
    read = 0 if few else _blocked(x.shape, (1,), size)
    axes = (0,) if few else (0, 1)
    kernel = weight.numel() * size if _is_depthwise(x, rest[1]) else _blocked(weight.shape, axes, size)
    written = _blocked(out.shape, (1,), size)
    result: int = out.numel() * size
    return max(read + kernel + written, written + result) - result


@rule("cpu", "aten::convolution_backward")
def _cpu_convolution_backward(out: Any, grad: Any, x: Any, weight: Any, *rest: Any) -> int:
    """The pass for the input, then the pass for the weights, each with blocked copies of what it reads and writes.

    Source: as for the forward.
    """
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
