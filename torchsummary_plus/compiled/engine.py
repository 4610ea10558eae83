"""``torch.autograd.grad`` in Python, for AOTAutograd's trace on fake CUDA: torch's own engine wants a GPU's stream.

It runs the nodes in the engine's order and reduces gradients to their input's shape and dtype, as the engine does
(torch/csrc/autograd/engine.cpp, ``validate_outputs``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..step.autograd.cuda_engine import reached

Output = tuple[Any, int]
"""A node, and the number of one of its outputs."""


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, **how: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of inputs; the arguments are those of ``torch.autograd.grad``."""
    outputs, inputs = ([value] if isinstance(value, Tensor) else list(value) for value in (outputs, inputs))
    places = [_place(value) for value in inputs]
    found: dict[Output, Tensor] = {}
    with torch.set_grad_enabled(how.get("create_graph", False)):
        for output, gradient in zip(outputs, grad_outputs or [None] * len(outputs)):
            _add(found, _place(output), torch.ones_like(output) if gradient is None else gradient)
        _run(found, {place[0] for place in places if place is not None})
    return tuple(None if place is None else found.get(place) for place in places)


def _place(value: Any) -> Output | None:
    """Return the output that a tensor is; None for one without a gradient."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return None
    edge = torch.autograd.graph.get_gradient_edge(value)
    return edge.node, edge.output_nr


def _run(found: dict[Output, Tensor], targets: set[Any]) -> None:
    """Add the gradients of all outputs on the way from those found to the target nodes."""
    nodes = sorted(reached([node for node, _ in found]), key=lambda node: node._sequence_nr())
    needed = set[Any]()
    for node in nodes:  # A node's next functions were created before it.
        if any(following in targets or following in needed for following, _ in node.next_functions):
            needed.add(node)
    for node in reversed(nodes):
        own = [found.get((node, number)) for number in range(len(node._input_metadata))]
        if node in needed and any(gradient is not None for gradient in own):
            results = (node if callable(node) else node.apply)(*own)  # The latter is a function in Python.
            for following, gradient in zip(node.next_functions, results if isinstance(results, tuple) else (results,)):
                _add(found, following, gradient)


def _add(found: dict[Output, Tensor], output: Any, gradient: Tensor | None) -> None:
    """Add a gradient of an output to what it has."""
    if gradient is not None and output is not None and output[0] is not None:
        expected = output[0]._input_metadata[output[1]]
        if gradient.shape != expected.shape:
            gradient = gradient.sum_to_size(tuple(expected.shape))
        gradient = gradient.to(expected.dtype)
        found[output] = found[output] + gradient if output in found else gradient
