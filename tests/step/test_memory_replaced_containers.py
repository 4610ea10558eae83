"""Tensors in a container that a step drops are freed, and the user's container stays as it was."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.truth.memory_truth import measure_run
from torchsummary_plus import estimate_memory, measure_memory
from torchsummary_plus.live.compat import autocast_available

WIDTH, BATCH = 128, 256

pytestmark = [pytest.mark.usefixtures("threads"), pytest.mark.filterwarnings("ignore")]

Step = Callable[[nn.Module, Tensor], None]
GLOBAL: list[Tensor] = []


class Keeper(nn.Module):
    """Two layers; the first one's output is kept in an attribute until the step replaces the container."""

    def __init__(self, container: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(8 * WIDTH, 1)
        self.kept = container

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        put_into(self.kept, hidden)
        out: Tensor = self.second(hidden)
        return out


def put_into(container: Any, hidden: Tensor) -> None:
    if isinstance(container, dict) and "inner" in container:
        container["inner"].append(hidden)
    elif isinstance(container, dict):
        container["hidden"] = hidden
    elif isinstance(container, set):
        container.add(hidden)
    else:
        container.append(hidden)


KINDS: dict[str, Callable[[], Any]] = {
    "list": list,
    "dict": dict,
    "set": set,
    "deque": deque,
    "defaultdict": lambda: defaultdict(list),
    "ordered": OrderedDict,
    "with plain items": lambda: ["name", 3],
    "nested": lambda: {"inner": [], "count": 2},
}


def of_an_attribute(kind: str) -> tuple[nn.Module, Step]:
    model = Keeper(KINDS[kind]())

    def step(model: nn.Module, x: Tensor) -> None:
        model(x).sum().backward()
        model.zero_grad()
        model.kept = KINDS[kind]()

    return model, step


def of_a_closure(kind: str) -> tuple[nn.Module, Step]:
    container = KINDS[kind]()
    model = nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(8 * WIDTH, 1))

    def step(model: nn.Module, x: Tensor) -> None:
        nonlocal container
        hidden = model[0](x)  # type: ignore[index]
        put_into(container, hidden)
        model[1](hidden).sum().backward()  # type: ignore[index]
        del hidden
        model.zero_grad()
        container = KINDS[kind]()

    return model, step


def of_a_global(kind: str) -> tuple[nn.Module, Step]:
    model = nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(8 * WIDTH, 1))

    def step(model: nn.Module, x: Tensor) -> None:
        global GLOBAL
        GLOBAL.append(model[0](x))  # type: ignore[index]
        model[1](GLOBAL[-1]).sum().backward()  # type: ignore[index]
        model.zero_grad()
        GLOBAL = []

    return model, step


CASES = [(build, kind) for build in (of_an_attribute, of_a_closure) for kind in KINDS] + [(of_a_global, "list")]


@pytest.mark.parametrize(("build", "kind"), CASES)
def test_a_container_that_each_step_fills_and_replaces(build: Callable[[str], Any], kind: str) -> None:
    model, step = build(kind)
    x = torch.zeros(BATCH, WIDTH)

    def run() -> None:
        for _ in range(3):
            step(model, x)

    predicted, measured = (
        call(model, input_data=x, train_step=step, steps=3) for call in (estimate_memory, measure_memory)
    )
    truth = measure_run(run, [x, *model.parameters()])
    assert predicted.peak_bytes == measured.peak_bytes == truth


def test_a_gradient_scaler_lets_go_of_what_it_found() -> None:
    """``GradScaler.update`` replaces the dictionary in which ``unscale_`` keeps found infinities."""
    model = nn.Linear(WIDTH, WIDTH)
    with autocast_available():
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")

        def step(model: nn.Module, x: Tensor) -> None:
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        log = estimate_memory(model, (WIDTH,), BATCH, device="cuda", gpu="T4", train_step=step).log
    small = {number for number, storage in enumerate(log.storages) if storage.nbytes == 4}
    left = small - {number for _, number, nbytes in log.events if not nbytes}
    assert len(left) == 2, "the scale and the growth tracker alone"


BACKENDS: dict[str, object] = {}


class Backend:
    """What a library keeps of the framework it runs on: the imported module itself."""

    def __init__(self) -> None:
        self.framework = torch


class Looked(nn.Module):
    """A layer that enters its backend in a global table at first use, as einops does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        BACKENDS.setdefault("torch", Backend())
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_table_of_objects_that_hold_an_imported_module() -> None:
    model, x = Looked(), torch.randn(4, WIDTH)
    assert estimate_memory(model, input_data=x).peak_bytes == measure_memory(model, input_data=x).peak_bytes
    assert not BACKENDS
