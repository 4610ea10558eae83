"""Custom steps and every optimizer; what they hold is restored afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.step.step_parts import WIDTH, block, rows, squared
from tests.truth.memory_truth import measure_run
from torchsummary_plus.api.memory import estimate_memory, measure_memory
from torchsummary_plus.data.errors import StepError
from torchsummary_plus.step.optimizers import NAMES

ROOT = Path(__file__).parents[2]

TrainStep = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("threads")


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.made, self.judged = block(), block()

    def forward(self, x: Tensor) -> Tensor:
        return self.judged(self.made(x))


def plain(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.AdamW(model.parameters())

    def step(model: nn.Module, x: Tensor) -> None:
        optimizer.zero_grad()
        squared(model(x)).backward()
        optimizer.step()

    return step


def accumulated(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.Adam(model.parameters())

    def step(model: nn.Module, x: Tensor) -> None:
        for part in x.chunk(4):
            (squared(model(part)) / 4).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def clipped_and_scheduled(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def step(model: nn.Module, x: Tensor) -> None:
        loss = squared(model(x))
        if not torch.isfinite(loss):
            return
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


def scaled(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.AdamW(model.parameters())
    scalers: dict[str, torch.amp.GradScaler] = {}

    def step(model: nn.Module, x: Tensor) -> None:
        scaler = scalers.setdefault("one", torch.amp.GradScaler(x.device.type))
        scaler.scale(squared(model(x))).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def two_optimizers(model: Any) -> TrainStep:
    first, second = torch.optim.Adam(model.made.parameters()), torch.optim.RMSprop(model.judged.parameters())

    def step(model: Any, x: Tensor) -> None:
        second.zero_grad()
        result = model.made(x).detach()
        (squared(model.judged(x)) - squared(model.judged(result))).backward()
        second.step()
        first.zero_grad()
        squared(model(x)).backward()
        first.step()

    return step


def penalised(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.Adam(model.parameters())

    def step(model: nn.Module, x: Tensor) -> None:
        x = x.detach().requires_grad_()
        loss = squared(model(x))
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + squared(slope)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Overwritten(nn.Module):
    """Writes to the output of a layer of an input that is not flat, which is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y[:, 1:].mul_(x[:, :-1])
        y.add_(x)
        return self.last(y[:, ::2]).lerp_(x[:, ::2], 0.5)


def test_gradients_of_gradients_go_through_writes_in_place() -> None:
    model, x = Overwritten(), torch.randn(4, 8, 16)

    def step(model: nn.Module, x: Tensor) -> None:
        loss = squared(model(x))
        slopes = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
        (loss + sum(squared(slope) for slope in slopes)).backward()
        model.zero_grad()

    predicted, measured = (run(model, input_data=x, train_step=step) for run in (estimate_memory, measure_memory))
    assert predicted.phase_peaks == measured.phase_peaks


def fused_into_the_backward(model: nn.Module) -> TrainStep:
    """As torch's tutorial "How to save memory by fusing an optimizer step into the backward pass" and torchtune do."""
    optimizers = {p: torch.optim.Adam([p]) for p in model.parameters()}

    def step_and_drop(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_and_drop)
    return lambda model, x: squared(model(x)).backward()


def twice_backward(model: nn.Module) -> TrainStep:
    optimizer = torch.optim.Adam(model.parameters())

    def step(model: nn.Module, x: Tensor) -> None:
        y = model(x)
        squared(y).backward(retain_graph=True)
        squared(y.exp()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


STEPS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], TrainStep]]] = {
    "plain": (block, plain),
    "accumulated": (block, accumulated),
    "clipped and scheduled": (block, clipped_and_scheduled),
    "scaled": (block, scaled),
    "two optimizers": (Pair, two_optimizers),
    "gradient penalty": (block, penalised),
    "two backward passes": (block, twice_backward),
    "fused into the backward": (block, fused_into_the_backward),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_the_users_own(name: str) -> None:
    build, stepping = STEPS[name]
    torch.manual_seed(0)
    model, x = build(), rows()
    predicted = estimate_memory(model, input_data=x, train_step=stepping(model))
    on_card = estimate_memory(model, input_data=x, device="cuda", train_step=stepping(model))
    step, tensors = stepping(model), [*model.parameters(), x]
    measured = measure_run(lambda: [step(model, x) for _ in range(2)], tensors)
    assert predicted.peak_bytes == measured
    assert on_card.at_peak["optimizer_state"] >= predicted.at_peak["optimizer_state"] > 0
    assert sum(on_card.at_peak.values()) == on_card.peak_bytes


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_optimizer_of_torch(name: str, device: str) -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    if name == "sparseadam":
        with pytest.raises(StepError, match=r"the optimizer failed: .*dense gradients"):
            estimate_memory(model, (WIDTH,), 2, device, optimizer=name)
        return
    estimate = estimate_memory(model, (WIDTH,), 2, device, optimizer=name)
    assert any(moment.phase == "optimizer" and moment.operator for moment in estimate.log.moments)


def test_foreach_is_chosen_where_torch_would_choose_it() -> None:
    chosen, looped, told = (
        estimate_memory(block(), (WIDTH,), 2, device, optimizer=lambda ps, f=foreach: torch.optim.Adam(ps, foreach=f))
        for device, foreach in (("cuda", None), ("cpu", None), ("cuda", False))
    )
    foreach = ["_foreach_" in " ".join(m.operator for m in e.log.moments) for e in (chosen, looped, told)]
    assert foreach == [True, False, False]


def test_what_a_step_holds_is_afterwards_what_it_was() -> None:
    model, x = block(), rows()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")

    def step(model: nn.Module, x: Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(squared(model(x))).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()

    step(model, x)
    states = [id(t) for state in optimizer.state.values() for t in state.values()]
    before = (
        optimizer.state_dict(),
        schedule.state_dict(),
        scaler.state_dict(),
        [id(p.grad) for p in model.parameters()],
    )
    estimate = estimate_memory(model, input_data=x, train_step=step)
    after = (
        optimizer.state_dict(),
        schedule.state_dict(),
        scaler.state_dict(),
        [id(p.grad) for p in model.parameters()],
    )
    assert str(before) == str(after)
    assert states == [id(t) for state in optimizer.state.values() for t in state.values()]
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], model.parameters()))
    assert estimate.at_peak["optimizer_state"] == sum(p.nbytes for p in model.parameters())


