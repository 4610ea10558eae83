"""``torch.func`` transforms in models and steps, against real steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap
from torch.nn import functional

from tests.told import Told
from tests.truth.memory_truth import measure, measure_run
from torchsummary_plus.api.memory import estimate_memory, measure_memory
from torchsummary_plus.live.versions import since

WIDTH = 64


class Transformed(nn.Module):
    """A function of a linear layer and its input."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(WIDTH, WIDTH), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear, x)


def laplacian(layer: nn.Module, x: Tensor) -> Tensor:
    """Physics-informed networks take second derivatives by their inputs."""
    second = vmap(hessian(lambda row: layer(row).tanh().sum()))(x)
    return second.diagonal(dim1=-2, dim2=-1).sum(-1)


def dual(layer: nn.Module, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        made = forward_ad.make_dual(x, torch.ones_like(x))
        return forward_ad.unpack_dual(layer(made).tanh()).tangent


def tangent(layer: nn.Module, x: Tensor) -> Tensor:
    return jvp(lambda y: layer(y).tanh(), (x,), (torch.ones_like(x),))[1]


class Ensemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        stacked = stack_module_state(list(self.parts))
        return vmap(lambda *state: functional_call(self.parts[0], state, (x,)))(*stacked)


def gradients(model: nn.Module, x: Tensor) -> None:
    grad(lambda parameters: functional_call(model, parameters, (x,)).pow(2).mean())(dict(model.named_parameters()))


def gradients_by_sample(model: nn.Module, x: Tensor) -> None:
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(model, parameters, (row[None],)).pow(2).mean()

    gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    torch.stack([each.flatten(1).norm(dim=1) for each in gradients.values()]).sum()


def adapted(model: nn.Module, x: Tensor) -> None:
    """The gradient through a step of gradient descent."""
    parameters = dict(model.named_parameters())
    first = functional_call(model, parameters, (x,)).pow(2).mean()
    result = torch.autograd.grad(first, list(parameters.values()), create_graph=True)
    moved = {name: value - slope for (name, value), slope in zip(parameters.items(), result)}
    functional_call(model, moved, (x,)).pow(2).mean().backward()
    model.zero_grad()


def scaled(model: nn.Module, x: Tensor) -> None:
    """The nodes of products keep their numbers as tensors, at each level of gradients."""

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return (functional_call(model, parameters, (x,)) * 2 / 3).pow(2).mean()

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    grad(lambda point: sum(slope.pow(2).sum() for slope in grad(loss)(point).values()))(parameters)


def differentiated_twice(model: nn.Module, x: Tensor) -> None:
    """A number kept by a write to a view outlives a backward that keeps the graph, and whose nodes share it."""
    for power in (1, 2):
        out = model(x) ** power
        out[:, 0] *= 3
        result = torch.autograd.grad(out.pow(power).sum(), list(model.parameters()), create_graph=True)
        torch.stack([slope.pow(2).sum() for slope in result]).sum().backward()
        model.zero_grad()


def plain(model: nn.Module, x: Tensor) -> None:
    model(x).sum().backward()
    model.zero_grad()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))


