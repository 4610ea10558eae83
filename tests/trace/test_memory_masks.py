"""Selecting by a mask: as many elements as the real values select, or all without real values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.trace.test_memory_values import Layer, loss, rows
from tests.truth.memory_truth import measure_run
from torchsummary_plus.api.memory import estimate_memory

SELECTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "elements": lambda x, mask: x[mask],
    "rows": lambda x, mask: x[mask[:, 0]],
    "rows of a column": lambda x, mask: x[:, mask[0]],
    "masked_select": lambda x, mask: x.masked_select(mask),
    "few": lambda x, mask: x.masked_select(mask[:, :1]),
    "put": lambda x, mask: x.index_put_((mask[:, 0],), x[: int(mask[:, 0].sum())].exp()),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_what_selecting_by_a_mask_takes(name: str) -> None:
    select = SELECTIONS[name]
    mask = rows() > 0

    class Selecting(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return select(x.double(), mask)

    x = rows()
    model = Selecting()
    estimate = estimate_memory(model, input_data=x, mode="eval", steps=1)
    with torch.no_grad():
        measured = measure_run(lambda: model(x), [*model.parameters(), x, mask])
    assert estimate.peak_bytes == measured
    assert estimate.assumptions == ()


def test_every_row_may_pass_a_mask() -> None:
    class All(Layer):
        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return y[y > -1e9].exp()

    with torch.device("meta"):
        bare = All()
    assumed, real = (estimate_memory(model, input_data=rows(), loss=loss) for model in (bare, All()))
    assert assumed.peak_bytes == real.peak_bytes
