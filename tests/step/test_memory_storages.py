"""One entry per storage, for tensors that a forward creates and writes to."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.parts import of_parts
from tests.truth.memory_truth import measure_run
from torchsummary_plus import estimate_memory

ROWS, WIDTH = 96, 64

pytestmark = pytest.mark.usefixtures("threads")

Layer = Callable[[Tensor], Tensor]


def sliced(layer: Layer, x: Tensor) -> Tensor:
    z = torch.empty(ROWS, WIDTH)
    for start in range(0, ROWS, 8):
        z[start : start + 8].copy_(layer(x[start : start + 8]))
    return z


def routed(layer: Layer, x: Tensor) -> Tensor:
    z = torch.zeros(ROWS, WIDTH)
    for expert in range(4):
        mine = (torch.arange(ROWS) % 4 == expert).nonzero()[:, 0]
        z.index_add_(0, mine, layer(x[mine]))
    return z


def from_elsewhere(layer: Layer, x: Tensor) -> Tensor:
    array = torch.from_numpy(np.ones((ROWS, WIDTH), dtype=np.float32))
    numbers = torch.tensor([[1.0] * WIDTH] * ROWS)
    return layer(x) * array[:].view(ROWS, WIDTH) + (numbers * 2).add_(layer(x))


def viewed_before(layer: Layer, x: Tensor) -> Tensor:
    z = torch.zeros(ROWS, WIDTH)
    view = z.view(4, -1, WIDTH)[1]
    part = layer(x[: len(view)])
    view.add_(part)
    z = z * 2
    return z + view.sum()


def given_data(layer: Layer, x: Tensor) -> Tensor:
    first, second, out = torch.zeros(ROWS, WIDTH), layer(x).detach(), torch.empty(0)
    first.data, second.data = second * 2, torch.ones(ROWS, WIDTH)
    torch.mul(first, 2, out=out)
    return layer(x) * first + second * out


def emptied(layer: Layer, x: Tensor) -> Tensor:
    y = layer(x)
    big = y.detach().repeat(3, 1)
    storage = big.untyped_storage()
    storage.resize_(0)
    z = (y * 2).tanh()
    storage.resize_(3 * x.nbytes)
    return z * big.sum()


def run_again(layer: Layer, x: Tensor) -> Tensor:
    places = torch.arange(ROWS * WIDTH).view(ROWS, WIDTH) / 100

    def part(x: Tensor, places: Tensor) -> Tensor:
        z = torch.zeros(ROWS, WIDTH)
        z.add_(layer(x))[:9].add_(1)
        return (z * places).tanh()

    return checkpoint(part, x, places, use_reentrant=False) + checkpoint(part, layer(x), places, use_reentrant=True)


FORWARDS = (sliced, routed, from_elsewhere, viewed_before, given_data, emptied, run_again)


@of_parts(lambda run: {"layer": nn.Linear(WIDTH, WIDTH), "run": run})
def Model(self, x: Tensor) -> Tensor:
    return self.run(self.layer, x).pow(2).mean()


def peak_of_two_steps(model: nn.Module, *there: Tensor) -> int:
    def run() -> None:
        for _ in range(2):
            model(there[0]).backward()
            model.zero_grad()

    return measure_run(run, [*model.parameters(), *there])


def itself(y: Tensor) -> Tensor:
    return y


@pytest.mark.parametrize("run", FORWARDS, ids=lambda run: run.__name__)
def test_what_a_forward_makes_and_writes_to_is_booked_once(run: Callable[[Layer, Tensor], Tensor]) -> None:
    model, x = Model(run), torch.randn(ROWS, WIDTH)
    assert estimate_memory(model, input_data=x, loss=itself).peak_bytes == peak_of_two_steps(model, x)
