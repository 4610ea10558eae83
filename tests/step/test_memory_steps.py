"""A step's kinds: by its options or the user's own, accumulated, in modes that modules keep, and where it fails."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.step.step_parts import WIDTH, block, rows, squared
from torchsummary_plus import estimate_memory, max_batch_size, measure_memory, summary
from torchsummary_plus.data.errors import ForwardError, InputError, StepError
from torchsummary_plus.step.training import NAMES

pytestmark = pytest.mark.usefixtures("threads")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_optimizer_of_torch_on_a_gpu(name: str) -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    if name == "sparseadam":
        with pytest.raises(StepError, match=r"the optimizer failed: .*dense gradients"):
            estimate_memory(model, (WIDTH,), 2, "cuda", optimizer=name)
        return
    estimate = estimate_memory(model, (WIDTH,), 2, "cuda", optimizer=name)
    assert any(moment.phase == "optimizer" and moment.operator for moment in estimate.log.moments)


def test_foreach_is_chosen_where_torch_would_choose_it() -> None:
    chosen, looped, told = (
        estimate_memory(block(), (WIDTH,), 2, device, optimizer=lambda ps, f=foreach: torch.optim.Adam(ps, foreach=f))
        for device, foreach in (("cuda", None), ("cpu", None), ("cuda", False))
    )
    foreach = ["_foreach_" in " ".join(m.operator for m in e.log.moments) for e in (chosen, looped, told)]
    assert foreach == [True, False, False]


def test_a_parameter_that_a_hook_looks_up_in_vain_has_a_hint() -> None:
    model = block()
    by_name = {name: torch.optim.SGD([p]) for name, p in model.named_parameters()}
    model[0].weight.register_post_accumulate_grad_hook(lambda p: by_name[p])
    with pytest.raises(StepError, match=r"KeyError: Fake.*\n?.*Hint: fake tensors replace parameters"):
        estimate_memory(model, input_data=rows(), optimizer="sgd")


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


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.LayerNorm(256), nn.Linear(256, 10))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    model[2].weight = model[0].weight
    return model


ACCUMULATED: dict[str, tuple[Any, tuple[int, ...]]] = {"dense": (dense, (64,)), "tied": (tied, (64,))}


@pytest.mark.parametrize("optimizer", [None, "adamw"])
@pytest.mark.parametrize("name", ACCUMULATED)
def test_the_estimate_is_the_measured_step(name: str, optimizer: str | None) -> None:
    build, size = ACCUMULATED[name]
    model = build()
    options = {"optimizer": optimizer, "loss": "cross_entropy", "gradient_accumulation_steps": 3}
    estimate, measured = (call(model, size, 16, **options) for call in (estimate_memory, measure_memory))
    assert (estimate.peak_bytes, estimate.steady_bytes) == (measured.peak_bytes, measured.steady_bytes)
    assert estimate.info.micro_batches == measured.info.micro_batches == 3


def test_gradients_stay_and_work_adds_up() -> None:
    once, twice = (estimate_memory(dense(), (64,), 512, gradient_accumulation_steps=number) for number in (1, 2))
    gradients = 4 * sum(p.numel() for p in dense().parameters())
    assert once.peak_bytes < twice.peak_bytes <= once.peak_bytes + gradients + 4  # The divided loss.
    assert twice.total_train_mult_adds == 2 * (once.total_train_mult_adds or 0)
    assert "gradients of 2 micro-batches" in str(twice)
    large, small = (
        max_batch_size(dense(), (64,), 1 << 24, device="cpu", gradient_accumulation_steps=number).batch_size
        for number in (1, 2)
    )
    assert small < large


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0; accepted: an integer of at least 1"),
        ({"gradient_accumulation_steps": True}, "gradient_accumulation_steps is True"),
        ({"gradient_accumulation_steps": 2, "mode": "eval"}, "is 2; accepted with mode 'eval': 1"),
        ({"gradient_accumulation_steps": 2, "train_step": print}, "is 2; accepted with train_step, which runs its own"),
    ],
)
def test_what_cannot_accumulate_is_refused(options: dict[str, Any], said: str) -> None:
    for call in (estimate_memory, measure_memory):
        with pytest.raises(InputError, match=said):
            call(dense(), (64,), 4, **options)


class Agent(nn.Module):
    """Its method of this name trains it, as beginners' models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def train(self, batches: Any) -> None:  # type: ignore[override]
        for x in batches:
            self(x).sum().backward()


def exported() -> nn.Module:
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    return torch.export.export(net, (torch.randn(8, 16),)).module()


KEPT: dict[str, Callable[[], nn.Module]] = {
    "exported": exported,
    "with a head": lambda: nn.Sequential(exported(), nn.Dropout(0.5), nn.Linear(4, 2)),
    "a loop named train": Agent,
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", KEPT)
def test_the_step_runs_in_the_mode_that_a_module_keeps_and_says_so(name: str, mode: str) -> None:
    model, x = KEPT[name](), torch.randn(8, 16)
    modes = [module.training for module in model.modules()]
    predicted = estimate_memory(model, input_data=x, mode=mode)
    measured = measure_memory(model, input_data=x, mode=mode)
    assert predicted.peak_bytes == measured.peak_bytes
    for result in (predicted, measured):
        assert sum("stays in training mode: its train() raised" in line for line in result.assumptions) == 1
    assert [module.training for module in model.modules()] == modes


def test_the_root_of_an_exported_module_has_one_row() -> None:
    table = summary(exported(), input_data=torch.randn(8, 16), verbose=0)
    assert [row.path for row in table.rows if row.called and row.class_name == "GraphModule"] == [""]
    assert table.total_mult_adds == 8 * (16 * 64 + 64 * 4)


@of_parts(lambda: {"linear": nn.Linear(WIDTH, WIDTH)})
def Broken(self, x: Tensor) -> Tensor:
    raise KeyError("no such key")


class Unlucky(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad @ grad.new_zeros(3, 3)


@of_parts(lambda: {"inner": nn.Linear(WIDTH, WIDTH)})
def FailsBackward(self, x: Tensor) -> Tensor:
    return Unlucky.apply(self.inner(x))


def failing(*_: Any) -> Any:
    raise ValueError("not today")


class FailingOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ValueError("not today")


FAILURES: dict[str, tuple[type[Exception], str, Callable[[], nn.Module], dict[str, Any]]] = {
    "forward": (ForwardError, r"the model itself \(Broken\) failed .*no such key", Broken, {}),
    "loss": (StepError, "the loss failed: ValueError: not today", block, {"loss": failing}),
    "backward": (
        StepError,
        r"the backward of the model itself \(FailsBackward\) failed: .*reduction dim",
        FailsBackward,
        {},
    ),
    "optimizer": (StepError, "the optimizer failed: ValueError: not today", block, {"optimizer": FailingOptimizer}),
    "its making": (StepError, "the optimizer failed: ValueError: not today", block, {"optimizer": failing}),
    "train_step": (StepError, "the train_step failed: ValueError: not today", block, {"train_step": failing}),
    "no gradient": (
        InputError,
        "no floating-point output requires gradients",
        lambda: block().requires_grad_(False),
        {},
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_names_what_failed(name: str) -> None:
    kind, message, build, options = FAILURES[name]
    model = build()
    with pytest.raises(kind, match=message):
        estimate_memory(model, (WIDTH,), 2, **options)
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())
