"""``torch.func`` transforms in models and steps, against real steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, stack_module_state, vmap

from tests.parts import of_parts
from tests.told import Told
from tests.truth.memory_truth import measure_run
from torchsummary_plus.api.memory import estimate_memory, measure_memory

WIDTH = 64


@of_parts(lambda function: {"linear": nn.Linear(WIDTH, WIDTH), "function": function})
def Transformed(self, x: Tensor) -> Tensor:
    return self.function(self.linear, x)


def laplacian(layer: nn.Module, x: Tensor) -> Tensor:
    """Physics-informed networks take second derivatives by their inputs."""
    second = vmap(hessian(lambda row: layer(row).tanh().sum()))(x)
    return second.diagonal(dim1=-2, dim2=-1).sum(-1)


@of_parts(lambda: {"parts": nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3))})
def Ensemble(self, x: Tensor) -> Tensor:
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


def plain(model: nn.Module, x: Tensor) -> None:
    model(x).sum().backward()
    model.zero_grad()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))


STEPS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], None]]] = {
    "vmap": (lambda: Transformed(lambda layer, x: vmap(lambda row: layer(row).relu())(x)), plain),
    "jacrev": (lambda: Transformed(lambda layer, x: vmap(jacrev(lambda row: layer(row).tanh()))(x)), plain),
    "hessian": (lambda: Transformed(laplacian), plain),
    "ensemble": (Ensemble, plain),
    "grad": (mlp, gradients),
    "by sample": (mlp, gradients_by_sample),
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


@pytest.mark.parametrize(
    ("of", "is_cast"),
    [(lambda y: y.sin().sum(), True), (lambda y: (y @ y.mT).mean(), True), (lambda y: y.sin().mean(), False)],
)
def test_casts_inside_a_transform_on_a_gpu_are_never_left_out(of: Callable[[Tensor], Tensor], is_cast: bool) -> None:
    """Fakes there hide their device from autocast."""
    model, x = Transformed(lambda layer, x: grad(of)(layer(x))), torch.randn(16, WIDTH)
    estimates = [
        estimate_memory(model, input_data=x, device="cuda", autocast=dtype) for dtype in (torch.bfloat16, None)
    ]
    named = [any("CPU's kernels" in assumption for assumption in estimate.assumptions) for estimate in estimates]
    assert named == [is_cast, False]
    low, high = estimates[0].peak_range
    assert low < estimates[0].peak_bytes < high
