"""Traces at two or three batch sizes -> one trace with -1 on the axes that scale with the batch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from .records import Group, Structure, TensorSpec, Trace


def is_proportional(two: Trace, three: Trace) -> bool:
    """Return whether every call's multiply-adds are proportional to the batch, from batch 2 to batch 3."""
    return all(3 * a.macs == 2 * b.macs for a, b in zip(two.calls, three.calls))


def open_batch(two: Trace, three: Trace, four: Trace | None = None) -> Trace | None:
    """Extrapolate the trace of a batch of 1 from those of 2 and 3 (and 4 if multiply-adds are not proportional).

    An axis of length a + c*b becomes a + c, and counts as a batch axis unless c is 0. Multiply-adds are assumed to be
    at most quadratic in the batch. None if the calls depend on the batch size.
    """
    others = (three,) if four is None else (three, four)
    for other in others:
        if len(two.calls) != len(other.calls):
            return None
    calls = []
    for index, a in enumerate(two.calls):
        b, *_ = later = [other.calls[index] for other in others]
        if any((a.module, a.name, a.parent) != (call.module, call.name, call.parent) for call in later):
            return None
        try:
            (inputs, outputs), *_ = [(_open(a.inputs, call.inputs), _open(a.outputs, call.outputs)) for call in later]
        except ValueError:
            return None
        macs = a.macs // 2 if four is None else 3 * a.macs - 3 * b.macs + later[-1].macs
        calls.append(replace(a, inputs=inputs, outputs=outputs, macs=macs))
    flow = two.flow
    if flow is not None and three.flow is not None:
        with suppress(ValueError):  # If the steps depend on the batch size, the flow stays that of a batch of 2.
            links = zip(flow.links, three.flow.links, strict=True)
            flow = replace(flow, links=tuple(replace(a, tensor=_open_spec(a.tensor, b.tensor)) for a, b in links))
    inputs = _open(two.inputs, three.inputs)
    return replace(two, calls=tuple(calls), inputs=inputs, run=replace(two.run, batch_size=None), flow=flow)


def _open(a: Structure, b: Structure) -> Structure:
    """Return the structure at batch 1. Raises ValueError if the two have other items or numbers of axes."""
    if isinstance(a, TensorSpec) and isinstance(b, TensorSpec):
        return _open_spec(a, b)
    if isinstance(a, Group) and isinstance(b, Group):
        return replace(a, items=tuple(_open(x, y) for x, y in zip(a.items, b.items, strict=True)))
    if a is not b:
        raise ValueError("one is a tensor or a group")
    return a


def _open_spec(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    """Return the tensor at batch 1; its bytes are proportional to its elements if possible, else extrapolated."""
    shape, axes, elements, elements_of_one = [], [], 1, 1
    for axis, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)):
        shape.append(2 * x - y)
        elements *= x
        elements_of_one *= 2 * x - y
        if x != y:
            axes.append(axis)
    nbytes = max(0, 2 * a.nbytes - b.nbytes)
    if elements and a.nbytes % elements == 0:
        nbytes = a.nbytes // elements * elements_of_one
    return TensorSpec(tuple(shape), a.dtype, nbytes, tuple(axes))
