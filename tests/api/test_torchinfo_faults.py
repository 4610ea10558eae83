"""Where torchinfo 1.8.0 is wrong, `summary` is right; ids have torchinfo's figure, tests the derivation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import summary
from torchsummary_plus.data.records import tensors


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.fc = nn.Parameter(torch.rand(64, 64)), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x @ self.w)


ROWS = torch.rand(2, 16, 64)


@pytest.mark.parametrize(
    ("model", "data", "true"),
    [
        (nn.Embedding(50_000, 64), (torch.zeros(2, 16, dtype=torch.long),), 0),
        # Each of 8 x 8 input pixels meets 8 x 4 kernels of 4 x 4.
        (nn.ConvTranspose2d(8, 4, 4, 2, 1), (torch.rand(1, 8, 8, 8),), 8 * 8 * 8 * 4 * 4 * 4),
        # Three projections in and one out, scores and weighted values.
        (nn.MultiheadAttention(64, 4, batch_first=True), (ROWS,) * 3, 4 * 2 * 16 * 64 * 64 + 2 * 2 * 4 * 16 * 16 * 16),
        (Product(), (torch.rand(4, 64),), 2 * 4 * 64 * 64),
        # Four gates, each of 4 inputs and 8 states to 8.
        (nn.LSTMCell(4, 8), (torch.rand(2, 4),), 2 * 4 * 8 * (4 + 8)),
    ],
    ids=["embedding: 6.4 M", "transposed: 132,096", "attention: 0", "parameter: 16,640", "LSTM cell: 7,168"],
)
def test_multiply_adds(model: nn.Module, data: tuple[Tensor, ...], true: int) -> None:
    for run in ("fake", "real"):
        result = summary(model, input_data=data, run=run, verbose=0)
        assert result.total_mult_adds == true and not result.unknown_ops


def test_tied_weights_count_once() -> None:
    """It says 3,200."""
    words, out = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
    out.weight = words.weight
    s = summary(nn.Sequential(words, out), (7,), dtypes=[torch.long], verbose=0)
    assert s.total_params == 1_600
    assert [(row.num_params, row.repeated) for row in s.rows] == [(0, False), (1_600, False), (0, True)]


class Twice(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        pair = {"a": x, "b": x[:, :2]}
        return pair if self.kind is dict else tuple(pair.values())


@pytest.mark.parametrize("kind", [tuple, dict])
def test_all_outputs_are_shown(kind: type) -> None:
    """It shows the first or the last."""
    s = summary(nn.Sequential(Twice(kind)), (4,), batch_size=3, verbose=0)
    assert [spec.shape for spec in tensors(s.rows[1].outputs)] == [(3, 4), (3, 2)]
    assert s.rows[1].output_bytes == 4 * 3 * (4 + 2)


def test_another_model_of_the_same_class_is_another_model() -> None:
    """Its cache is keyed by the class's name."""
    kinds = [type("Net", (nn.Linear,), {}) for _ in range(2)]
    assert [summary(kind(4, size), (4,), verbose=0).total_params for kind, size in zip(kinds, (2, 3))] == [10, 15]
