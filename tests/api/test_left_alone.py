"""What a model or step does to its surroundings beyond the forward is undone by every call."""

from __future__ import annotations

import collections
import gc
import random
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.parts import of_parts
from tests.truth.snapshot import changes
from tests.truth.surroundings import surroundings
from torchsummary_plus import UnsupportedError, estimate_memory, graph, measure_memory, summary

CALLS: dict[str, Callable[..., Any]] = {
    "estimate": estimate_memory,
    "measure": measure_memory,
    "summary": lambda model, **options: summary(model, verbose=0, **options),
}
STEPPING = ["estimate", "measure"]


class Merging(nn.Linear):
    """LoRA as in loralib: ``train`` merges the low-rank weights into the others, or takes them out."""

    def __init__(self, features: int) -> None:
        super().__init__(features, features)
        self.down, self.up = nn.Parameter(torch.randn(4, features)), nn.Parameter(torch.randn(features, 4))
        self.merged = False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if mode is self.merged:
            self.weight.data += (-1 if mode else 1) * self.up @ self.down
            self.bias.data = self.bias.data + 1
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight, self.bias)
        return y if self.merged else y + x @ self.down.T @ self.up.T


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("now", ["train", "eval"])
def test_a_train_that_writes_to_weights(call: str, mode: str, now: str) -> None:
    model, x = Merging(16).train(now == "train"), torch.randn(4, 16)
    before, result = [p.detach().clone() for p in model.parameters()], model(x)
    CALLS[call](model, input_data=x, mode=mode)
    assert all(map(torch.equal, before, model.parameters()))
    assert model.training == (now == "train") and torch.equal(result, model(x))


class Switching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        torch.set_anomaly_enabled(True, check_nan=False)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("now", [True, False])
def test_a_forward_that_switches(call: str, now: bool) -> None:
    torch.set_anomaly_enabled(now)
    before = surroundings()
    try:
        CALLS[call](Switching(4, 4), input_data=torch.ones(2, 4))
        assert changes(before, surroundings()) == []
    finally:
        torch.set_anomaly_enabled(False)


class Freezing(nn.Sequential):
    """A frozen backbone as in mmdetection: ``train`` freezes it again."""

    def train(self, mode: bool = True) -> Freezing:
        super().train(mode)
        self[0].requires_grad_(False)
        return self


def test_parameters_frozen_by_train_have_no_gradients() -> None:
    model, plain = Freezing(nn.Linear(64, 64), nn.Linear(64, 64)), nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    plain[0].requires_grad_(False)
    peaks = [estimate_memory(each, (64,), 4, optimizer="sgd").peak_bytes for each in (model, plain)]
    assert peaks[0] == peaks[1] == measure_memory(plain, (64,), 4, optimizer="sgd").peak_bytes


class Holder:
    __slots__ = ("tensor",)


@pytest.mark.parametrize("call", STEPPING)
def test_a_users_own_state(call: str) -> None:
    array, generator, own = np.zeros(3), np.random.default_rng(0), random.Random(0)
    names, user, data = types.SimpleNamespace(n=0), collections.UserDict(n=0), bytearray(b"\0")
    held, cache = Holder(), weakref.WeakKeyDictionary[nn.Module, Tensor]()
    logs: dict[str, Any] = {"losses": [], "arrays": collections.deque([1], maxlen=1)}
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    rows, first = iter([torch.randn(2, 8) for _ in range(8)]), torch.randn(2, 8)
    states = generator.bit_generator.state, own.getstate()

    def step(model: nn.Module, x: Tensor) -> None:
        array[0] += generator.random() + own.random()
        names.n, user["n"], data[0] = names.n + 1, user["n"] + 1, data[0] + 1
        held.tensor = cache[model] = model(next(rows) + first).detach()
        first.mul_(2)
        logs["losses"].append(held.tensor.sum().item())
        logs["arrays"].append(np.zeros(4))

    copied = first.clone()
    CALLS[call](model, input_data=x, train_step=step)
    assert (array[0], names.n, user["n"], data[0]) == (0, 0, 0, 0)
    assert logs == {"losses": [], "arrays": collections.deque([1])}
    assert states == (generator.bit_generator.state, own.getstate())
    assert not hasattr(held, "tensor") and not cache and len(list(rows)) == 8 and torch.equal(copied, first)


