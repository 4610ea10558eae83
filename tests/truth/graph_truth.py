"""A model's edges by its autograd graph: which module reads the output of which."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from torchsummary_plus import ModelGraph
from torchsummary_plus.live.copying import Copier

End = tuple[str, int]
"""A module's path and the number of its call; "<input>" and the input's number; "<output>"."""


class _Mark(torch.autograd.Function):
    """A copy that has a node of its own in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def autograd_edges(model: nn.Module, paths: set[str], *args: Any, **kwargs: Any) -> set[tuple[End, End]]:
    """The edges between calls of the modules at ``paths``, by marking what each returns and walking the graph back."""
    marks: dict[Any, End] = {}
    calls: Counter[str] = Counter()
    nodes_by_end: defaultdict[End, list[Any]] = defaultdict(list)
    copies: list[torch.Tensor] = []  # Before torch 2.13, a custom function's node cannot be read without its result.

    def marked(value: Any, end: End) -> Any:
        def mark(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.requires_grad:
                return tensor
            copy = _Mark.apply(tensor)
            marks[copy.grad_fn] = end
            nodes_by_end[end].append(copy.grad_fn)
            copies.append(copy)
            return copy

        return Copier(mark).of(value)

    def hook(path: str) -> Any:
        def after(module: nn.Module, args: Any, output: Any) -> Any:
            calls[path] += 1
            return marked(output, (path, calls[path]))

        return after

    handles = [module.register_forward_hook(hook(path)) for path, module in model.named_modules() if path in paths]
    number = Counter[str]()

    def tracked(tensor: torch.Tensor) -> torch.Tensor:
        number["inputs"] += 1
        if not tensor.is_floating_point():
            return tensor
        return marked(tensor.clone().requires_grad_(), ("<input>", number["inputs"]))

    try:
        with torch.enable_grad():
            copier = Copier(tracked)
            output = model(*copier.of(args), **copier.of(kwargs))
            marked(output, ("<output>", 1))
    finally:
        for handle in handles:
            handle.remove()
    return {(source, end) for end, nodes in nodes_by_end.items() for node in nodes for source in _sources(node, marks)}


def _sources(node: Any, marks: dict[Any, End]) -> Iterator[End]:
    waiting, seen = [inner for inner, _ in node.next_functions], set()
    while waiting:
        previous = waiting.pop()
        if previous is None or previous in seen:
            continue
        seen.add(previous)
        if previous in marks:
            yield marks[previous]
        else:
            waiting += [inner for inner, _ in previous.next_functions]


def graph_edges(drawing: ModelGraph) -> set[tuple[End, End]]:
    """The edges of a graph between modules, inputs and output, by the same ends.

    Functions between them are walked through, along tensors that autograd follows: those of floating dtype.
    """
    nodes = {node.index: node for node in drawing.nodes}
    calls = Counter[str]()
    ends: dict[int, End] = {}
    for node in drawing.nodes:
        if node.kind in ("input", "output"):
            ends[node.index] = (f"<{node.kind}>", -node.index - 1 if node.kind == "input" else 1)
        elif node.kind == "module":
            calls[node.path] += 1
            ends[node.index] = (node.path, calls[node.path])
    read: defaultdict[int, list[int]] = defaultdict(list)
    for edge in drawing.edges:
        if any("float" in tensor.dtype for tensor in edge.tensors):
            read[edge.target].append(edge.source)
    items = set()
    for target, end in ends.items():
        waiting, seen = list(read[target]), set()
        while waiting:
            source = waiting.pop()
            if source in ends:
                items.add((ends[source], end))
            elif source not in seen:
                seen.add(source)
                assert nodes[source].kind == "function"
                waiting += read[source]
    return items


def leaves(drawing: ModelGraph) -> set[str]:
    return {node.path for node in drawing.nodes if node.kind == "module"}
