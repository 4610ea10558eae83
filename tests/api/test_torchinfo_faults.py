"""Where torchinfo 1.8.0 is wrong, `summary` is right; docstrings have torchinfo's figure, tests the derivation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import summary
from torchsummary_plus.data.records import tensors


def mult_adds(model: nn.Module, *data: Tensor) -> int:
    """The same in both passes."""
    fake, real = (summary(model, input_data=data, run=run, verbose=0) for run in ("fake", "real"))
    assert fake.total_mult_adds == real.total_mult_adds
    assert not fake.unknown_ops and not real.unknown_ops
    return fake.total_mult_adds


def test_embedding_looks_up() -> None:
    """It says 6.4 M."""
    assert mult_adds(nn.Embedding(50_000, 64), torch.zeros(2, 16, dtype=torch.long)) == 0


def test_transposed_convolution() -> None:
    """It says 132,096: each of 8 x 8 input pixels meets 8 x 4 kernels of 4 x 4."""
    assert mult_adds(nn.ConvTranspose2d(8, 4, 4, 2, 1), torch.rand(1, 8, 8, 8)) == 8 * 8 * 8 * 4 * 4 * 4 == 32_768


def test_attention() -> None:
    """It says 0: three projections in, scores, weighted values, one projection out."""
    x = torch.rand(2, 16, 64)
    attention = nn.MultiheadAttention(64, 4, batch_first=True)
    true = 2 * 16 * 64 * 64 * 3 + 2 * 4 * 16 * 16 * 16 * 2 + 2 * 16 * 64 * 64
    assert mult_adds(attention, x, x, x) == true == 589_824
    with torch.no_grad():
        assert mult_adds(attention.eval(), x, x, x) == true


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.fc = nn.Parameter(torch.rand(64, 64)), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x @ self.w)


def test_product_with_a_parameter() -> None:
    """It says 16,640: the product is not seen."""
    assert mult_adds(Product(), torch.rand(4, 64)) == 2 * 4 * 64 * 64 == 32_768


def test_lstm_cell() -> None:
    """It says 7,168: four gates, each of 4 inputs and 8 states to 8."""
    assert mult_adds(nn.LSTMCell(4, 8), torch.rand(2, 4)) == 2 * 4 * 8 * (4 + 8) == 768


def test_tied_weights_count_once() -> None:
    """It says 3,200."""
    words, out = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
    out.weight = words.weight
    s = summary(nn.Sequential(words, out), (7,), dtypes=[torch.long], verbose=0)
    assert s.total_params == 1_600
    assert [row.num_params for row in s.rows] == [0, 1_600, 0]
    assert [row.repeated for row in s.rows] == [False, False, True]


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

    def net_of(size: int) -> nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(4, size)

            def forward(self, x: Tensor) -> Tensor:
                return self.fc(x)

        return Net()

    assert [summary(net_of(size), (4,), verbose=0).total_params for size in (2, 3)] == [10, 15]
