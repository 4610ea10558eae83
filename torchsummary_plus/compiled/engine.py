"""``torch.autograd.grad`` in Python, for AOTAutograd's trace on fake CUDA: torch's own engine wants a GPU's stream.

It runs the nodes in the engine's order and reduces gradients to their input's shape and dtype, as the engine does
(torch/csrc/autograd/engine.cpp, ``validate_outputs``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..step.autograd.cuda_engine import ACCUMULATES, reached

Output = tuple[Any, int]
"""A node, and the number of one of its outputs."""


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, **how: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of inputs; the arguments are those of ``torch.autograd.grad``."""
    outputs, inputs = ([value] if isinstance(value, Tensor) else list(value) for value in (outputs, inputs))
    given = (
        (_place(output), torch.ones_like(output) if gradient is None else gradient)
        for output, gradient in zip(outputs, grad_outputs or [None] * len(outputs))
    )
    places = [_place(value) for value in inputs]
    with torch.set_grad_enabled(how.get("create_graph", False)):
        roots = [(place, gradient) for place, gradient in given if place is not None]
        found = _run(roots, {place[0] for place in places if place is not None})
    return tuple(None if place is None else found.get(place) for place in places)


def _place(value: Any) -> Output | None:
    """Return the output that a tensor is; None for one without a gradient."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return None
    edge = torch.autograd.graph.get_gradient_edge(value)
    return edge.node, edge.output_nr


def _run(roots: Sequence[tuple[Output, Tensor]], targets: set[Any]) -> dict[Output, Tensor]:
    """Return the gradients of all outputs on the way from the roots to the target nodes."""
    first = dict.fromkeys(node for (node, _), _ in roots)
    graph, needed = reached([*first]), set()
    for node in sorted(graph, key=_turn, reverse=True):  # A node's next functions were created before it.
        if any(following in targets or following in needed for following, _ in node.next_functions):
            needed.add(node)
    waits = Counter(following for node in graph for following, _ in node.next_functions if following is not None)
    found: dict[Output, Tensor] = {}
    for output, gradient in roots:
        _add(found, output, gradient)
    ready = [node for node in first if not waits[node]]
    while ready:
        node = min(ready, key=_turn)  # The first of equal ones.
        ready.remove(node)
        own = [found.get((node, number)) for number in range(len(node._input_metadata))]
        results: Any = (None,) * len(node.next_functions)
        if node in needed and any(gradient is not None for gradient in own):
            run = node if callable(node) else node.apply  # The latter is a function in Python.
            results = run(*own)
        results = results if isinstance(results, tuple) else (results,)
        for following, gradient in zip(node.next_functions, results):
            if following[0] is not None:
                _add(found, following, gradient)
                waits[following[0]] -= 1
                if not waits[following[0]]:
                    ready.append(following[0])
    return found


def _turn(node: Any) -> tuple[bool, int]:
    """Return what orders the nodes that are ready: accumulations first, then those created last."""
    return node.name() != ACCUMULATES, -node._sequence_nr()


def _add(found: dict[Output, Tensor], output: Output, gradient: Tensor | None) -> None:
    """Add a gradient of an output to what it has."""
    if gradient is not None:
        expected = output[0]._input_metadata[output[1]]
        if gradient.shape != expected.shape:
            gradient = gradient.sum_to_size(tuple(expected.shape))
        gradient = gradient.to(expected.dtype)
        found[output] = found[output] + gradient if output in found else gradient
