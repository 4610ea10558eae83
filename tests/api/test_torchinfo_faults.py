"""Where torchinfo 1.8.0 is wrong, `summary` is right; ids have torchinfo's figure, tests the derivation."""

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import summary


@of_parts(lambda: {"w": nn.Parameter(torch.rand(64, 64)), "fc": nn.Linear(64, 64)})
def Product(self, x: Tensor) -> Tensor:
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


def test_another_model_of_the_same_class_is_another_model() -> None:
    """Its cache is keyed by the class's name."""
    kinds = [type("Net", (nn.Linear,), {}) for _ in range(2)]
    assert [summary(kind(4, size), (4,), verbose=0).total_params for kind, size in zip(kinds, (2, 3))] == [10, 15]
