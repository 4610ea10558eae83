"""Tensors kept by a graph from before the steps live until the last reference to the graph is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.truth.weights_truth import agree, rows
from torchsummary_plus import estimate_memory
from torchsummary_plus.live.compat import SavedTensor
from torchsummary_plus.live.graphs import saved_by

WIDTH = 96

pytestmark = [
    pytest.mark.usefixtures("threads"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not hasattr(SavedTensor, "data"), reason="torch before 2.10 does not show saved tensors"),
]


class Kept(torch.autograd.Function):
    """A function whose context keeps its result as an attribute, and so itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.result = x.sigmoid()
        return ctx.result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * ctx.result * (1 - ctx.result)


class Remembering(nn.Module):
    """Two layers between which maps are kept with their graphs, in an attribute or in a list made anew."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.kind = kind
        self.last: Tensor | None = None
        self.maps: list[Tensor] = []
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self._hidden(x)
        if self.kind == "attribute":
            self.last = hidden.cos()
            return self.second(hidden * self.last)  # type: ignore[no-any-return]
        maps, pairs = [hidden.cos()], []
        maps.append((hidden * maps[0]).sin())
        pairs.append((hidden, maps[1]))
        self.maps, self.pairs = maps, pairs
        return self.second(maps[1])  # type: ignore[no-any-return]

    def _hidden(self, x: Tensor) -> Tensor:
        if self.kind == "checkpoint":
            return checkpoint(lambda y: self.first(y).exp().sigmoid(), x, use_reentrant=False)  # type: ignore[no-any-return]
        if self.kind == "save_on_cpu":  # Both nodes hold their own results, and so themselves.
            with torch.autograd.graph.save_on_cpu():
                return self.first(x).exp().sigmoid()  # type: ignore[no-any-return]
        if self.kind == "context":
            return Kept.apply(self.first(x).exp())
        return self.first(x).exp().sigmoid()  # type: ignore[no-any-return]


def used(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = Remembering(kind)
    model(torch.rand(48, WIDTH))
    return model


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("kind", ["attribute", "list", "checkpoint", "save_on_cpu", "context"])
def test_a_map_kept_with_its_graph(kind: str, mode: str) -> None:
    agree(lambda: used(kind), rows(16, WIDTH), mode)


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_the_graph_of_a_weight_made_by_a_hook(norm: Callable[[nn.Module], nn.Module]) -> None:
    agree(lambda: norm(nn.Linear(WIDTH, 33)), rows(8, WIDTH), "eval")


def test_the_graph_is_left_as_it_was() -> None:
    model = used("list")
    last = model.maps[-1]
    before = list(model.maps), list(model.pairs)
    estimate_memory(model, input_data=torch.rand(16, WIDTH))
    assert (model.maps, model.pairs) == before
    assert model.maps[-1] is last
    last.sum().backward()
    assert model.first.weight.grad is not None


def test_a_freed_graph_has_saved_nothing() -> None:
    x = torch.ones(4, requires_grad=True)
    y = (x * 2)[torch.tensor([1, 2])]
    assert any(saved.dtype is torch.int64 for saved in saved_by(y))
    y.sum().backward()
    assert saved_by(y) == []
