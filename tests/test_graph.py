"""The graph of a model: its edges are those that autograd would walk, whatever the forward does."""

from __future__ import annotations

import pytest
import torch
from graph_models import MODELS
from graph_truth import autograd_edges, graph_edges, leaves
from torch import nn

from torchsummary_plus import InputError, ModelGraph, graph, summary


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("run", ["auto", "real"])
def test_the_edges_are_those_of_the_autograd_graph(name: str, run: str) -> None:
    build, make = MODELS[name]
    torch.manual_seed(0)
    model, args = build(), make()
    drawing = graph(model, input_data=args, repeats="all", run=run)
    assert graph_edges(drawing) == autograd_edges(model, leaves(drawing), *args)
