"""Steps of a single operator, predicted against measured, to the byte, phase by phase."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import checkpoint as checkpoints
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.told import Told
from torchsummary_plus import MemoryEstimate, StepError, estimate_memory, measure_memory
from torchsummary_plus.ops.backends import multiplies

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
    "+": lambda x: x + x,
    "*": lambda x: x * x,
    "@": lambda x: x @ x,
    "**": lambda x: x.abs() ** x,
    "lerp": lambda x: torch.lerp(x, x, 0.3),
    "where": lambda x: torch.where(x > 0, x, x),
    "maximum": lambda x: torch.maximum(x, x),
    "addmm": lambda x: torch.addmm(x, x, x),
    "cdist": lambda x: torch.cdist(x, x),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "kl_div": lambda x: F.kl_div(x, x, reduction="batchmean"),
}
SELECTING: dict[str, Callable[..., Tensor]] = {
    "index": lambda x, i: x[i],
    "gather": lambda x, i: x.gather(0, i.expand(SIDE, SIDE)),
    "trace": lambda x: x.trace(),
    "max of all": lambda x: x / x.max(),
    "median of all": lambda x: x.median(),
    "prod to another dtype": lambda x: x.sigmoid().prod(1, dtype=torch.float64),
    "cumprod of a part": lambda x: (x[:, :8].cumprod_(1), x)[1] * 1,
    "cumprod to another dtype": lambda x: x.sigmoid().cumprod(1, dtype=torch.float64),
    "batch norm": lambda x, _, w: torch.ops.aten._batch_norm_with_update(x, w, w, w - 1, w, 0.1, 1e-5)[0],
    "topk": lambda x: x.topk(3)[0],
    "cummax": lambda x: x.cummax(0)[0],
    "index_put": lambda x, i: x.index_put((i,), x, accumulate=True),
    "scatter_add": lambda x, i: x.scatter_add(0, i.expand(SIDE, SIDE), x),
    "masked_fill": lambda x, _, w: x.masked_fill(w.expand(SIDE, SIDE) > 0, x.mean()),
    "clamp": lambda x, _, w: x.clamp(-w, w * x.detach().abs()),
    "clamp between learned": lambda x: x.clamp(-x.abs(), 2 * x),
    "times an imaginary number": lambda x: (x + 1j * x).abs(),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i.expand(SIDE, SIDE), x, "amax"),
}
LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": lambda x, i, w: F.cross_entropy(x, i, w, label_smoothing=0.1),
    "with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid()),
    "with_logits, pos_weight": lambda x, _, w: F.binary_cross_entropy_with_logits(
        x, x.detach().sigmoid(), pos_weight=w
    ),
    "multilabel_margin": lambda x, i: F.multilabel_margin_loss(x.t(), i.expand(SIDE, SIDE).contiguous().t()),
    "cross_entropy of both": lambda x: F.binary_cross_entropy(x.sigmoid(), x.sigmoid()),
    "cross_entropy, of targets": lambda x: F.binary_cross_entropy(x.detach().sigmoid(), x.sigmoid()),
    "triplet": lambda x: F.triplet_margin_loss(x, x.roll(1), x.roll(2)),
}
TURNED: dict[str, Callable[..., Tensor]] = {
    "contiguous": lambda x: x.t().contiguous(),
    "svd": lambda x: torch.linalg.svd(x)[1],
    "solve": lambda x: torch.linalg.solve(x, x),
    "triangles with gaps": lambda x: x.view(4, 32, 32)[:, :8, :8].triu(),
    "factors": lambda x: torch.linalg.lu_solve(*torch.linalg.lu_factor(x.view(4, 32, 32)), x.view(4, 32, 32)),
    "segments": lambda x: torch.segment_reduce(x.t(), "max", lengths=torch.tensor([4, SIDE - 4])),
}
IN_PYTHON: dict[str, Callable[..., Tensor]] = {
    "gaussian_nll_loss": lambda x: nn.GaussianNLLLoss(full=True)(x, torch.zeros_like(x), torch.ones_like(x)),
    "cosine_embedding_loss": lambda x, _, w: F.cosine_embedding_loss(x * 2, x * 3, w),
    "max_pool1d": lambda x: F.max_pool1d((x * 2)[:, None].detach(), 2).sum() + x.sum(),
    "max_pool1d with indices": lambda x: F.max_pool1d((x * 2)[:, None], 2, return_indices=True)[0].sum(),
    "norm": lambda x: (x * 1).norm(dim=-1).sum() + torch.norm(x * 1),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x * 2, x * 3).sum(),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x * 2, hard=True).sum(),
    "a number minus it": lambda x: (1 - x * 2).sum(),
    "a checkpoint that runs a number again": lambda x: checkpoint(
        lambda y: y / (y.norm(dim=-1, keepdim=True) + 1), x * 1, use_reentrant=False
    ).sum(),
    "pca_lowrank": lambda x: torch.pca_lowrank(x * 2, q=3)[1].sum(),
}
"""Functions of Python in torch, which free their tensors as without a mode."""


def written(x: Tensor, write: Callable[[Tensor], object]) -> Tensor:
    """A part of a tensor is written to in place, and both are used."""
    y = x * x
    view = write(y)
    return y.exp() + view.sum() if isinstance(view, Tensor) else y.exp()


def item(y: Tensor) -> None:
    y[..., 1:3] *= 2.5


def two_views(y: Tensor) -> Tensor:
    first, second = y[:2], y[2:]
    first.mul_(2)
    second.div_(3.0)
    return first


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
    "two views": lambda x: written(x, two_views),
    "a view of a view": lambda x: written(x, lambda y: y.view(-1)[SIDE:].unflatten(0, (-1, 8)).mul_(2).add_(1)),
    "a tensor's product": lambda x: written(x, lambda y: y[:2].mul_(y[:2].detach().clone())),
    "a copy": lambda x: written(x, lambda y: y[:1].copy_(y[1:2])),
    "a fill": lambda x: written(x, lambda y: y[:1].fill_(0.5)),
    "a mask": lambda x: written(x, lambda y: y[:2].masked_fill_(y[:2].detach() == 7, 0.0)),
    "an activation": lambda x: written(x, lambda y: F.leaky_relu(y.reshape(-1), 0.1, inplace=True)),
    "an activation of a norm": lambda x: F.hardswish(F.instance_norm(x.view(4, 16, -1)), inplace=True),
    "a view that is dropped": filled,
    "a view that a checkpoint gets": lambda x: handed(x, again=False),
    "a view that a checkpoint gets, which is entered again": lambda x: handed(x, again=True),
}


class Listening(TorchDispatchMode):
    """Lets every operator pass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_a_mode(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with Listening():  # type: ignore[no-untyped-call]
        return function(x)


def products() -> Any:
    """Selective checkpointing that keeps matrix products."""
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
    "pool": lambda x: F.max_pool1d(x.detach(), 2) + x[:, :32],
}
WITHIN: dict[str, Callable[..., Tensor]] = {
    f"{name} {way}": partial(run, function)
    for name, function in INSIDE.items()
    for way, run in (("in a mode", in_a_mode), ("in selective checkpointing", selectively))
}
"""Functions that run otherwise in a dispatch mode of the user's own."""
PARTS: dict[str, Callable[..., Tensor]] = {
    "slice_scatter": lambda x: torch.slice_scatter(x[:, :16], x[:2, :16] * 2, 0, 0, 2),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x[1:5, :4], x[0, :4] * 2),
    "slice_scatter of a repeated row": lambda x: torch.slice_scatter(x[:1].expand(4, -1), x[:2] * 2, 0, 0, 2),
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
        "view": VIEWS,
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


