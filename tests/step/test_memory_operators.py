"""Steps of a single operator, predicted against measured, to the byte, phase by phase."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import checkpoint as checkpoints
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.parts import of_parts
from torchsummary_plus import estimate_memory, measure_memory
from torchsummary_plus.step.workspace import OF_VIEW

pytestmark = pytest.mark.usefixtures("threads")

SIDE = 64


class Through(nn.Module):
    """A layer and what comes behind it; what that needs beside is a buffer, which is there before the step."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(SIDE, SIDE)
        self.function = function
        self.register_buffer("places", torch.arange(SIDE).remainder(7))
        self.register_buffer("weights", torch.ones(SIDE))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        count = 1 if isinstance(self.function, partial) else self.function.__code__.co_argcount
        return self.function(*(y, self.places, self.weights)[:count])


TWICE: dict[str, Callable[..., Tensor]] = {
    "*": lambda x: x * x,
    "lerp": lambda x: torch.lerp(x, x, 0.3),
    "addmm": lambda x: torch.addmm(x, x, x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}
SELECTING: dict[str, Callable[..., Tensor]] = {
    "index": lambda x, i: x[i],
    "gather": lambda x, i: x.gather(0, i.expand(SIDE, SIDE)),
    "cumprod of a part": lambda x: (x[:, :8].cumprod_(1), x)[1] * 1,
    "topk": lambda x: x.topk(3)[0],
    "index_put": lambda x, i: x.index_put((i,), x, accumulate=True),
    "clamp between learned": lambda x: x.clamp(-x.abs(), 2 * x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i.expand(SIDE, SIDE), x, "amax"),
}
LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": lambda x, i, w: F.cross_entropy(x, i, w, label_smoothing=0.1),
    "with_logits, pos_weight": lambda x, _, w: F.binary_cross_entropy_with_logits(
        x, x.detach().sigmoid(), pos_weight=w
    ),
    "triplet": lambda x: F.triplet_margin_loss(x, x.roll(1), x.roll(2)),
}
TURNED: dict[str, Callable[..., Tensor]] = {
    "contiguous": lambda x: x.t().contiguous(),
    "svd": lambda x: torch.linalg.svd(x)[1],
    "factors": lambda x: torch.linalg.lu_solve(*torch.linalg.lu_factor(x.view(4, 32, 32)), x.view(4, 32, 32)),
}
IN_PYTHON: dict[str, Callable[..., Tensor]] = {
    "max_pool1d": lambda x: F.max_pool1d((x * 2)[:, None].detach(), 2).sum() + x.sum(),
    "norm": lambda x: (x * 1).norm(dim=-1).sum() + torch.norm(x * 1),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x * 2, x * 3).sum(),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x * 2, hard=True).sum(),
    "a checkpoint that runs a number again": lambda x: checkpoint(
        lambda y: y / (y.norm(dim=-1, keepdim=True) + 1), x * 1, use_reentrant=False
    ).sum(),
}
"""Functions of Python in torch, which free their tensors as without a mode."""


def written(x: Tensor, write: Callable[[Tensor], object]) -> Tensor:
    y = x * x
    view = write(y)
    return y.exp() + view.sum() if isinstance(view, Tensor) else y.exp()


def item(y: Tensor) -> None:
    y[..., 1:3] *= 2.5


def filled(x: Tensor) -> Tensor:
    """A factory's tensor that is filled, and multiplied through a view that nobody holds."""
    full = torch.zeros(len(x), SIDE)
    full[:, :10] = x[:, :10]
    full[:, ::2].mul_(2)
    return full[:, :].exp()


def handed(x: Tensor, again: bool) -> Tensor:
    """A view whose node torch must replace while it is passed to code that no mode sees."""
    view = x[:, ::2]
    x[:, 1:].mul_(x[:, 1:].detach().clone())
    return checkpoint(lambda part: part.sigmoid() * 2, view, use_reentrant=again) + view.sum()


VIEWS: dict[str, Callable[..., Tensor]] = {
    "an item": lambda x: written(x, item),
    "a view of a view": lambda x: written(x, lambda y: y.view(-1)[SIDE:].unflatten(0, (-1, 8)).mul_(2).add_(1)),
    "a part of a part": lambda x: written(x, lambda y: y[1:][:, 1:][:64, ::2].mul_(2).relu()),
    "a tensor's product": lambda x: written(x, lambda y: y[:2].mul_(y[:2].detach().clone())),
    "an activation": lambda x: written(x, lambda y: F.leaky_relu(y.reshape(-1), 0.1, inplace=True)),
    "a view that is dropped": filled,
    "a view that a checkpoint gets": lambda x: handed(x, again=False),
}