STEPS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], None]]] = {
    "vmap": (lambda: Transformed(lambda layer, x: vmap(lambda row: layer(row).relu())(x)), plain),
    "jacrev": (lambda: Transformed(lambda layer, x: vmap(jacrev(lambda row: layer(row).tanh()))(x)), plain),
    "jvp": (lambda: Transformed(tangent), plain),
    "jacfwd": (lambda: Transformed(lambda layer, x: vmap(jacfwd(lambda row: layer(row).tanh()))(x)), plain),
    "hessian": (lambda: Transformed(laplacian), plain),
    "dual numbers": (lambda: Transformed(dual), plain),
    "ensemble": (Ensemble, plain),
    "grad": (mlp, gradients),
    "by sample": (mlp, gradients_by_sample),
    "numbers": (mlp, scaled),
    "twice through a write to a view": (mlp, differentiated_twice),
    "through a step": (mlp, adapted),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_transformed_step_is_its_real_one(name: str) -> None:
    build, step = STEPS[name]
    torch.manual_seed(0)
    model, x = build(), torch.randn(16, WIDTH)
    options: dict[str, Any] = {"input_data": x, "train_step": step}
    estimate, measured = estimate_memory(model, **options), measure_memory(model, **options)

    def run() -> None:
        for _ in range(2):
            step(model, x)

    assert estimate.peak_bytes == measured.peak_bytes == measure_run(run, [*model.parameters(), x])
    assert estimate.assumptions == ()


@pytest.mark.parametrize("name", STEPS)
def test_a_transformed_step_runs_on_a_gpus_kernels(name: str) -> None:
    build, step = STEPS[name]
    estimate = estimate_memory(build(), input_data=torch.randn(16, WIDTH), train_step=step, device="cuda")
    assert estimate.assumptions == ()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_inside_a_transform_tensors_are_where_they_are_outside(device: str) -> None:
    told = Told()

    def step(model: nn.Module, x: Tensor) -> None:
        def loss(row: Tensor) -> Tensor:
            out: Tensor = model(row)
            for t in (x, row, out):
                told.put((str(t.device), t.is_cuda, t.is_cpu, t.is_meta))
            return (out + torch.zeros(8, device=out.device)).sum()

        vmap(grad(loss))(x)
        grad(lambda y: loss(y[0]))(x)

    estimate = estimate_memory(mlp(), input_data=torch.randn(4, WIDTH), train_step=step, device=device)
    assert estimate.assumptions == ()
    (place,) = set(told.all())
    assert place[0].startswith(device)


def dual_of(function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A tangent through an operator, without gradients."""

    def run(layer: nn.Module, x: Tensor) -> Tensor:
        y = layer(x)
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(y, torch.ones_like(y)))).tangent

    return Transformed(run)


DUAL: dict[str, Callable[[Tensor], Tensor]] = {
    "layer norm": lambda x: functional.layer_norm(x, (WIDTH,)),
    "batch norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "softmax": lambda x: x.softmax(-1),
    "product": lambda x: x.prod(-1),
    "maximum norm": lambda x: torch.linalg.vector_norm(x, float("inf"), -1),
    "cross-entropy": lambda x: functional.binary_cross_entropy(x.sigmoid(), torch.ones(16, WIDTH)),
    "a number": lambda x: x * x * 2,
}


@pytest.mark.parametrize("name", DUAL)
def test_a_tangent_that_differs_under_a_mode_is_measured(name: str) -> None:
    model, x = dual_of(DUAL[name]), torch.randn(16, WIDTH)
    estimate = estimate_memory(model, input_data=x, mode="eval")
    assert estimate.peak_bytes == measure_memory(model, input_data=x, mode="eval").peak_bytes
    runs_on_fakes = name != "a number" or since("2.10")
    assert ("forward-mode differentiation" if runs_on_fakes else "cannot run on fake tensors") in estimate.assumptions[
        0
    ]


class WithSkeleton(nn.Module):
    """A module that keeps another on ``meta`` in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.skeletons = nn.Linear(WIDTH, WIDTH), [nn.Linear(WIDTH, WIDTH, device="meta")]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_skeleton_in_a_plain_list_has_no_bytes() -> None:
    model, x = WithSkeleton(), torch.randn(8, WIDTH)
    assert estimate_memory(model, input_data=x).peak_bytes == measure(model, (x,)).peak_bytes


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "to another tensor's dtype": lambda x: x.double().to(x).exp(),
    "to a dtype and device": lambda x: x.to(x.device, torch.float64) + 1,
    "to its own dtype": lambda x: x.to(torch.ones_like(x)).exp() + 1,
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_inside_a_transform_are_those_of_the_gpu(name: str) -> None:
    """Wrappers of ``torch.func`` tell C++ that they are on meta; what it then moves stays on the GPU."""
    move = MOVES[name]

    def log(step: Callable[[nn.Module, Tensor], object]) -> tuple[int, list[int]]:
        estimate = estimate_memory(
            nn.Linear(4, 4), input_data=torch.zeros(64, 100, 100), gpu="A100 80GB", train_step=step, steps=1,
            progress=False,
        )  # fmt: skip
        return estimate.peak_bytes, [nbytes for _, _, nbytes in estimate.log.events if nbytes]

    plain = log(lambda _, x: move(x))
    assert log(lambda _, x: vmap(move)(x)) == plain
    assert log(lambda _, x: vmap(lambda row: vmap(move)(row[None]))(x)) == plain


@pytest.mark.parametrize(
    ("of", "is_cast"),
    [(lambda y: y.sin().sum(), True), (lambda y: (y @ y.mT).mean(), True), (lambda y: y.sin().mean(), False)],
)
def test_casts_inside_a_transform_on_a_gpu_are_never_left_out_silently(
    of: Callable[[Tensor], Tensor], is_cast: bool
) -> None:
    """Fakes there hide their device from autocast."""
    model, x = Transformed(lambda layer, x: grad(of)(layer(x))), torch.randn(16, WIDTH)
    estimates = [
        estimate_memory(model, input_data=x, device="cuda", autocast=dtype) for dtype in (torch.bfloat16, None)
    ]
    named = [any("CPU's kernels" in assumption for assumption in estimate.assumptions) for estimate in estimates]
    assert named == [is_cast, False]
    low, high = estimates[0].peak_range
    assert (low < estimates[0].peak_bytes < high) is is_cast