def allocated(estimate: MemoryEstimate) -> int:
    """Bytes that a step allocates in all, at whatever time."""
    return sum(nbytes for _, _, nbytes in estimate.log.events)


FORMULAS: dict[str, Callable[..., Tensor]] = {
    "atan2": lambda x: torch.atan2(x, x.abs() + 1),
    "maximum": lambda x: torch.maximum(x, -x),
    "gather": lambda x: torch.gather(x, 0, torch.zeros_like(x, dtype=torch.int64)),
}


@pytest.mark.parametrize("case", FORMULAS)
def test_gradients_that_write_in_place_without_a_mode(case: str) -> None:
    """Also where the peak is elsewhere: what the step allocates in all is the same."""
    model, x = Through(FORMULAS[case]), torch.randn(300, SIDE)
    predicted, measured = (call(model, input_data=x, steps=1) for call in (estimate_memory, measure_memory))
    assert (predicted.peak_bytes, allocated(predicted)) == (measured.peak_bytes, allocated(measured))


GIVEN: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a number": lambda x, out: torch.add(x, 1, out=out),
    "another dtype": lambda x, out: torch.mul(x, x.double(), out=out.double()),
    "copied from a temporary": lambda x, out: torch.diag(x[0], out=out),
    "transformed": lambda x, out: torch.fft.rfft(x, out=torch.empty(0, dtype=torch.complex64)),
    "resized": lambda x, out: torch.mm(x, x, out=torch.empty(0)),
    "random": lambda x, out: torch.normal(x, x.abs(), out=out),
}


