"""A summary changes nothing in the model, its inputs or the process, even if it fails."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.trace.seen import tensors_in
from tests.trace.zoo import ZOO, Case, ready
from tests.truth.snapshot import changes, snapshot
from torchsummary_plus import ForwardError, summary
from torchsummary_plus.data.errors import SummaryError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

PASSES = ["fake", "real"]

STATEFUL = ["RemembersOutputs", "KeepsCollections", "OwnGenerators", "ChangesItself", "SwapsItsData", "mixed_modes"]


class Planned(Exception):
    """The failure that a test puts into a layer."""


class Interrupt(BaseException):
    """Not an Exception: what Ctrl-C is."""


def can(case: Case, run: str) -> bool:
    return not (case.real_only if run == "fake" else case.fake_only)


def leaves_all_unchanged(model: nn.Module, call: dict[str, Any], **options: Any) -> BaseException | None:
    """Summarise between two snapshots, which must be equal; the exception it ended with, if any."""
    before = snapshot(model, call)
    caught: BaseException | None = None
    try:
        summary(model, **call, verbose=0, **options)
    except (SummaryError, Planned, Interrupt) as error:
        caught = error
    assert changes(before, snapshot(model, call)) == []
    return caught


@pytest.mark.parametrize("name", ZOO)
def test_after_success(name: str) -> None:
    """The second summary of one model is the first one, too: no trace of the first is left anywhere."""
    case = ready(name)
    model = case.build()
    for run in PASSES:
        caught = leaves_all_unchanged(model, case.call(), run=run)
        assert caught is None or not can(case, run), caught
    first, second = (summary(model, **case.call(), verbose=0) for _ in range(2))
    assert case.volatile or first.rows == second.rows


def _forward_fails(layer: nn.Module, kind: type[BaseException]) -> None:
    def forward(*args: Any, **kwargs: Any) -> None:
        raise kind("planned")

    vars(layer)["forward"] = forward


def _hook_fails(layer: nn.Module, kind: type[BaseException]) -> None:
    layer.register_forward_hook(_raises(kind))


def _raises(kind: type[BaseException]) -> Callable[..., None]:
    def hook(module: nn.Module, *_: Any) -> None:
        raise kind("planned")

    return hook


@pytest.mark.parametrize("name", ZOO)
def test_after_a_failure_in_any_layer(name: str) -> None:
    case = ready(name)
    last = len(list(case.build().modules())) - 1
    failures = (0, _forward_fails, "real"), (last // 2, _forward_fails, "fake"), (last, _hook_fails, "fake")
    for number, make_fail, run in failures:
        model = case.build()
        path, layer = list(model.named_modules())[number]
        if isinstance(layer, torch.jit.ScriptModule) or not can(case, run):
            continue
        make_fail(layer, Planned)
        caught = leaves_all_unchanged(model, case.call(), run=run)
        if case.opaque:
            continue
        if number == 0:
            assert isinstance(caught, ForwardError), "the root did not fail"
        if isinstance(caught, ForwardError):
            assert isinstance(caught.__cause__, Planned)
            if make_fail is _forward_fails:
                assert model.get_submodule(caught.path) is layer, f"{caught.path!r} named, {path!r} failed"


def _fail_at(model: nn.Module, nth: int) -> None:
    """Make the ``nth`` call of any module, and each one after it, raise."""
    calls = [0]

    def hook(module: nn.Module, args: Any) -> None:
        calls[0] += 1
        if calls[0] > nth:
            raise Planned(f"call {nth}")

    for module in model.modules():
        if not isinstance(module, torch.jit.ScriptModule):
            module.register_forward_pre_hook(hook)


def _disturb(model: nn.Module, dice: random.Random) -> None:
    """Leave a model as training leaves it: modes mixed, some weights frozen, some with gradients."""
    for module in model.modules():
        if not isinstance(module, torch.jit.ScriptModule):
            module.training = dice.random() < 0.5
    for parameter in model.parameters():
        if isinstance(parameter, nn.UninitializedParameter) or not parameter.is_leaf or hasattr(parameter, "to_local"):
            continue
        if parameter.dtype.is_floating_point and parameter.element_size() > 1:
            parameter.requires_grad_(dice.random() < 0.5)
            if dice.random() < 0.5 and parameter.numel() < 10_000:
                parameter.grad = torch.rand_like(parameter)


@settings(max_examples=50, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(
    name=st.sampled_from([name for name, case in ZOO.items() if not case.needs]),
    run=st.sampled_from(["auto", "fake", "real"]),
    mode=st.sampled_from(["same", "train", "eval"]),
    nth=st.one_of(st.none(), st.integers(0, 12)),
    seed=st.integers(0, 2**32 - 1),
    grad=st.booleans(),
)
def test_whatever_state_and_failure(name: str, run: str, mode: str, nth: int | None, seed: int, grad: bool) -> None:
    case = ZOO[name]
    dice = random.Random(seed)
    model, call = case.build(), case.call(batch_size=dice.choice([-1, 1, 3]))
    _disturb(model, dice)
    if nth is not None:
        _fail_at(model, nth)
    for tensor in tensors_in(call):
        if tensor.is_floating_point():
            tensor.requires_grad_(dice.random() < 0.5)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    with torch.set_grad_enabled(grad):
        leaves_all_unchanged(model, call, run=run, mode=mode)


@pytest.mark.parametrize("name", STATEFUL)
def test_the_snapshot_sees_what_a_forward_changes(name: str) -> None:
    """The measuring instrument itself: still on a still model, and moved by a plain forward."""
    case = ZOO[name]
    model = case.build()
    args, kwargs = case.arguments()
    before = snapshot(model)
    assert changes(before, snapshot(model)) == []
    model(*args, **kwargs)
    assert changes(before, snapshot(model))
