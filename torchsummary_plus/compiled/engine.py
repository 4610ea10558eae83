"""``torch.autograd.grad`` in Python, for AOTAutograd's trace on fake CUDA: torch's own engine wants a GPU's stream.

It runs the nodes in the engine's order and reduces gradients to their input's shape and dtype, as the engine does
(torch/csrc/autograd/engine.cpp, ``validate_outputs``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..step.autograd.cuda_engine import ACCUMULATES, reached

Gradients = dict[int, Tensor]
"""The gradients of a node's outputs, by their numbers."""


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, **how: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of inputs; the arguments are those of ``torch.autograd.grad``."""
    outputs, inputs = ([value] if isinstance(value, Tensor) else list(value) for value in (outputs, inputs))
    wanted = [_place(value) for value in inputs]
    roots = [
        (*place, torch.ones_like(output) if given is None else given)
        for output, given in zip(outputs, grad_outputs or [None] * len(outputs))
        if (place := _place(output)) is not None
    ]
    with torch.set_grad_enabled(how.get("create_graph", False)):
        found = _run(roots, {place[0] for place in wanted if place is not None})
    return tuple(None if place is None else found.get(place) for place in wanted)


def _place(value: Any) -> tuple[Any, int] | None:
    """Return the node and the number of its output that a tensor is; None for one without a gradient."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return None
    edge = torch.autograd.graph.get_gradient_edge(value)
    return edge.node, edge.output_nr


def _run(roots: Sequence[tuple[Any, int, Tensor]], targets: set[Any]) -> dict[tuple[Any, int], Tensor]:
    """Return the gradients of the target nodes' outputs, from those of the roots."""
    graph = reached([node for node, _, _ in roots])
    waits = Counter(following for node in graph for following, _ in node.next_functions if following is not None)
    needed = _needed(graph, targets)
    held: dict[Any, Gradients] = {}
    found: dict[tuple[Any, int], Tensor] = {}
    ready: list[tuple[Any, ...]] = []
    order = count()

    def push(node: Any) -> None:
        heappush(ready, (node.name() != ACCUMULATES, -node._sequence_nr(), next(order), node))

    for node, number, gradient in roots:
        _add(held, node, number, gradient)
    for node in dict.fromkeys(node for node, _, _ in roots):
        if not waits[node]:
            push(node)
    while ready:
        node = heappop(ready)[-1]
        own = held.pop(node, {})
        if node in targets:
            found.update(((node, number), gradient) for number, gradient in own.items())
        runs = node.name() != ACCUMULATES and node in needed and own
        run = node if callable(node) else node.apply  # The latter is a function in Python.
        results = run(*map(own.get, range(len(node._input_metadata)))) if runs else (None,) * len(node.next_functions)
        for (following, number), gradient in zip(
            node.next_functions, results if isinstance(results, tuple) else (results,)
        ):
            if following is not None:
                _add(held, following, number, gradient)
                waits[following] -= 1
                if not waits[following]:
                    push(following)
    return found


def _needed(graph: set[Any], targets: set[Any]) -> set[Any]:
    """Return the nodes of a graph that lead to a target; a node's next functions were created before it."""
    needed: set[Any] = set()
    for node in sorted(graph, key=lambda node: (node.name() != ACCUMULATES, node._sequence_nr())):
        if any(following in targets or following in needed for following, _ in node.next_functions):
            needed.add(node)
    return needed


def _add(held: dict[Any, Gradients], node: Any, number: int, gradient: Tensor | None) -> None:
    """Add a gradient of a node's output to those that it has."""
    if gradient is None:
        return
    expected = node._input_metadata[number]
    if gradient.shape != expected.shape:
        gradient = gradient.sum_to_size(tuple(expected.shape))
    gradient = gradient.to(expected.dtype)
    own = held.setdefault(node, {})
    own[number] = own[number] + gradient if number in own else gradient