class Listening(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_a_mode(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with Listening():  # type: ignore[no-untyped-call]
        return function(x)


def products() -> Any:
    saved, choice = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default), checkpoints.CheckpointPolicy
    return checkpoints.create_selective_checkpoint_contexts(
        lambda ctx, operator, *args, **kwargs: choice.MUST_SAVE if operator in saved else choice.PREFER_RECOMPUTE
    )


def selectively(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    out: Tensor = checkpoint(function, x, use_reentrant=False, context_fn=products)
    return out


INSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "linear of a view": lambda x: (x.view(8, 8, SIDE).mT @ x[:8]).tanh().sum(1),
    "one-hot": lambda x: F.one_hot(x.argmax(-1), 400).float() @ x.mean().expand(400, 4) + x[:, :4],
}
WITHIN: dict[str, Callable[..., Tensor]] = {
    f"{name} {way}": partial(run, function)
    for name, function in INSIDE.items()
    for way, run in (("in a mode", in_a_mode), ("in selective checkpointing", selectively))
}
"""Functions that run otherwise in a dispatch mode of the user's own."""
PARTS: dict[str, Callable[..., Tensor]] = {
    "slice_scatter": lambda x: torch.slice_scatter(x[:, :16], x[:2, :16] * 2, 0, 0, 2),
    "tangent": lambda x: torch.func.jvp(torch.tanh, (x[:, ::2],), (x.detach()[:, :32],))[1],
}
CASES = {
    f"{what}: {name}": function
    for what, cases in {
        "twice": TWICE,
        "selecting": SELECTING,
        "loss": LOSSES,
        "turned": TURNED,
        "in Python": IN_PYTHON,
        "within": WITHIN,
        "part": PARTS,
    }.items()
    for name, function in cases.items()
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_through_an_operator(case: str) -> None:
    torch.manual_seed(0)
    model = Through(CASES[case])
    x = torch.randn(SIDE, SIDE)
    predicted, measured = (call(model, input_data=x, optimizer="sgd") for call in (estimate_memory, measure_memory))
    assert predicted.phase_peaks == measured.phase_peaks
    assert predicted.peak_bytes == measured.peak_bytes
    assert predicted.unknown == ()


OTHERWISE: dict[str, Callable[..., Tensor]] = {
    "Max": lambda x: x / x.max(),
    "Median": lambda x: x.median(),
    "Prod": lambda x: x.sigmoid().prod(1, dtype=torch.float64),
    "Cumprod": lambda x: x.sigmoid().cumprod(1),
    "MaskedFill": lambda x, _, w: x.masked_fill(w.expand(SIDE, SIDE) > 0, x.mean()),
    "LinalgHouseholderProduct": lambda x: torch.linalg.householder_product(x[:, :8], x[0, :8]),
}
"""Nodes whose gradient is by another formula."""
VALUES: dict[str, Callable[..., Tensor]] = {
    "aten::_linalg_svd": lambda x: torch.linalg.svdvals(x) * 1,
    "aten::_linalg_eigh": lambda x: torch.linalg.eigvalsh(x + x.mT),
    "aten::linalg_eig": lambda x: torch.linalg.eigvals(x).abs(),
}
"""Decompositions without vectors."""
NAMED = [
    *((function, {"optimizer": "sgd"}, "") for function in VIEWS.values()),
    *((function, {}, name) for name, function in OTHERWISE.items()),
    *((function, {"mode": "eval"}, name) for name, function in VALUES.items()),
]


@pytest.mark.parametrize(("function", "options", "name"), NAMED, ids=[*VIEWS, *OTHERWISE, *VALUES])
def test_what_is_named_is_in_range(function: Callable[..., Tensor], options: dict[str, Any], name: str) -> None:
    """A write to a view is named by the view's node, unless nothing follows it."""
    torch.manual_seed(0)
    model, x = Through(function), torch.randn(SIDE, SIDE)
    predicted = estimate_memory(model, input_data=x, **options)
    low, high = predicted.peak_range
    assert low <= measure_memory(model, input_data=x, **options).peak_bytes <= high
    assert predicted.unknown or predicted.assumptions or low == high
    unknown = [said.partition("Backward")[0] for said, _ in predicted.unknown]
    assert unknown == [name] if name else set(unknown) <= {OF_VIEW.partition("Backward")[0]}


def test_values_whose_gradient_needs_the_vectors_are_not_named() -> None:
    x = torch.randn(SIDE, SIDE)
    assert estimate_memory(Through(VALUES["aten::_linalg_svd"]), input_data=x).unknown == ()


def test_a_value_that_fills_a_mask_is_known_unless_it_has_a_gradient() -> None:
    filled = estimate_memory(Through(lambda x: x.masked_fill(x > 0, torch.tensor(2.0))), (SIDE,), SIDE)
    assert filled.unknown == () and filled.peak_range == (filled.peak_bytes, filled.peak_bytes)


GIVEN: dict[str, Callable[[Tensor, Tensor], object]] = {
    "another dtype": lambda x, out: torch.mul(x, x.double(), out=out.double()),
    "copied from a temporary": lambda x, out: torch.diag(x[0], out=out),
    "resized": lambda x, out: torch.mm(x, x, out=torch.empty(0)),
    "random": lambda x, out: torch.normal(x, x.abs(), out=out),
}


@of_parts(lambda function: {"function": function})
def Given(self, x: Tensor) -> Tensor:
    out = torch.empty(SIDE, SIDE)
    self.function(x, out)
    return out


@pytest.mark.parametrize("case", GIVEN)
def test_an_operator_that_writes_to_a_given_tensor(case: str) -> None:
    """Kernels cast numbers, or compute into a temporary tensor, only when called with ``out=``."""
    model, x = Given(GIVEN[case]), torch.randn(SIDE, SIDE)
    before = torch.get_rng_state()
    predicted = estimate_memory(model, input_data=x, mode="eval")
    assert torch.equal(torch.get_rng_state(), before)
    assert predicted.peak_bytes == measure_memory(model, input_data=x, mode="eval").peak_bytes
    assert predicted.unknown == ()


@torch.library.custom_op("torchsummary_plus_tests::cubed", mutates_args=(), schema="(Tensor x) -> Tensor")
def cubed(x: Tensor) -> Tensor:
    return x**3


@torch.library.custom_op(
    "torchsummary_plus_tests::cubed_backward", mutates_args=(), schema="(Tensor grad, Tensor x) -> Tensor"
)
def cubed_backward(grad: Tensor, x: Tensor) -> Tensor:
    return 3 * x**2 * grad


cubed.register_autograd(
    lambda ctx, grad: cubed_backward(grad, ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_operator_of_the_users_own_without_fake_kernels(device: str) -> None:
    estimate = estimate_memory(Through(lambda x: cubed(x)), (SIDE,), SIDE, device, optimizer="sgd", loss=torch.sum)
    scratch = {"torchsummary_plus_tests::cubed_backward"} if device == "cpu" else set()
    assert {note.partition(",")[0] for note in estimate.assumptions} == scratch | {
        "torchsummary_plus_tests::cubed in the model itself",
        "torchsummary_plus_tests::cubed_backward in the step",
    }
    assert {module.path: module.own.saved_bytes for module in estimate.by_module}["layer"] == 4 * SIDE * SIDE
    assert sum(estimate.at_peak.values()) == estimate.peak_bytes


def penalised(function: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Tensor], None]:
    def step(model: nn.Module, x: Tensor) -> None:
        x = x.detach().requires_grad_()
        out = function(model(x))
        (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        (out.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
        model.zero_grad()

    return step


AGAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "a mask of temporaries": F.hardswish,
    "no inputs but one": lambda x: F.group_norm(x, 4),
}


@pytest.mark.parametrize("case", AGAIN)
def test_gradients_of_an_operators_gradients(case: str) -> None:
    request: dict[str, Any] = {"batch_size": 32, "train_step": penalised(AGAIN[case])}
    torch.manual_seed(0)
    model = nn.Linear(SIDE, SIDE)
    predicted, measured = (call(model, (SIDE,), **request) for call in (estimate_memory, measure_memory))
    assert predicted.phase_peaks == measured.phase_peaks


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_gradient_of_masked_scatter_lies_in_the_range_whatever_the_mask_selects(share: float) -> None:
    chosen = torch.arange(300 * SIDE).view(300, SIDE) < share * 300 * SIDE
    model, x = Through(lambda x: (-x).masked_scatter(chosen, x * 2)), torch.randn(300, SIDE)
    low, high = estimate_memory(model, input_data=x).peak_range
    assert low <= measure_memory(model, input_data=x).peak_bytes <= high


def repeated(count: int) -> Callable[[Tensor], Tensor]:
    """Define an operator, again if it is there, that repeats its argument beside its result."""

    @torch.library.custom_op("torchsummary_plus_tests::repeated", mutates_args=(), schema="(Tensor x) -> Tensor")
    def operator(x: Tensor) -> Tensor:
        return x.repeat(count, 1)[: len(x)] * 1

    operator.register_fake(torch.empty_like)
    operator.register_autograd(lambda ctx, grad: grad)
    return lambda x: operator(x)


@pytest.mark.parametrize("count", [2, 20])
def test_an_operator_that_is_defined_again(count: int) -> None:
    """As by a notebook's cell: what its earlier kernel took says nothing, and calling that ends the process."""
    for used in (1, count):
        model = Through(repeated(used))
        gc.collect()
        predicted, measured = (call(model, (SIDE,), SIDE, mode="eval") for call in (estimate_memory, measure_memory))
        assert predicted.peak_bytes == measured.peak_bytes
