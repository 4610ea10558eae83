"""Products of conjugated matrices: BLAS conjugates only what it transposes, and torch copies the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import estimate_memory, measure_memory


class Product(nn.Module):
    """A complex linear layer, and a function of its result and of its weight."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(40, 64, bias=bias, dtype=torch.cfloat)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(torch.complex(x, x))
        return self.function(y, self.layer.weight).abs()


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "itself": lambda y, w: y,
    "rows": lambda y, w: y.conj() @ w,
    "columns": lambda y, w: y @ w.conj(),
    "adjoint": lambda y, w: y.mH @ y,
    "transposed conjugate": lambda y, w: y.conj().mT @ y,
    "added": lambda y, w: torch.addmm(w.conj(), w, (w.mT @ w).conj()),
    "one column": lambda y, w: y.conj() @ w[:, :1],
    "one row": lambda y, w: y[:1].conj() @ w.conj(),
    "batch": lambda y, w: torch.bmm(y.expand(3, -1, -1).conj(), w.expand(3, -1, -1)),
    "batch, adjoint": lambda y, w: torch.bmm(w.mH.expand(3, -1, -1), y.mT.expand(3, -1, -1)),
    "small batch": lambda y, w: torch.bmm(y[:4, :3].expand(2, -1, -1).conj(), w[:3, :2].expand(2, -1, -1)),
    "vector": lambda y, w: y @ w.conj()[:, 0],
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_of_conjugated_matrices(name: str, mode: str) -> None:
    model, x = Product(FUNCTIONS[name]), torch.rand(8, 40)
    predicted = estimate_memory(model, input_data=x, mode=mode).peak_bytes
    assert predicted == measure_memory(model, input_data=x, mode=mode).peak_bytes


def test_the_gradient_of_a_complex_layer_without_a_bias() -> None:
    model, x = Product(FUNCTIONS["itself"], bias=False), torch.rand(8, 40)
    assert estimate_memory(model, input_data=x).peak_bytes == measure_memory(model, input_data=x).peak_bytes
