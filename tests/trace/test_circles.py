"""Models whose modules refer to each other in a circle, as a layer that keeps its model."""

from collections.abc import Callable
from typing import Any

import pytest
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
