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
from torchsummary_plus import summary
from torchsummary_plus.api.memory import estimate_memory, measure_memory
from torchsummary_plus.live.versions import since

WIDTH = 64


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)


class ByRow(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return vmap(lambda row: self.linear(row).relu())(x)


class Jacobian(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return vmap(jacrev(lambda row: self.linear(row).tanh()))(x)


class Tangent(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return jvp(lambda y: self.linear(y).tanh(), (x,), (torch.ones_like(x),))[1]


class ForwardJacobian(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return vmap(jacfwd(lambda row: self.linear(row).tanh()))(x)


class Laplacian(Layer):
    """Physics-informed networks take second derivatives by their inputs."""

    def forward(self, x: Tensor) -> Tensor:
        second = vmap(hessian(lambda row: self.linear(row).tanh().sum()))(x)
        return second.diagonal(dim1=-2, dim2=-1).sum(-1)


class Dual(Layer):
    def forward(self, x: Tensor) -> Tensor:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            return forward_ad.unpack_dual(self.linear(dual).tanh()).tangent


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
    "vmap": (ByRow, plain),
    "jacrev": (Jacobian, plain),
    "jvp": (Tangent, plain),
    "jacfwd": (ForwardJacobian, plain),
    "hessian": (Laplacian, plain),
    "dual numbers": (Dual, plain),
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


class DualOf(Layer):
    """A tangent through an operator, without gradients."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        with forward_ad.dual_level():
            out = self.function(forward_ad.make_dual(y, torch.ones_like(y)))
            return forward_ad.unpack_dual(out).tangent


DUAL: dict[str, Callable[[Tensor], Tensor]] = {
    "layer norm": lambda x: functional.layer_norm(x, (WIDTH,)),
    "group norm": lambda x: functional.group_norm(x, 4),
    "batch norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "instance norm": lambda x: functional.instance_norm(x.view(16, 4, -1)),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "product": lambda x: x.prod(-1),
    "cumulative logsumexp": lambda x: x.logcumsumexp(-1),
    "maximum norm": lambda x: torch.linalg.vector_norm(x, float("inf"), -1),
    "safe softmax": lambda x: torch.ops.aten._safe_softmax(x, -1),  # type: ignore[no-any-return]
    "hinge loss": lambda x: functional.hinge_embedding_loss(x, torch.ones(16, WIDTH)),
    "cross-entropy": lambda x: functional.binary_cross_entropy(x.sigmoid(), torch.ones(16, WIDTH)),
    "a number": lambda x: x * x * 2,
}


@pytest.mark.parametrize("name", DUAL)
def test_a_tangent_that_differs_under_a_mode_is_measured(name: str) -> None:
    model, x = DualOf(DUAL[name]), torch.randn(16, WIDTH)
    estimate = estimate_memory(model, input_data=x, mode="eval")
    assert estimate.peak_bytes == measure_memory(model, input_data=x, mode="eval").peak_bytes
    runs_on_fakes = name != "a number" or since("2.10")
    assert ("forward-mode differentiation" if runs_on_fakes else "cannot run on fake tensors") in estimate.assumptions[
        0
    ]


@pytest.mark.parametrize("has_tangent", [True, False])
def test_a_pool_with_a_tangent_makes_indices(has_tangent: bool) -> None:
    def pooled(x: Tensor) -> Tensor:
        part = x if has_tangent else x.detach().clone()
        out: Tensor = functional.max_pool1d(part, 2)
        return out if has_tangent else x[:, ::2] + out

    model, x = DualOf(pooled), torch.randn(16, WIDTH)
    estimate = estimate_memory(model, input_data=x, mode="eval")
    assert estimate.peak_bytes == measure_memory(model, input_data=x, mode="eval").peak_bytes
    assert estimate.assumptions == ()


class ScaledZeros(nn.Module):
    """Scales a tangent of zeros, once of a small tensor with values and once of one without."""

    def forward(self, x: Tensor) -> Tensor:
        small = torch.ones(4, 4)
        with forward_ad.dual_level():
            for argument in (small, x):
                dual = forward_ad.make_dual(torch.ones_like(argument), torch.ones_like(argument))
                out = forward_ad.unpack_dual(torch.ldexp(argument, dual)).tangent
        return out + small.sum()


def test_a_tangent_of_zeros_is_never_read() -> None:
    """Torch's kernels read address 0 where a mode runs them on such a tensor."""
    model, x = ScaledZeros(), torch.randn(16, WIDTH)
    estimate = estimate_memory(model, input_data=x, mode="eval")
    low, high = estimate.peak_range
    assert low <= measure_memory(model, input_data=x, mode="eval").peak_bytes <= high
    summary(model, input_data=x, verbose=0, run="real")


class OfAPart(nn.Module):
    """A tangent beside a part of a tensor: torch makes one of zeros as long as the whole."""

    def forward(self, x: Tensor) -> Tensor:
        part = torch.complex(x, x).real
        return jvp(torch.tanh, (part,), (torch.ones_like(x),))[1]


def test_a_repeated_estimate_is_the_same() -> None:
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), OfAPart()), torch.randn(16, WIDTH)
    first, second = (estimate_memory(model, input_data=x).peak_bytes for _ in range(2))
    assert first == second == measure(model, (x,)).peak_bytes


SKELETON = nn.Linear(WIDTH, WIDTH, device="meta")


class Skeletal(nn.Module):
    """Members that run through a skeleton on ``meta``, which has no bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, WIDTH, WIDTH)), nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        def member(weight: Tensor, bias: Tensor) -> Tensor:
            out: Tensor = functional_call(SKELETON, {"weight": weight, "bias": bias}, (x,))
            return out

        return vmap(member)(self.weight, self.bias).mean(0)


def test_a_skeleton_on_meta_has_no_bytes() -> None:
    model, x = Skeletal(), torch.randn(8, WIDTH)
    assert estimate_memory(model, input_data=x).peak_bytes == measure(model, (x,)).peak_bytes


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


def test_a_list_of_a_model_on_meta_has_those_it_stands_for() -> None:
    x = torch.randn(8, WIDTH)
    real = WithSkeleton()
    real.skeletons = [nn.Linear(WIDTH, WIDTH)]
    with torch.device("meta"):
        skeleton = WithSkeleton()
    assert estimate_memory(skeleton, input_data=x).peak_bytes == estimate_memory(real, input_data=x).peak_bytes


def test_a_view_of_a_tangent_of_zeros_takes_no_memory() -> None:
    """A linear layer's bias has no tangent; its zeros are expanded."""
    model = Tangent()
    estimate = estimate_memory(model, input_data=torch.randn(16, WIDTH), mode="eval", device="cuda")
    operators = {estimate.log.moments[moment].operator for moment, _, nbytes in estimate.log.events if nbytes}
    assert "aten::addmm" in operators
    assert "aten::expand" not in operators


def test_forward_tangents_on_a_gpu_open_the_range() -> None:
    class Directional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.func.jvp(self.net, (x,), (torch.ones_like(x),))[1]  # type: ignore[no-any-return]

    estimate = estimate_memory(Directional(), (16,), 64, gpu="A100 80GB", mode="eval", progress=False)
    low, high = estimate.peak_range
    assert low < estimate.peak_bytes < high
    assert any("forward-mode differentiation" in said for said in estimate.assumptions)


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


class Gradient(Layer):
    def __init__(self, of: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> Tensor:
        return grad(self.of)(self.linear(x))


@pytest.mark.parametrize(
    ("of", "is_cast"),
    [(lambda y: y.sin().sum(), True), (lambda y: (y @ y.mT).mean(), True), (lambda y: y.sin().mean(), False)],
)
def test_casts_inside_a_transform_on_a_gpu_are_never_left_out_silently(
    of: Callable[[Tensor], Tensor], is_cast: bool
) -> None:
    """Fakes there hide their device from autocast."""
    model, x = Gradient(of), torch.randn(16, WIDTH)
    estimates = [
        estimate_memory(model, input_data=x, device="cuda", autocast=dtype) for dtype in (torch.bfloat16, None)
    ]
    named = [any("CPU's kernels" in assumption for assumption in estimate.assumptions) for estimate in estimates]
    assert named == [is_cast, False]
    low, high = estimates[0].peak_range
    assert (low < estimates[0].peak_bytes < high) is is_cast
