"""Products of Householder reflectors, forward and backward, against real steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from torchsummary_plus import estimate_memory, measure_memory
from torchsummary_plus.step.autograd.reflections import Applied, Product

pytestmark = pytest.mark.usefixtures("threads")


class Reflected(nn.Module):
    """A function of a parameter whose columns are reflectors."""

    def __init__(self, function: Callable[[Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(*shape, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.weight * x)


def twice(x: Tensor) -> Tensor:
    first = x * 1
    (grad,) = torch.autograd.grad(torch.orgqr(first, first[0]).square().sum(), first, create_graph=True)
    return grad


def applied(left: bool, transpose: bool) -> Reflected:
    def function(x: Tensor) -> Tensor:
        return torch.ormqr(x, x[0], x[:, :3] if left else x[:3], left=left, transpose=transpose)

    return Reflected(function, 9, 9)


MODELS = {
    "tall": Reflected(lambda x: torch.linalg.householder_product(x, x[0]), 60, 4),
    "a batch": Reflected(lambda x: torch.linalg.householder_product(x, x[..., 0, :]), 2, 3, 8, 8),
    "fewer factors": Reflected(lambda x: torch.orgqr(input=x, input2=x[0, :3]), 12, 6),
    "the method": Reflected(lambda x: x.orgqr(x[0]), 1, 1),
    "differentiated twice": Reflected(twice, 12, 5),
    "from the left": applied(True, False),
    "from the left, transposed": applied(True, True),
    "from the right": applied(False, False),
    "from the right, transposed": applied(False, True),
}


@pytest.mark.parametrize("name", MODELS)
def test_reflectors_take_what_they_take_for_real(name: str) -> None:
    x = torch.ones(1, dtype=torch.float64)
    estimate, truth = (call(MODELS[name], input_data=x) for call in (estimate_memory, measure_memory))
    assert (estimate.peak_bytes, estimate.unknown) == (truth.peak_bytes, ())


@pytest.mark.parametrize("outputs", [7, 90])
def test_an_orthogonal_layer_takes_what_it_takes_for_real(outputs: int) -> None:
    model = parametrizations.orthogonal(nn.Linear(30, outputs), orthogonal_map="householder")
    estimate, truth = (call(model, (30,), 4, optimizer="adam") for call in (estimate_memory, measure_memory))
    assert (estimate.peak_bytes, estimate.peak_range) == (truth.peak_bytes, (truth.peak_bytes, truth.peak_bytes))


@pytest.mark.parametrize("sides", [None, (True, False), (True, True), (False, False), (False, True)])
def test_the_gradients_are_those_of_torch(sides: tuple[bool, bool] | None) -> None:
    inputs = [torch.rand(*shape, dtype=torch.float64).requires_grad_() for shape in ((6, 6), (6,), (6, 6))]
    if sides is None:
        ours, theirs = Product.apply(*inputs[:2]), torch.linalg.householder_product(*inputs[:2])
    else:
        ours, theirs = Applied.apply(*inputs, *sides), torch.ormqr(*inputs, *sides)
    gradients, expected = (torch.autograd.grad(out.sin().sum(), inputs, allow_unused=True) for out in (ours, theirs))
    torch.testing.assert_close(gradients, expected)