class Given(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
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


@torch.library.custom_op("torchsummary_plus_tests::picky_backward", mutates_args=(), schema="(Tensor grad) -> Tensor")
def picky_backward(grad: Tensor) -> Tensor:
    if not grad.any():
        raise ValueError("nothing but zeros")
    return grad.clone()


class Picky(torch.autograd.Function):
    """Nothing, with a gradient by an operator that refuses zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return picky_backward(grad)


def test_an_operator_that_refuses_zeros_is_told_by_a_real_step() -> None:
    model = Through(lambda x: Picky.apply(x))
    estimate = estimate_memory(model, (SIDE,), SIDE, optimizer="sgd", loss=torch.sum)
    assert estimate.assumptions == (
        "torchsummary_plus_tests::picky_backward in the step, 2 times: sizes taken from a real step",
        "torchsummary_plus_tests::picky_backward, 2 times: scratch memory measured on zeros",
    )


def test_where_there_is_none_it_is_named_and_not_its_refusal() -> None:
    model = Through(lambda x: Picky.apply(x)).to("meta")
    with pytest.raises(StepError, match=r"torchsummary_plus_tests\.picky_backward.* needs the values") as raised:
        estimate_memory(model, (SIDE,), SIDE, optimizer="sgd")
    assert "nothing but zeros" not in str(raised.value)


def penalised(function: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Tensor], None]:
    """A step that differentiates the function's gradient again."""

    def step(model: nn.Module, x: Tensor) -> None:
        x = x.detach().requires_grad_()
        out = function(model(x))
        (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        (out.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
        model.zero_grad()

    return step


AGAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "a mask of temporaries": F.hardswish,
    "masks combined in place": lambda x: x.clamp(-1, 1),
    "no inputs but one": lambda x: F.group_norm(x, 4),
    "singular or not": lambda x: torch.linalg.det(x.view(-1, 8, 8)).view(-1, 1),
}


@pytest.mark.parametrize("case", AGAIN)
def test_gradients_of_an_operators_gradients(case: str) -> None:
    request: dict[str, Any] = {"batch_size": 32, "train_step": penalised(AGAIN[case])}
    torch.manual_seed(0)
    model = nn.Linear(SIDE, SIDE)
    predicted, measured = (call(model, (SIDE,), **request) for call in (estimate_memory, measure_memory))
    assert predicted.phase_peaks == measured.phase_peaks


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(("dtype", "step"), [(torch.int64, 1), (torch.int32, 2)])
def test_lengths_of_ctc_are_copied_to_be_read_but_not_kept(dtype: torch.dtype, step: int, mode: str) -> None:
    def aligned(x: Tensor) -> Tensor:
        scores = x.view(8, 4, -1).log_softmax(-1)
        labels, inputs = torch.ones(4, 2, dtype=dtype), torch.full((4 * step,), 8, dtype=dtype)[::step]
        return x + F.ctc_loss(scores, labels, inputs, inputs // 4)

    model, request = Through(aligned), {"batch_size": 32, "mode": mode}
    predicted, measured = (run(model, (SIDE,), **request) for run in (estimate_memory, measure_memory))
    assert predicted.phase_peaks == measured.phase_peaks


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_autocast_reaches_the_product_inside_an_affine_grid(mode: str) -> None:
    model = Through(lambda x: F.affine_grid(x[:, :6].float().reshape(-1, 2, 3), [SIDE, 3, 4, 4], align_corners=False))
    options: dict[str, Any] = {"input_data": torch.randn(SIDE, SIDE), "mode": mode, "autocast": torch.bfloat16}
    predicted, measured = (call(model, **options) for call in (estimate_memory, measure_memory))
    assert predicted.peak_range[0] <= measured.peak_bytes <= predicted.peak_range[1]
    forward = estimate_memory(model, **options, keep_output=True).steady_bytes
    assert forward == measure_memory(model, **options, keep_output=True).steady_bytes


def test_a_gpu_samples_by_cudnn_which_makes_both_gradients() -> None:
    images = torch.randn(2, 3, 16, 16)
    model = Through(lambda x: F.grid_sample(images, x.view(2, 8, 8, 2), align_corners=True))
    estimate = estimate_memory(model, input_data=torch.randn(4, SIDE), device="cuda", gpu="T4")
    made = [(estimate.log.moments[place].operator, nbytes) for place, _, nbytes in estimate.log.events if nbytes]
    gradients = [nbytes for name, nbytes in made if name == "aten::cudnn_grid_sampler_backward"]
    expanded = 4 * 2 * 3 * 8 * 8  # The gradient of the sum.
    assert gradients[:3] == [expanded, images.nbytes, 4 * 256]


class LeafAsResult(torch.autograd.Function):
    """Recompute in the backward, where an input is a result as well, as a reentrant checkpoint does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x.tanh(), y.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            results = inputs[0].tanh(), inputs[1]
        torch.autograd.backward(results, gradients)
        return tuple(tensor.grad for tensor in inputs)


def test_zeros_that_the_engine_makes_are_the_gradient_of_a_leaf() -> None:
    model, x = Through(lambda x: LeafAsResult.apply(x, x * 1)[0]), torch.randn(300, SIDE)
    assert estimate_memory(model, input_data=x).peak_bytes == measure_memory(model, input_data=x).peak_bytes


class WithNumbers(nn.Module):
    """A function of parameters that are single numbers."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.weight = (nn.Parameter(torch.rand(())) for _ in range(3))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first, self.second, self.weight * x.mean())


NUMBERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "added": lambda a, b, y: a + (y * y),
    "stacked": lambda a, b, y: torch.stack([a + y * y, b + y * y]).sum(),
    "parameters stacked": lambda a, b, y: (torch.stack([a, b]) * 2).sum(),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_single_numbers_do_not_keep_a_gradient_that_others_share(case: str) -> None:
    model, x = WithNumbers(NUMBERS[case]), torch.rand(2, 8)
    assert estimate_memory(model, input_data=x).peak_bytes == measure_memory(model, input_data=x).peak_bytes


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_gradient_of_masked_scatter_lies_in_the_range_whatever_the_mask_selects(share: float) -> None:
    chosen = torch.arange(300 * SIDE).view(300, SIDE) < share * 300 * SIDE
    model, x = Through(lambda x: (-x).masked_scatter(chosen, x * 2)), torch.randn(300, SIDE)
    low, high = estimate_memory(model, input_data=x).peak_range
    assert low <= measure_memory(model, input_data=x).peak_bytes <= high


@pytest.mark.skipif(multiplies(torch.bfloat16), reason="oneDNN computes convolutions in bfloat16 on this processor")
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (lambda: nn.Conv2d(6, 12, 1, stride=2, groups=2), (9, 9)),
        (lambda: nn.Conv3d(6, 12, 1, groups=2), (9, 9, 9)),
        (lambda: nn.ConvTranspose3d(6, 12, 3, groups=2), (9, 9, 9)),
    ],
    ids=["2d", "3d", "transposed 3d"],
)
def test_biases_of_grouped_convolutions_are_summed_in_float32(
    layer: Callable[[], nn.Module], size: tuple[int, ...]
) -> None:
    model, x = layer().bfloat16(), torch.randn(2, 6, *size, dtype=torch.bfloat16)
    predicted, measured = (call(model, input_data=x, loss=squared) for call in (estimate_memory, measure_memory))
    assert predicted.peak_bytes == measured.peak_bytes


def squared(out: Tensor) -> Tensor:
    return (out * out).sum()


def test_a_parameter_without_elements_has_a_gradient_and_a_state() -> None:
    """As the class tokens of a model that is given none."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.linear = nn.Parameter(torch.zeros(0, 64)), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(torch.cat([self.tokens, x]))
            return out

    settings: dict[str, Any] = {"input_data": torch.randn(8, 64), "optimizer": "adamw"}
    estimate, measured = estimate_memory(Tokens(), **settings), measure_memory(Tokens(), **settings)
    assert estimate.peak_bytes == measured.peak_bytes
    assert estimate.steady_bytes == measured.steady_bytes


class Noting(Tensor):
    """A tensor that notes which functions it is given to."""

    called: ClassVar = Told()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.called.put(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


def test_a_class_of_tensors_is_still_told_of_functions() -> None:
    def loss(out: Tensor) -> Tensor:
        Noting.called.all()
        return F.mse_loss(out.as_subclass(Noting), torch.zeros(4, 8)).as_subclass(Tensor)

    estimate_memory(nn.Linear(8, 8), (8,), 4, loss=loss)
    assert Noting.called.all()[0] == "mse_loss"


def pooled(x: Tensor) -> Tensor:
    samples = torch.zeros(1, 8, 3)
    return F.fractional_max_pool3d(x.reshape(1, 8, 8, 8, 8), 2, output_ratio=0.5, _random_samples=samples)


def test_an_operator_of_no_known_kernel_is_run_on_zeros() -> None:
    estimate = estimate_memory(Through(pooled), (SIDE,), SIDE, optimizer="sgd", loss=torch.sum)
    (told,) = estimate.assumptions
    assert told == "fractional_max_pool3d_backward in the step, 2 times: sizes computed on zeros"


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


def test_known_masks_of_one_shape_have_memory_of_their_own() -> None:
    def step(model: nn.Module, x: Tensor, mask: Tensor) -> None:
        torch.zeros_like(mask, dtype=x.dtype).masked_scatter(mask, model(x)).sum().backward()
        model.zero_grad()

    model, x = nn.Linear(SIDE, SIDE), torch.randn(300, SIDE)
    peaks = []
    for least in (0, 100, -100, 1):
        data = [x, x > least]
        peaks.append(estimate_memory(model, input_data=data, train_step=step).peak_bytes)
        assert peaks[-1] == measure_memory(model, input_data=data, train_step=step).peak_bytes
    assert len(set(peaks)) == 4
