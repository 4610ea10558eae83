"""Data-dependent values: small tensors keep theirs; others come from a real pass, or are assumed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.step.step_parts import truth
from tests.told import Told
from torchsummary_plus.api.memory import estimate_memory, measure_memory
from torchsummary_plus.data.errors import ForwardError
from torchsummary_plus.step import real_steps

WIDTH = 64
DEVICES = ("cpu", "cuda")


def rows() -> Tensor:
    return torch.randn(32, WIDTH)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)


@of_parts(lambda: {"gate": nn.Linear(WIDTH, 4), "experts": nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))})
def Experts(self, x: Tensor) -> Tensor:
    """Each row goes to one of four experts."""
    weight, chosen = self.gate(x).softmax(-1).max(-1)
    y = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        mine = torch.where(chosen == number)[0]
        y = y.index_add(0, mine, expert(x[mine]) * weight[mine, None])
    return y


class Masked(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y[y > 0].exp().sum() + y.masked_select(y < -0.5).exp().sum()


class Steered(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        for _ in range(int(10 * y.abs().mean().item()) + y.argmax(-1)[:2].tolist()[0] % 2):
            y = torch.tanh(self.linear(y))
        return y if bool((y > -9).all()) else y.exp()


@of_parts(lambda: {"part": Steered()})
def Inner(self, x: Tensor) -> Tensor:
    return self.part(x)


def loss(y: Tensor) -> Tensor:
    return y.pow(2).mean()


@pytest.mark.parametrize("build", [Experts, Masked, Steered])
def test_a_real_step_tells_sizes_and_values(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = build(), rows()
    before = {name: (id(t), t._version) for name, t in model.state_dict(keep_vars=True).items()}
    generator = torch.get_rng_state()
    estimate = estimate_memory(model, input_data=x, loss=loss)
    assert {name: (id(t), t._version) for name, t in model.state_dict(keep_vars=True).items()} == before
    assert torch.equal(torch.get_rng_state(), generator)
    assert estimate.assumptions
    assert all("taken from a real run" in assumption for assumption in estimate.assumptions)
    assert abs(estimate.peak_bytes - truth(model, x, loss)) <= 16
    on_card = estimate_memory(model, input_data=x, device="cuda", loss=loss)
    assert on_card.assumptions == estimate.assumptions


class Doubling(Layer):
    def forward(self, x: Tensor) -> Tensor:
        self.linear.weight.data.mul_(2)
        y = self.linear(x)
        return y[y > 0]


def test_a_real_step_leaves_the_parameters_that_it_writes_to() -> None:
    torch.manual_seed(0)
    model, x = Doubling(), rows()
    before = model.linear.weight.clone()
    estimate = estimate_memory(model, input_data=x, mode="eval")
    assert "taken from a real run" in estimate.assumptions[0]
    assert torch.equal(model.linear.weight, before)


def test_the_experts_of_later_steps_are_those_of_changed_weights() -> None:
    torch.manual_seed(0)
    model, x = Experts(), rows()
    options: dict[str, Any] = {
        "input_data": x,
        "loss": loss,
        "optimizer": lambda ps: torch.optim.SGD(ps, 10.0),
        "steps": 3,
    }
    estimate = estimate_memory(model, **options)
    assert estimate.peak_bytes == measure_memory(model, **options).peak_bytes


@pytest.mark.parametrize("limit", [("LONGEST", 400_000), ("MOST_BYTES", 40_000)], ids=["time", "memory"])
def test_after_an_abandoned_step_the_range_has_any_number_of_rows(
    limit: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = Experts(), rows()
    monkeypatch.setattr(real_steps, *limit)  # A forward, but no step.
    estimate = estimate_memory(model, input_data=x, loss=loss, optimizer=lambda ps: torch.optim.SGD(ps, 10.0))
    low, high = estimate.peak_range
    assert "nonzero in the model itself, 8 times: sizes taken from a real run" in estimate.assumptions
    assert low < estimate.peak_bytes < high


class Token(Layer):
    """Writes to rows and columns that masks select: what is one row, or stands for any number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(WIDTH))
        self.row = 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        chosen = x.sum(-1) > 0
        y[chosen] = self.token
        y[:, y[0] > 0] = y.detach()[:, y[0] > 0]
        last = x.sum(-1) == x.sum(-1).max()
        y[last] = y[last] * 2
        return y.exp()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_masked_writes_take_the_places_that_are_selected(mode: str) -> None:
    torch.manual_seed(0)
    model, x = Token(), torch.randn(4096, WIDTH)
    estimate = estimate_memory(model, input_data=x, mode=mode, loss=loss)
    assert not estimate.unknown
    assert estimate.peak_bytes == measure_memory(model, input_data=x, mode=mode, loss=loss).peak_bytes


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("build", "assumed"),
    [(Experts, "the same number of tokens, on every rank"), (Masked, "assumed to return its maximum size")],
)
def test_without_values_largest_sizes_are_possible(build: Callable[[], nn.Module], assumed: str, device: str) -> None:
    torch.manual_seed(0)
    real = estimate_memory(build(), input_data=rows(), device=device, loss=loss)
    with torch.device("meta"):
        bare = build()
    estimate = estimate_memory(bare, input_data=rows(), device=device, loss=loss)
    assert estimate.peak_range[1] >= real.peak_bytes
    assert estimate.assumptions
    assert all(assumption.endswith(assumed) for assumption in estimate.assumptions)


def test_a_real_step_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_steps, "LONGEST", 1000)
    estimate = estimate_memory(Experts(), (WIDTH,), 8, loss=torch.sum)
    assert all(assumption.endswith("same number of tokens, on every rank") for assumption in estimate.assumptions)
    with pytest.raises(ForwardError, match="more than 1,000 multiply-adds"):
        estimate_memory(Inner(), (WIDTH,), 8)


class Lengths(nn.Module):
    """Steered by integers of its own, of its input, and of those that it makes on the input's device."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("depth", torch.tensor(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows = torch.arange(mask.shape[0], device=mask.device)[mask.bool().any(1)]
        x = x[rows][:, : int(mask.sum(1).max())]
        if mask.bool().all():
            return x
        for _ in range(int(self.depth) + (torch.ones(2, 2, device=x.device).cumsum(0).max().long().item())):
            x = self.linear(x)
        return x[mask.bool()[rows][:, : x.shape[1]]]


def test_small_tensors_of_no_floats_keep_their_values_on_every_device() -> None:
    model = Lengths()
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    x = torch.randn(3, 4, WIDTH)
    shapes = Told()
    for device in DEVICES:
        estimate = estimate_memory(
            model, input_data=(x, mask), device=device, loss=lambda y: shapes.put(tuple(y.shape)) or y.sum()
        )
        assert estimate.assumptions == ()
    assert set(shapes.all()) == {tuple(model(x, mask).shape)} == {(5, WIDTH)}