def test_a_data_loader_with_workers_goes_on() -> None:
    rows = iter(torch.utils.data.DataLoader(torch.randn(24, 8), batch_size=4, num_workers=1))

    def step(model: nn.Module, x: Tensor) -> None:
        model(next(rows)).sum().backward()

    estimate_memory(nn.Linear(8, 8), input_data=torch.randn(4, 8), train_step=step, steps=1)
    assert len(list(rows)) == 5


@of_parts(lambda most: {"layers": nn.ModuleList([nn.Linear(16, 16)]), "most": most})
def Growing(self, x: Tensor) -> Tensor:
    """Adds a layer in its first forward, or in every one."""
    if len(self.layers) < self.most:
        self.layers.append(nn.Linear(16, 16))
    for layer in self.layers:
        x = layer(x)
    return x


@pytest.mark.parametrize(("most", "optimizer"), [(2, "adam"), (1000, "sgd")])
def test_layers_that_a_forward_adds_are_predicted_as_measured(most: int, optimizer: str) -> None:
    model, options = Growing(most), {"optimizer": optimizer, "loss": "mse"}
    estimate = estimate_memory(model, (16,), 4, **options)
    assert estimate.peak_bytes == measure_memory(model, (16,), 4, **options).peak_bytes and len(model.layers) == 1
    assert any("does not train them" in line for line in estimate.assumptions)


def test_a_model_that_grows_in_every_forward_has_no_table() -> None:
    with pytest.raises(UnsupportedError, match="create them once, in __init__"):
        summary(Growing(1000), (16,), verbose=0)


class GrowingTable(nn.Module):
    """Creates an embedding in its first forward."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "table"):
            self.table = nn.Embedding(10, 4)
        return self.table(x)  # type: ignore[no-any-return]


def test_an_embedding_that_a_forward_adds_gets_integers() -> None:
    model = GrowingTable()
    assert summary(model, (5,), verbose=0).total_params == 40 and not model._modules


def test_a_table_leaves_nothing_to_the_garbage_collector() -> None:
    """No cycle of references is left, neither of fakes nor of rows, so that they are freed at once."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()))
    summary(model, (4,), verbose=0)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        summary(model, (4,), verbose=0)
        gc.collect()
        left = [type(item) for item in gc.garbage if type(item).__module__.startswith("torchsummary_plus")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert left == []


SEEN: list[Tensor] = []
LAST: Tensor | None = None


@of_parts(lambda: {"linear": nn.Linear(4, 4)})
def Noting(self, x: Tensor) -> Tensor:
    global LAST
    LAST = self.linear(x)
    SEEN.append(LAST)
    return LAST


class Extractor:
    def __init__(self, model: nn.Module) -> None:
        self.features: dict[str, Tensor] = {}
        model.register_forward_hook(self.note)

    def note(self, module: nn.Module, args: Any, out: Tensor) -> None:
        self.features["out"] = out
        self.last = out


@pytest.mark.parametrize("run", ["fake", "real"])
@pytest.mark.parametrize("call", [summary, graph])
def test_hooks_and_forwards_leave_no_tensor_of_a_pass(call: Callable[..., Any], run: str) -> None:
    model, taps, last, calls = Noting(), [torch.ones(1)], None, [0]
    before, extractor = list(taps), Extractor(model)

    def note(module: nn.Module, args: Any, out: Tensor) -> None:
        nonlocal last
        last = out
        taps.append(out)
        calls.append(len(calls))

    model.linear.register_forward_hook(note)
    call(model, (4,), run=run, **({"verbose": 0} if call is summary else {}))
    assert taps[0] is before[0] and len(taps) == 1
    assert last is LAST is None and SEEN == []
    assert vars(extractor) == {"features": {}}
    assert calls == [0], "nothing is added to a log of numbers either"
    estimate_memory(model, (4,), 2)


@of_parts(lambda: {"linear": nn.Linear(4, 4, bias=False)})
def Flat(self, x: Tensor) -> Tensor:
    """A parameter whose elements another tensor has too, as the flat parameters of FSDP have."""
    assert self.flat.data.data_ptr() == self.linear.weight.data_ptr()
    self.flat.data.zero_()
    return self.linear(x)


def test_what_shares_a_parameters_elements_shares_them_in_a_real_pass() -> None:
    model = Flat()
    model.flat = types.SimpleNamespace(data=model.linear.weight.detach().view(-1))
    weight = model.linear.weight.detach().clone()
    summary(model, (4,), run="real", verbose=0)
    assert torch.equal(model.linear.weight, weight)
