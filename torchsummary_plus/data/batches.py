"""Traces at two or three batch sizes -> one trace with -1 on the axes that scale with the batch."""

from __future__ import annotations

from dataclasses import replace

from .records import Flow, Group, Structure, TensorSpec, Trace


def is_proportional(two: Trace, three: Trace) -> bool:
    """Return whether every call's multiply-adds are proportional to the batch, from batch 2 to batch 3."""
    return all(3 * a.macs == 2 * b.macs for a, b in zip(two.calls, three.calls))


def open_batch(two: Trace, three: Trace, four: Trace | None = None) -> Trace | None:
    """Extrapolate the trace of a batch of 1 from those of 2 and 3 (and 4 if multiply-adds are not proportional).

    An axis of length a + c*b becomes a + c, and counts as a batch axis unless c is 0. Multiply-adds are assumed to be
    at most quadratic in the batch. None if the calls depend on the batch size.
    """
    others = (three,) if four is None else (three, four)
    if {len(two.calls)} != {len(other.calls) for other in others}:
        return None
    calls = []
    for index, a in enumerate(two.calls):
        for other in others:
            b = other.calls[index]
            if (a.module, a.name, a.parent) != (b.module, b.name, b.parent):
                return None
            if not (_same_ranks(a.outputs, b.outputs) and _same_ranks(a.inputs, b.inputs)):
                return None
        b = three.calls[index]
        macs = a.macs // 2 if four is None else 3 * a.macs - 3 * b.macs + four.calls[index].macs
        calls.append(replace(a, inputs=_open(a.inputs, b.inputs), outputs=_open(a.outputs, b.outputs), macs=macs))
    inputs, flow = _open(two.inputs, three.inputs), _open_flow(two.flow, three.flow)
    return replace(two, calls=tuple(calls), inputs=inputs, run=replace(two.run, batch_size=None), flow=flow)


def _open_flow(two: Flow | None, three: Flow | None) -> Flow | None:
    """Return the flow of a batch of 1; that of a batch of 2 if the steps depend on the batch size."""
    if two is None or three is None or len(two.links) != len(three.links):
        return two
    links = []
    for a, b in zip(two.links, three.links):
        if len(a.tensor.shape) != len(b.tensor.shape):
            return two
        links.append(replace(a, tensor=_open_spec(a.tensor, b.tensor)))
    return replace(two, links=tuple(links))


def _same_ranks(a: Structure, b: Structure) -> bool:
    if isinstance(a, TensorSpec) and isinstance(b, TensorSpec):
        return len(a.shape) == len(b.shape)
    if isinstance(a, Group) and isinstance(b, Group):
        return len(a.items) == len(b.items) and all(map(_same_ranks, a.items, b.items))
    return a is None and b is None


def _open(a: Structure, b: Structure) -> Structure:
    if isinstance(a, TensorSpec) and isinstance(b, TensorSpec):
        return _open_spec(a, b)
    if isinstance(a, Group) and isinstance(b, Group):
        return replace(a, items=tuple(map(_open, a.items, b.items)))
    return a


def _open_spec(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    """Return the tensor at batch 1; its bytes are proportional to its elements if possible, else extrapolated."""
    shape, axes, elements, elements_of_one = [], [], 1, 1
    for axis, (x, y) in enumerate(zip(a.shape, b.shape)):
        shape.append(2 * x - y)
        elements *= x
        elements_of_one *= 2 * x - y
        if x != y:
            axes.append(axis)
    nbytes = max(0, 2 * a.nbytes - b.nbytes)
    if elements and a.nbytes % elements == 0:
        nbytes = a.nbytes // elements * elements_of_one
    return TensorSpec(tuple(shape), a.dtype, nbytes, tuple(axes))
