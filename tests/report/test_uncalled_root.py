"""Models whose own ``__call__`` replaces that of ``nn.Module``, as wrappers that keep an average of a model do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchsummary_plus import summary


class Average(nn.Module):
    """Passes calls on to one of two models, so that its own call runs no hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.heads = nn.Linear(4, 4), nn.ModuleDict({"average": nn.Linear(4, 4)})

    def __call__(self, x: Tensor) -> Tensor:
        average: Tensor = self.heads["average"](self.online(x))
        return average


def test_the_rows_of_an_uncalled_root() -> None:
    """The root is a container of the calls inside it, and its totals include theirs."""
    result = summary(Average(), input_data=torch.rand(2, 4), verbose=0)
    assert [(row.path, row.kind, row.depth) for row in result.rows] == [
        ("", "container", 0),
        ("online", "module", 1),
        ("heads", "container", 1),
        ("heads.average", "module", 2),
    ]
    assert result.total_params == sum(row.num_params for row in result.rows) == 40
    assert result.total_mult_adds == sum(row.own_mult_adds for row in result.rows) == 64