class Lazy(dict):  # type: ignore[type-arg]
    """A mapping that loads what it holds as soon as it is asked for anything, as transformers' do."""

    def keys(self) -> Any:
        raise AssertionError("loaded")

    __bool__ = __len__ = __iter__ = keys


def test_mappings_of_others_are_not_asked_for_what_they_hold() -> None:
    model, x = block(), rows()
    others = [Lazy({1: 2}), Lazy()]
    assert estimate_memory(model, input_data=x, train_step=plain(model)).peak_bytes
    assert [dict.__len__(other) for other in others] == [1, 0]


def test_hooks_that_step_in_the_backward_need_no_step_of_the_users_own() -> None:
    model, x = block(), rows()
    step = fused_into_the_backward(model)
    hooks = [hook for p in model.parameters() for hook in (p._post_accumulate_grad_hooks or {}).values()]
    (optimizers,) = {id(c.cell_contents): c.cell_contents for h in hooks for c in h.__closure__ or ()}.values()
    before = [(id(p), id(optimizer), id(optimizer.param_groups[0]["params"][0])) for p, optimizer in optimizers.items()]
    estimate = estimate_memory(model, input_data=x, loss=squared)
    assert [
        (id(p), id(optimizer), id(optimizer.param_groups[0]["params"][0])) for p, optimizer in optimizers.items()
    ] == before
    assert not any(optimizer.state for optimizer in optimizers.values())
    assert estimate.peak_bytes == estimate_memory(model, input_data=x, train_step=step).peak_bytes


def test_a_parameter_that_a_hook_looks_up_in_vain_has_a_hint() -> None:
    model = block()
    by_name = {name: torch.optim.SGD([p]) for name, p in model.named_parameters()}
    model[0].weight.register_post_accumulate_grad_hook(lambda p: by_name[p])
    with pytest.raises(StepError, match=r"KeyError: Fake.*\n?.*Hint: fake tensors replace parameters"):
        estimate_memory(model, input_data=rows(), optimizer="sgd")


ON_A_CARD = """
import torch
from torch import nn
from torchsummary_plus import estimate_memory
model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout())
def step(model, x):
    y = torch.tensor([1.0, 2.0], device=x.device).sum() + torch.zeros(3, device=x.device).sum() + model(x).sum()
    torch.amp.GradScaler(x.device.type).scale(y).backward()
    torch.cuda.synchronize()
for options in ({"optimizer": "adamw", "autocast": torch.bfloat16}, {"mode": "eval"}, {"train_step": step}):
    estimate_memory(model, (64,), 8, "cuda", **options)
print(torch.cuda.memory_stats().get("allocation.all.allocated", 0), torch.cuda.max_memory_reserved())
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card here")
def test_no_memory_of_a_card_is_taken() -> None:
    done = subprocess.run([sys.executable, "-c", ON_A_CARD], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_kept_output_is_there_until_the_next_one_is_made(mode: str) -> None:
    model, x = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 512)), torch.randn(8, 16)
    predicted = estimate_memory(model, input_data=x, mode=mode, keep_output=True, steps=3)

    def loop() -> None:
        for _ in range(3):
            with torch.set_grad_enabled(mode == "train"):
                output = model(x)
            if mode == "train":
                output.sum().backward()
                model.zero_grad()

    assert predicted.peak_bytes == measure_run(loop, [*model.parameters(), x])


@pytest.mark.parametrize("asks", [torch.isnan, torch.isinf, Tensor.isnan])
def test_a_check_for_numbers_holds_one_mask(asks: Callable[[Tensor], Tensor]) -> None:
    class Checked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if asks(x).any():
                raise ValueError
            return x

    x = torch.randn(16, 64)
    predicted = estimate_memory(Checked(), input_data=x, mode="eval")

    def run() -> None:
        for _ in range(2):
            Checked()(x)

    assert predicted.peak_bytes == measure_run(run, [x])


@pytest.mark.parametrize("is_custom", [False, True])
def test_existing_gradients_count_only_in_a_custom_step(is_custom: bool) -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        squared(model(x)).backward()

    model = nn.Linear(256, 256)
    options: dict[str, Any] = {"train_step": step} if is_custom else {"optimizer": "sgd"}
    options |= {"device": "cpu", "steps": 1}
    before = estimate_memory(model, (256,), batch_size=4, **options).peak_bytes
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    grads = [parameter.grad for parameter in model.parameters()]
    after = estimate_memory(model, (256,), batch_size=4, **options).peak_bytes
    assert (after > before) is is_custom
    assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), grads))
    assert measure_memory(model, (256,), batch_size=4, **options).peak_bytes == after
