"""Modules whose own ``train()`` rejects the step's mode."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import estimate_memory, measure_memory, summary

pytestmark = pytest.mark.usefixtures("threads")


class Agent(nn.Module):
    """Its method of this name trains it, as beginners' models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def train(self, batches: Any) -> None:  # type: ignore[override]
        for x in batches:
            self(x).sum().backward()


def exported() -> nn.Module:
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    return torch.export.export(net, (torch.randn(8, 16),)).module()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "exported": exported,
    "with a head": lambda: nn.Sequential(exported(), nn.Dropout(0.5), nn.Linear(4, 2)),
    "a loop named train": Agent,
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_the_step_runs_in_the_mode_that_a_module_keeps_and_says_so(name: str, mode: str) -> None:
    model, x = MODELS[name](), torch.randn(8, 16)
    modes = [module.training for module in model.modules()]
    predicted = estimate_memory(model, input_data=x, mode=mode)
    measured = measure_memory(model, input_data=x, mode=mode)
    assert predicted.peak_bytes == measured.peak_bytes
    for result in (predicted, measured):
        assert sum("stays in training mode: its train() raised" in line for line in result.assumptions) == 1
    assert [module.training for module in model.modules()] == modes


def test_the_root_of_an_exported_module_has_one_row() -> None:
    table = summary(exported(), input_data=torch.randn(8, 16), verbose=0)
    assert [row.path for row in table.rows if row.called and row.class_name == "GraphModule"] == [""]
    assert table.total_mult_adds == 8 * (16 * 64 + 64 * 4)
