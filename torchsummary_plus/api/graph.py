"""`graph`: the calls of a model and the tensors between them, as data that draws itself."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..data.arguments import names_cures
from ..results.model_graph import ModelGraph, as_graph
from .habits import FOR_GRAPHS
from .public import public
from .table import summary


@public
@names_cures(FOR_GRAPHS)
def graph(
    model: nn.Module,
    input_size: Any = None,
    batch_size: int = -1,
    device: Any = None,
    dtypes: Any = None,
    *,
    input_data: Any = None,
    depth: int | None = None,
    repeats: str = "fold",
    functional: bool = True,
    mode: str = "same",
    run: str = "auto",
) -> ModelGraph:
    """Return the graph of a model: its calls as nodes, with an edge from each call to those that read its results.

    One forward runs, on fake tensors if possible. Tensors are followed by storage and version, so views, in-place
    writes, branches and modules that return their input are recognised, whatever Python code the model runs.

    Args:
        model, input_size, batch_size, device, dtypes, input_data, mode, run: as in :func:`summary`.
        depth: the deepest level with nodes of its own; None for every level.
        repeats: "fold" draws equal neighbours once, with their number; "show" draws each.
        functional: also show functional operations (``F.relu``, ``torch.cat``, ``+``) as nodes.

    Raises:
        InputError: an argument is not one of the accepted values, or there is no input.
        ForwardError: the model's forward failed.

    >>> drawing = graph(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), (8,))
    >>> [(edge.source, edge.target, edge.tensors[0].shown) for edge in drawing.edges]
    [(-2, 1, [-1, 8]), (1, 2, [-1, 4]), (2, -1, [-1, 4])]
    """
    result = summary(
        model, input_size, batch_size, device, dtypes,
        input_data=input_data, functional=functional, mode=mode, run=run, verbose=0,
    )  # fmt: skip
    return as_graph(result, depth, repeats)
