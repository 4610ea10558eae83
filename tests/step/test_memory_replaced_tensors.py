"""Tensors that a step replaces, in the model or beside it, are freed when the program frees them."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import record_function

from tests.truth.memory_truth import cpu_changes, cpu_deltas, highest, storage_bytes
from tests.truth.weights_truth import STEPS, agree, rows
from torchsummary_plus import estimate_memory, measure_memory

WIDTH = 128

pytestmark = [pytest.mark.usefixtures("threads"), pytest.mark.filterwarnings("ignore")]


class Stateful(nn.Module):
    """A linear layer, and a square state that each forward replaces."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.kind = kind
        if kind == "buffer":
            self.register_buffer("state", torch.zeros(WIDTH, WIDTH))
        else:
            self.state: Any = _held_in(kind)

    def forward(self, x: Tensor) -> Tensor:
        state = self.state
        old = (
            state[0] if isinstance(state, (list, tuple, deque)) else state["one"] if isinstance(state, dict) else state
        )
        new = old * 0.9 + self.layer.weight.detach() * 0.1
        if isinstance(state, (list, deque)):
            state[0] = new
        elif isinstance(state, dict):
            state["one"] = new
        else:
            self.state = (new,) if isinstance(state, tuple) else new
        del state, old
        out: Tensor = self.layer(x) @ new
        return out


def _held_in(kind: str) -> Any:
    state = torch.zeros(WIDTH, WIDTH)
    kinds: dict[str, Any] = {"list": [state], "dict": {"one": state}, "tuple": (state,), "deque": deque([state])}
    return kinds.get(kind, state)


@pytest.mark.parametrize("kind", ["buffer", "attribute", "list", "dict", "tuple", "deque"])
def test_a_state_that_is_replaced(kind: str) -> None:
    agree(lambda: Stateful(kind), rows(4, WIDTH), "train", torch.optim.SGD)


def two_norms() -> nn.Module:
    norm = nn.utils.weight_norm
    return nn.Sequential(norm(nn.Linear(WIDTH, 256)), nn.ReLU(), norm(nn.Linear(256, WIDTH)))


def used_spectral_norm() -> nn.Module:
    model = nn.utils.spectral_norm(nn.Linear(WIDTH, 256))
    model(torch.rand(4, WIDTH))
    return model


@pytest.mark.parametrize("build", [two_norms, used_spectral_norm])
def test_a_weight_that_each_forward_makes(build: Callable[[], nn.Module]) -> None:
    agree(build, rows(4, WIDTH), "train", torch.optim.SGD)


def test_a_forward_leaves_what_it_replaces_as_it_was() -> None:
    model = Stateful("dict")
    container, state = model.state, model.state["one"]
    for call in (estimate_memory, measure_memory):
        call(model, (WIDTH,), 4)
        assert model.state is container and container["one"] is state and not state.any()


HIDDEN = torch.zeros(0)


def of_a_closure() -> Callable[[nn.Module, Tensor], None]:
    hidden = torch.zeros(WIDTH, WIDTH)

    def step(model: nn.Module, x: Tensor) -> None:
        nonlocal hidden
        out = model(x) @ hidden
        out.sum().backward()
        model.zero_grad()
        hidden = hidden * 0.5 + out.detach().mean()

    return step


def of_a_module() -> Callable[[nn.Module, Tensor], None]:
    global HIDDEN
    HIDDEN = torch.zeros(WIDTH, WIDTH)

    def step(model: nn.Module, x: Tensor) -> None:
        global HIDDEN
        out = model(x) @ HIDDEN
        out.sum().backward()
        model.zero_grad()
        HIDDEN = HIDDEN * 0.5 + out.detach().mean()

    return step


def of_a_queue() -> Callable[[nn.Module, Tensor], None]:
    seen = deque([torch.zeros(WIDTH, WIDTH) for _ in range(2)], maxlen=2)
    lengths: list[int] = []

    def step(model: nn.Module, x: Tensor) -> None:
        out = model(x) @ seen[0]
        out.sum().backward()
        model.zero_grad()
        seen.append(seen[-1] + out.detach().mean())
        lengths.append(len(seen))

    return step


def of_a_class() -> Callable[[nn.Module, Tensor], None]:
    class Memory:
        last = torch.zeros(WIDTH, WIDTH)
        rows: ClassVar = [torch.zeros(WIDTH)]

    def step(model: nn.Module, x: Tensor) -> None:
        out = model(x) @ Memory.last
        out.sum().backward()
        model.zero_grad()
        Memory.last = Memory.last * 0.5 + out.detach().mean()
        Memory.rows = [Memory.last[0] * 2]

    return step


@pytest.mark.parametrize("make", [of_a_closure, of_a_module, of_a_queue, of_a_class])
def test_a_state_of_the_step(make: Callable[[], Callable[[nn.Module, Tensor], None]]) -> None:
    model, x = nn.Linear(WIDTH, WIDTH), torch.rand(4, WIDTH)

    def run() -> None:
        step = make()
        for _ in range(2):
            step(model, x)

    predicted, measured = (
        call(model, input_data=x, train_step=make()).peak_bytes for call in (estimate_memory, measure_memory)
    )
    there = storage_bytes([*model.parameters(), x])
    assert predicted == measured == there + highest(cpu_deltas(run))[0]


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_an_optimizer_that_has_searched_before(search: str | None) -> None:
    """What it has of earlier steps, and their gradients, go when it replaces them."""

    def make() -> tuple[nn.Module, Tensor, Callable[[nn.Module, Tensor], None]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, line_search_fn=search)

        def step(model: nn.Module, x: Tensor) -> None:
            def closure() -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = (model(x) - x).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)  # type: ignore[arg-type]

        x = torch.randn(32, WIDTH) * 3
        step(model, x)
        return model, x, step

    def run() -> None:
        model, x, step = make()
        gc.collect()
        with record_function(STEPS):
            for _ in range(2):
                step(model, x)

    run()
    level = peak = 0
    for change in cpu_changes(run):
        level += change.nbytes
        peak = max(peak, level) if change.names[:1] == (STEPS,) else peak
    for call in (estimate_memory, measure_memory):
        model, x, step = make()
        assert call(model, input_data=x, train_step=step).peak_bytes == peak


class Emptied(nn.Module):
    """A state without elements, which each forward replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.state = torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        self.state = x[:0].clone()
        out: Tensor = self.layer(x)
        return out


def test_a_state_without_bytes_that_is_replaced() -> None:
    agree(Emptied, rows(4, WIDTH), "train", torch.optim.SGD)


def test_the_truth_does_not_depend_on_what_earlier_profiles_saw() -> None:
    tensors: list[Tensor] = []
    cpu_deltas(lambda: tensors.append(torch.zeros(WIDTH, WIDTH)))
    assert cpu_deltas(tensors.clear) == []
