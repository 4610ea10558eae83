"""One entry per storage, for tensors that a forward creates and writes to, and for those outside the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.step import outside_steps as outside
from tests.step.outside_steps import STEPS, squared, tensors_held
from tests.step.storage_programs import ROWS, WIDTH, Program
from tests.told import Told
from tests.truth.memory_truth import measure_run
from torchsummary_plus import estimate_memory, measure_memory

pytestmark = pytest.mark.usefixtures("threads")

Layer = Callable[[Tensor], Tensor]


def added(layer: Layer, x: Tensor) -> Tensor:
    z = torch.zeros(ROWS, WIDTH)
    return z.add_(layer(x)).div_(3)


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


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.gather(1, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape).scatter_(1, index, gradients[0]), None


def scattered(layer: Layer, x: Tensor) -> Tensor:
    index = torch.zeros(ROWS, WIDTH, dtype=torch.long)
    y: Tensor = Gather.apply(layer(x), index)
    return y.tanh()


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


def dies_with_its_view(layer: Layer, x: Tensor) -> Tensor:
    z = torch.zeros(2 * ROWS, WIDTH)
    view = z[:ROWS].add_(layer(x).detach())
    del z
    w = view * 1
    del view
    return layer(x) * w


def moved(layer: Layer, x: Tensor) -> Tensor:
    z = torch.zeros(1, WIDTH, ROWS).squeeze_(0).t_().add_(layer(x))
    grown = torch.zeros(0).resize_(ROWS, WIDTH).copy_(layer(x).detach()).resize_(2 * ROWS, WIDTH)
    return z.unsqueeze_(0)[0] * grown[:ROWS]


def given_data(layer: Layer, x: Tensor) -> Tensor:
    first, second, out = torch.zeros(ROWS, WIDTH), layer(x).detach(), torch.empty(0)
    first.data, second.data = second * 2, torch.ones(ROWS, WIDTH)
    torch.mul(first, 2, out=out)
    return layer(x) * first + second * out


def given_storages(layer: Layer, x: Tensor) -> Tensor:
    y, target = layer(x).detach(), torch.ones(ROWS, WIDTH)
    first = torch.zeros(1).set_(y.untyped_storage(), 0, (ROWS, WIDTH))  # type: ignore[call-overload]
    second = (y * 2).set_(target.untyped_storage(), 0, (ROWS, WIDTH))
    del y, target
    return layer(x) * first + second


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


def without_gradient(layer: Layer, x: Tensor) -> Tensor:
    z = torch.zeros(ROWS, WIDTH)
    with torch.no_grad():
        z.copy_(layer(x))[3:9].add_(1)
    with torch.inference_mode():
        seen = torch.zeros(ROWS, WIDTH).add_(layer(x))
        seen = seen * 2
    return layer(x) * z


FORWARDS = (added, sliced, routed, scattered, from_elsewhere, viewed_before, dies_with_its_view, moved, given_data)
FORWARDS += (given_storages, emptied, run_again, without_gradient)


class Model(nn.Module):
    def __init__(self, run: Callable[[Layer, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.run = nn.Linear(WIDTH, WIDTH), run

    def forward(self, x: Tensor) -> Tensor:
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


SEEDS = (200, 203, 206, 209, 213, 217, 224, 231, 237, 241, 245, 250, 257)
"""Of programs that autograd does not refuse: no write to what a gradient still needs."""


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_on_what_they_make_and_on_what_was_there(seed: int) -> None:
    torch.manual_seed(seed)
    base, few, x = torch.randn(3 * ROWS, WIDTH), torch.randn(5, WIDTH), torch.randn(ROWS, WIDTH)
    model = Program(seed, (base[:ROWS], base[ROWS:].view(2, ROWS, WIDTH)[1], few))
    before = facts([base, *model.outside])
    peak = estimate_memory(model, input_data=x, loss=itself).peak_bytes
    assert_same(before, facts([base, *model.outside]))
    assert peak == peak_of_two_steps(model, x, base, few)


def test_arrays_of_numpy_are_not_written_to() -> None:
    array = np.ones((ROWS, WIDTH), dtype=np.float32)

    def run(layer: Layer, x: Tensor) -> Tensor:
        return torch.from_numpy(array).add_(1).mul(layer(x))

    estimate_memory(Model(run), (WIDTH,), ROWS, loss=itself)
    assert array.min() == array.max() == 1


def test_a_real_step_leaves_what_the_code_reaches_as_it_was() -> None:
    seen = torch.zeros(ROWS, WIDTH)

    def run(layer: Layer, x: Tensor) -> Tensor:
        y = layer(x)
        seen.add_(y.detach())
        return y * 2 if float(y.detach().abs().mean()) < 1e9 else y

    before = facts([seen])
    estimate = estimate_memory(Model(run), (WIDTH,), ROWS, loss=itself)
    said = "_local_scalar_dense in the model itself, 2 times: value taken from a real step"
    assert estimate.assumptions == (said,)
    assert_same(before, facts([seen]))


def test_batches_in_an_iterator_are_there_before_the_steps() -> None:
    batches = [torch.randn(ROWS, WIDTH) for _ in range(8)]
    waiting = iter(list(batches))

    def step(model: nn.Module, x: Tensor) -> None:
        squared(model(next(waiting))).backward()
        model.zero_grad()

    estimate = estimate_memory(nn.Linear(WIDTH, WIDTH), (WIDTH,), ROWS, train_step=step)
    assert estimate.at_peak["buffers"] == sum(batch.nbytes for batch in batches)


Facts = list[tuple[Any, ...]]


def facts(tensors: list[Tensor]) -> Facts:
    """All that a step could change of tensors."""
    return [
        (t, type(t), t._version, t.requires_grad, t.grad if t.is_leaf else None, t.data_ptr(), t.detach().clone())
        for t in tensors
    ]


def assert_same(before: Facts, after: Facts) -> None:
    assert len(before) == len(after)
    for (*old, values), (*new, now) in zip(before, after):
        assert [id(a) == id(b) if isinstance(a, Tensor) else a == b for a, b in zip(old, new)] == [True] * len(old)
        assert torch.equal(values, now)


def prepared(name: str) -> tuple[nn.Module, Callable[..., Any], Any, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(outside.WIDTH, outside.WIDTH), nn.ReLU(), nn.Linear(outside.WIDTH, 64))
    step, objects = STEPS[name](model)
    return model, step, (model, objects), torch.randn(outside.ROWS, outside.WIDTH)


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_holds_is_booked_once_and_left_as_it_was(name: str) -> None:
    model, step, objects, x = prepared(name)
    before = facts(tensors_held(objects))
    peaks = []
    for call in (estimate_memory, measure_memory):
        peaks.append(call(model, input_data=x, train_step=step).peak_bytes)
        assert_same(before, facts(tensors_held(objects)))

    def run() -> None:
        for _ in range(2):
            step(model, x)

    there = [tensor for tensor, *_ in before]
    assert peaks == [measure_run(run, [*there, x])] * 2


@pytest.mark.parametrize("name", ["target_network", "teacher", "master_weights", "averages", "bound_method"])
def test_what_a_step_holds_goes_along_to_a_card(name: str) -> None:
    model, step, objects, x = prepared(name)
    before = facts(tensors_held(objects))
    here, there = (estimate_memory(model, input_data=x, train_step=step, device=device) for device in ("cpu", "cuda"))
    assert_same(before, facts(tensors_held(objects)))
    for kind in ("parameters", "buffers", "optimizer_state"):
        blocks = there.at_peak[kind]
        assert 0 <= blocks - here.at_peak[kind] + 256 < 512 * 40, kind
    assert there.at_peak["parameters"] >= here.at_peak["parameters"] > 0


def test_an_average_with_buffers_of_its_own_has_an_estimate_on_a_card() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16))
    step, _ = STEPS["averages"](model)
    there = estimate_memory(model, (WIDTH,), 8, train_step=step, device="cuda")
    assert not any("CPU's kernels" in line for line in there.assumptions)


def test_what_a_step_changes_beside_tensors_is_put_back() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    trainer, notes = outside.Trainer(model), {"first": 1}
    count, last = outside.COUNT, trainer.last

    def step(model: nn.Module, x: Tensor) -> None:
        trainer.step(model, x)
        notes["first"] += 1

    estimate_memory(model, (WIDTH,), 8, train_step=step)
    measure_memory(model, (WIDTH,), 8, train_step=step)
    assert (trainer.done, trainer.last, len(trainer.losses), notes) == (0, last, 1, {"first": 1})
    assert count == outside.COUNT
    assert not trainer.optimizer.state


def test_a_step_that_fails_leaves_what_it_holds_as_it_was() -> None:
    model, step, objects, x = prepared("target_network")
    before = facts(tensors_held(objects))

    def failing(model: nn.Module, x: Tensor) -> None:
        step(model, x)
        raise OSError("planned")

    for call in (estimate_memory, measure_memory):
        with pytest.raises(Exception, match="planned"):
            call(model, input_data=x, train_step=failing)
        assert_same(before, facts(tensors_held(objects)))


def test_hooks_and_attributes_of_tensors_are_theirs_in_a_step_and_after_it() -> None:
    model, calls = nn.Linear(WIDTH, WIDTH), Told()
    weight: Any = model.weight
    weight.tag = "mine"
    weight.register_hook(lambda gradient: calls.put(weight.tag))
    hooks = weight._backward_hooks
    estimate_memory(model, (WIDTH,), 8, loss=squared)
    assert set(calls.all()) == {"mine"}
    assert weight._backward_hooks is hooks and weight._post_accumulate_grad_hooks is None
    squared(model(torch.randn(2, WIDTH))).backward()
    assert len(hooks) == 1 and weight.grad is not None and type(weight) is nn.Parameter


def test_tensors_that_autocast_knows_are_exchanged_and_given_back() -> None:
    model, x = nn.Linear(WIDTH, WIDTH), torch.randn(ROWS, WIDTH)
    before = facts(list(model.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
        for call in (estimate_memory, measure_memory):
            call(model, input_data=x, loss=squared)
            assert_same(before, facts(list(model.parameters())))
            model(x)


class Tapped(nn.Module):
    """Collects activations for the loss in a list, and begins a new one after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)
        self.taps: list[Tensor] = []
        self.wide.register_forward_hook(lambda module, args, out: self.taps.append(out.relu()))

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.wide(x).tanh())


def test_a_list_that_a_step_replaces_keeps_nothing_alive() -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        (model(x).square().mean() + sum(tap.mean() for tap in model.taps)).backward()
        model.zero_grad()
        model.taps = []

    model, x = Tapped(), torch.rand(64, 64)
    estimated, measured = (
        run(model, (64,), batch_size=64, train_step=step) for run in (estimate_memory, measure_memory)
    )

    def two_steps() -> None:
        step(model, x)
        step(model, x)

    assert estimated.peak_bytes == measured.peak_bytes == measure_run(two_steps, [*model.parameters(), x])
