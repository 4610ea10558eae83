"""Traces at two or three batch sizes -> one trace with -1 on the axes that scale with the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .records import Call, Flow, Group, Structure, TensorSpec, Trace


def is_proportional(two: Trace, three: Trace) -> bool:
    """Return whether every call's multiply-adds are proportional to the batch, from batch 2 to batch 3."""
    return all(3 * a.macs == 2 * b.macs for a, b in zip(two.calls, three.calls))


def open_batch(two: Trace, three: Trace, four: Trace | None = None) -> Trace | None:
    """Extrapolate the trace of a batch of 1 from those of 2 and 3 (and 4 if multiply-adds are not proportional).

    An axis of length a + c*b becomes a + c, and counts as a batch axis unless c is 0. Multiply-adds are assumed to be
    at most quadratic in the batch. None if the calls depend on the batch size.
    """
    traces = [two, three, *([four] if four is not None else [])]
    if any(not _alike(two, other) for other in traces[1:]):
        return None
    calls = tuple(_open_call([trace.calls[index] for trace in traces]) for index in range(len(two.calls)))
    inputs = _open(two.inputs, three.inputs)
    flow = _open_flow(two.flow, three.flow)
    return replace(two, calls=calls, inputs=inputs, run=replace(two.run, batch_size=None), flow=flow)


def _open_flow(two: Flow | None, three: Flow | None) -> Flow | None:
    """Return the flow of a batch of 1; that of a batch of 2 if the steps depend on the batch size."""
    if two is None or three is None or len(two.links) != len(three.links):
        return two
    pairs = list(zip(two.links, three.links))
    if any(len(a.tensor.shape) != len(b.tensor.shape) for a, b in pairs):
        return two
    return replace(two, links=tuple(replace(a, tensor=_open_spec(a.tensor, b.tensor)) for a, b in pairs))


def _alike(two: Trace, three: Trace) -> bool:
    return len(two.calls) == len(three.calls) and all(
        (a.module, a.name, a.parent) == (b.module, b.name, b.parent)
        and _same_ranks(a.outputs, b.outputs)
        and _same_ranks(a.inputs, b.inputs)
        for a, b in zip(two.calls, three.calls)
    )


def _same_ranks(a: Structure, b: Structure) -> bool:
    if isinstance(a, TensorSpec) and isinstance(b, TensorSpec):
        return len(a.shape) == len(b.shape)
    if isinstance(a, Group) and isinstance(b, Group):
        return len(a.items) == len(b.items) and all(map(_same_ranks, a.items, b.items))
    return a is None and b is None


def _open_call(calls: Sequence[Call]) -> Call:
    two, three = calls[0], calls[1]
    macs = 3 * two.macs - 3 * three.macs + calls[2].macs if len(calls) == 3 else two.macs // 2
    return replace(two, inputs=_open(two.inputs, three.inputs), outputs=_open(two.outputs, three.outputs), macs=macs)


def _open(a: Structure, b: Structure) -> Structure:
    if isinstance(a, TensorSpec) and isinstance(b, TensorSpec):
        return _open_spec(a, b)
    if isinstance(a, Group) and isinstance(b, Group):
        return replace(a, items=tuple(map(_open, a.items, b.items)))
    return a


def _open_spec(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    shape = tuple(2 * x - y for x, y in zip(a.shape, b.shape))
    axes = tuple(axis for axis, (x, y) in enumerate(zip(a.shape, b.shape)) if x != y)
    return TensorSpec(shape, a.dtype, _bytes_of_one(a, b, shape), axes)


def _bytes_of_one(a: TensorSpec, b: TensorSpec, shape: tuple[int, ...]) -> int:
    """Return the bytes at batch 1: proportional to the elements if possible, else extrapolated from batches 2 and 3."""
    elements, ours = 1, 1
    for x, y in zip(a.shape, shape):
        elements *= x
        ours *= y
    if elements and a.nbytes % elements == 0:
        return a.nbytes // elements * ours
    return max(0, 2 * a.nbytes - b.nbytes)
