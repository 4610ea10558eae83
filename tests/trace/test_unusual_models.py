"""Models of unusual make: modules that refer to each other in a circle, and a ``__call__`` of a model's own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import estimate_memory, graph, max_batch_size, measure_memory, summary

CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "summary": lambda model: summary(model, (4,), 2, mode="eval", verbose=0).total_mult_adds,
    "graph": lambda model: len(graph(model, (4,), depth=0, mode="eval").nodes),
    "estimate_memory": lambda model: estimate_memory(model, (4,), 2, optimizer="adam").peak_bytes,
    "measure_memory": lambda model: measure_memory(model, (4,), 2, optimizer="adam").peak_bytes,
    "max_batch_size": lambda model: max_batch_size(model, (4,), 100_000, device="cpu").batch_size,
}


@of_parts(lambda *around: {"linear": nn.Linear(4, 4), "around": nn.ModuleList(around)})
def Layer(self, x: Tensor) -> Tensor:
    return self.linear(x)


class Model(nn.Module):
    """Layers, each of which may keep the model and its own neighbour."""

    def __init__(self, in_circles: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer() for _ in range(8)))
        for layer, other in zip(self.layers, reversed(self.layers)):
            layer.around.extend([self, other] if in_circles else [])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize("call", CALLS)
def test_a_circle_of_modules_is_a_model_like_any_other(call: str) -> None:
    model = Model(in_circles=True)
    model.layers[0].training = False
    modes = [module.training for module in model.modules()]
    assert CALLS[call](model) == CALLS[call](Model(in_circles=False))
    assert [module.training for module in model.modules()] == modes


class Average(nn.Module):
    """Passes calls on to one of two models, so that its own call runs no hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.heads = nn.Linear(4, 4), nn.ModuleDict({"average": nn.Linear(4, 4)})

    def __call__(self, x: Tensor) -> Tensor:
        average: Tensor = self.heads["average"](self.online(x))
        return average


def test_the_rows_of_an_uncalled_root() -> None:
    """The calls are inside the root's, and its totals include theirs."""
    result = summary(Average(), input_data=torch.rand(2, 4), verbose=0)
    assert [(row.path, row.kind, row.depth) for row in result.rows] == [
        ("", "module", 0),
        ("online", "module", 1),
        ("heads", "container", 1),
        ("heads.average", "module", 2),
    ]
    assert result.total_params == sum(row.num_params for row in result.rows) == 40
    assert result.total_mult_adds == sum(row.own_mult_adds for row in result.rows) == 64


class Scaled(nn.Module):
    def __init__(self, forwards: int) -> None:
        super().__init__()
        self.forwards, self.layer, self.weight = forwards, nn.Linear(4, 4), nn.Parameter(torch.rand(4, 4))

    def __call__(self, x: Tensor) -> Tensor:
        x = x @ self.weight
        for _ in range(self.forwards):
            x = super().__call__(x)
        return x @ self.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) @ self.weight
        return out


@pytest.mark.parametrize(("forwards", "hooked", "run"), [(0, False, "fake"), (1, True, "real"), (2, False, "real")])
def test_multiply_adds_of_an_overridden_call(forwards: int, hooked: bool, run: str) -> None:
    """Operators outside the root's forward are counted in its row; those of the forward once for each call."""
    model, product = Scaled(forwards), 2 * 4 * 4
    if hooked:
        model.register_forward_hook(lambda *_: None)
    result = summary(model, input_data=torch.rand(2, 4), verbose=0, run=run)
    assert result.total_mult_adds == sum(row.own_mult_adds for row in result.rows) == (2 + 2 * forwards) * product
    assert result.rows[0].path == "" and result.rows[0].mult_adds == result.total_mult_adds
    assert result.total_params == 36 and not result.unknown_ops
