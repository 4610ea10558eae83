"""Steps through linear algebra on the CPU: their peaks are those of torch's profiler, or in the range."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.truth.memory_truth import measure
from torchsummary_plus.api.memory import estimate_memory

pytestmark = pytest.mark.usefixtures("threads")


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(*shape, dtype=dtype)
    return x @ x.mT + 2 * shape[-1] * torch.eye(shape[-1], dtype=dtype)


@of_parts(lambda function, *shape: {"function": function, "weight": nn.Parameter(positive(*shape))})
def Applied(self, x: Tensor) -> Tensor:
    return self.function(self.weight) * x


@pytest.mark.parametrize("shape", [(12, 12), (6, 8, 8)])
@pytest.mark.parametrize("scale", [0.0, 0.1, 30.0])
def test_an_exponential_depends_on_norms_and_is_named(scale: float, shape: tuple[int, ...]) -> None:
    model, x = Applied(lambda w: torch.linalg.matrix_exp(scale * w), *shape), torch.ones(1)
    estimate = estimate_memory(model, input_data=x, mode="eval", steps=1)
    low, high = estimate.peak_range
    assert low <= measure(model, (x,), "eval", steps=1) <= high
    assert estimate.unknown == (("aten::linalg_matrix_exp", 1),)


@of_parts(lambda product: {"product": product, "weight": nn.Parameter(torch.rand(40, 30) + 0.5)})
def Multiplied(self, x: Tensor) -> Tensor:
    return self.product(x * self.weight)


PRODUCTS: dict[str, Callable[[Tensor], Tensor]] = {
    "of all": torch.prod,
    "along rows": lambda x: x.prod(1),
    "cumulative": lambda x: x.cumprod(dim=1),
    "powers": lambda x: torch.linalg.vander(x[:5], N=4),
}


@pytest.mark.parametrize("zeros", [0, 1, 120])
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_gradient_of_a_product_is_named_and_in_the_range(name: str, zeros: int) -> None:
    model, x = Multiplied(PRODUCTS[name]), torch.rand(40, 30) + 0.5
    x.flatten()[:zeros] = 0
    estimate = estimate_memory(model, input_data=x)
    low, high = estimate.peak_range
    assert low <= measure(model, (x,)) <= high
    assert any("prod" in operator.lower() for operator, _ in estimate.unknown)
    assert not estimate_memory(model, input_data=x, mode="eval").unknown
