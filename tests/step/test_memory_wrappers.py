"""Weights of tensor subclasses: wrappers of other tensors, and subclasses with a storage."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

from tests.parts import of_parts
from tests.step.wrapped_tensors import Both, Scaled, Scaling, Tagged
from tests.truth.memory_truth import storage_bytes
from tests.truth.weights_truth import agree, everything, rows
from torchsummary_plus import summary
from torchsummary_plus.api.memory import estimate_memory

WIDTH = 96

pytestmark = pytest.mark.usefixtures("threads")


@of_parts(lambda weight, trained: {"first": nn.Linear(WIDTH, WIDTH), "weight": nn.Parameter(weight, trained)})
def Times(self, x: Tensor) -> Any:
    return F.linear(self.first(x).relu(), self.weight)


class Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("bias", TwoTensor(torch.rand(WIDTH), torch.rand(WIDTH)))

    def forward(self, x: Tensor) -> Any:
        return self.first(x) * self.bias


class Beside(nn.Module):
    """A parameter of a class of its own, which knows its scale; an object and a list know another."""

    def __init__(self) -> None:
        super().__init__()
        weight: Any = torch.Tensor._make_subclass(Scaling, torch.rand(WIDTH, WIDTH), True)
        weight.scale = torch.rand(WIDTH, 1)
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = self.weight
        assert isinstance(weight, Scaling)
        return x @ weight.scaled()


class Tags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH, WIDTH))
        self.register_buffer("tagged", torch.rand(WIDTH, WIDTH).as_subclass(Tagged))

    def forward(self, x: Tensor) -> Tensor:
        y = x @ (self.weight * self.tagged)
        assert isinstance(y, Tagged)
        return (y.as_subclass(Tensor) + 1).relu()


def drawn() -> Tensor:
    return torch.rand(WIDTH, WIDTH)


def two(inner: Callable[[], Tensor] = drawn) -> Tensor:
    return TwoTensor(inner(), inner())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "two": lambda: Times(two(), True),
    "two of two": lambda: Times(two(two), True),
    "scaled": lambda: Times(Scaled.of(drawn()), False),
    "without flattening": lambda: Times(Both(drawn(), drawn()), True),
    "a buffer": Bias,
    "attributes": Beside,
    "a class that stays": Tags,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_class_of_its_own(name: str) -> None:
    agree(MODELS[name], rows(8, WIDTH), "train", torch.optim.SGD)


@pytest.mark.parametrize("name", MODELS)
def test_the_table_has_logical_shapes_and_the_bytes_held(name: str) -> None:
    model = MODELS[name]()
    done = summary(model, (WIDTH,), verbose=0)
    real = summary(model, (WIDTH,), verbose=0, run="real")
    assert (done.run.kind, real.run.kind) == ("fake", "real")
    assert done.total_params == sum(p.numel() for p in model.parameters())
    assert done.rows == real.rows
    assert (done.param_bytes, done.buffer_bytes) == (real.param_bytes, real.buffer_bytes)


def test_bytes_are_those_of_the_storages_inside() -> None:
    weight = Scaled.of(drawn())
    done = summary(Times(weight, False), (WIDTH,), verbose=0)
    assert done.param_bytes == storage_bytes([weight.data8, weight.scale]) + 4 * (WIDTH**2 + WIDTH)
    assert done.total_params == 2 * WIDTH**2 + WIDTH
    shared = torch.rand(WIDTH, WIDTH)
    twice = summary(Times(TwoTensor(shared, shared), True), (WIDTH,), verbose=0)
    assert twice.param_bytes == 4 * (2 * WIDTH**2 + WIDTH)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_left_as_it_was(name: str) -> None:
    model = MODELS[name]()
    before = everything(model)
    options = {"input_data": torch.rand(4, WIDTH)}
    estimate_memory(model, **options, optimizer="sgd")
    for run in ("fake", "real"):
        summary(model, **options, verbose=0, run=run)
    assert everything(model) == before
