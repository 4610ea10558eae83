"""Scratch memory of linear algebra, distances and embedding bags on the CPU, against torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.truth.kernel_truth import Call, agree, aten, measured, predicted
from tests.truth.memory_truth import measure
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.ops.scratch.registry import SCRATCH
from torchsummary_plus.step import kernel_trials

pytestmark = pytest.mark.usefixtures("threads")

R = torch.randn
SHAPES = ((1, 1), (2, 2), (8, 8), (12, 12), (40, 40), (3, 16, 16), (2, 3, 5, 5))


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Symmetric matrices of positive eigenvalues."""
    x = R(*shape, dtype=dtype)
    return x @ x.mT + 2 * shape[-1] * torch.eye(shape[-1], dtype=dtype)


def square() -> Iterable[Call]:
    for shape in SHAPES:
        for dtype in (torch.float32, torch.float64):
            x, b = positive(*shape, dtype=dtype), R(*shape[:-1], 3, dtype=dtype)
            yield aten.linalg_inv_ex.default, x
            yield aten._linalg_solve_ex.default, x, b
            yield aten._linalg_det.default, x
            yield aten._linalg_slogdet.default, x
            for vectors in (True, False):
                yield aten._linalg_eigh.default, x, "L", vectors


def test_systems_determinants_and_eigenvalues() -> None:
    """Factors with their pivots, LAPACK's answers and its work."""
    agree(square())


@pytest.mark.parametrize("threads", [2], indirect=True)
@pytest.mark.parametrize("shape", [(33, 3), (64, 32), (128, 100), (32, 128), (2000, 10), (700, 300)])
@pytest.mark.parametrize("tried", [True, False])
def test_the_work_of_qr_with_several_threads(
    shape: tuple[int, int], threads: None, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried on zeros; where that is not allowed, the truth is in the range."""
    if not tried:
        monkeypatch.setattr(kernel_trials, "ALLOWANCE", -1)

    class Orthogonal(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.qr(x)[0]

    x = R(shape)
    estimate = estimate_memory(Orthogonal(), input_data=x, mode="eval")
    low, high = estimate.peak_range
    truth = measure(Orthogonal(), (x,), "eval").peak_bytes
    assert low <= truth <= high
    if tried:
        assert estimate.peak_bytes == truth
    else:
        assert dict(estimate.unknown).keys() == {"aten::linalg_qr"}


def test_singular_values() -> None:
    shapes = ((1, 1), (20, 8), (8, 20), (3, 12, 12), (2, 3, 4, 9))
    agree((aten._linalg_svd.default, R(*s), f, v) for s in shapes for f in (True, False) for v in (True, False))


def test_the_work_of_qr_is_within_its_band() -> None:
    """LAPACK chooses its blocks; the results and the factors of the reflections are exact."""
    shapes = [(m, n) for m in (1, 8, 20, 30, 64, 200, 400) for n in (1, 8, 20, 30, 64, 200, 400)]
    calls = [(aten.linalg_qr.default, R(*shape), mode) for shape in shapes for mode in ("reduced", "complete")]
    band = SCRATCH["cpu", "aten::linalg_qr"].band
    for call, (peak, out) in zip(calls, measured([partial(*call) for call in calls])):
        operator, *args = call
        results = sum(t.numel() * t.element_size() for t in out)
        work, said = peak - results, predicted(operator, tuple(args), out) - results
        assert said * (1 - band) <= work <= said * (1 + band), (args[0].shape, args[1], work, said)


def test_distances() -> None:
    pairs = ((40, 50), (1, 200), (200, 1), (30, 30))
    agree((aten._euclidean_dist.default, R(a, 6), R(b, 6)) for a, b in pairs)
    agree((aten._euclidean_dist.default, R(3, a, 6), R(3, b, 6)) for a, b in pairs)
    agree((aten._euclidean_dist.default, R(a, 1).double(), R(b, 1).double()) for a, b in pairs)


ROWS = {
    "contiguous": lambda: (R(4, 7, 5), R(4, 9, 5)),
    "sliced": lambda: (R(4, 12, 5)[:, 2:9], R(4, 9, 12)[..., 2:7]),
    "turned": lambda: (R(5, 7).mT, R(9, 5)),
    "in another's batch": lambda: (R(7, 5), R(3, 9, 5)),
    "many, sliced": lambda: (R(3, 40, 8)[..., :5], R(3, 9, 5)),
    "many, in another's batch": lambda: (R(1, 40, 8), R(2, 30, 8)),
    "without columns": lambda: (R(1, 7, 0), R(1, 4, 0)),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_rows_of_distances_are_copied_to_lie_one_after_the_other(rows: str, p: float) -> None:
    x, y = ROWS[rows]()
    calls: list[Call] = [(aten._cdist_forward.default, x, y, p, mode) for mode in (None, 1, 2)]
    distances = torch.cdist(x, y, p)
    if x.shape[:-2] == distances.shape[:-2]:
        for grad in (R(*distances.shape), torch.ones(()).expand(distances.shape)):
            calls.append((aten._cdist_backward.default, grad, x, y, p, distances))
    agree(calls)


def bilinear(x: Tensor, w: Tensor, y: Tensor) -> Call:
    """As ``F.bilinear`` calls it."""
    return aten._trilinear.default, x, w, y, [1, 3], [0], [1, 2], [2, 3]


def gradients(x: Tensor, w: Tensor, y: Tensor, grad: Tensor) -> Iterable[Call]:
    """As the formulas of its gradients call it."""
    yield aten._trilinear.default, grad, w, y, [2, 3], [0], [1, 2], [1, 3]
    yield aten._trilinear.default, x, grad, y, [1, 3], [2, 3], [1, 2], [0]
    yield aten._trilinear.default, x, w, grad, [1, 3], [0], [2, 3], [1, 2]


def products() -> Iterable[Call]:
    for rows, out, a, b in ((20, 8, 32, 16), (5, 1, 40, 30), (64, 10, 3, 7)):
        x, w, y, grad = R(rows, a), R(out, a, b), R(rows, b), R(rows, out)
        yield bilinear(x, w, y)
        yield from gradients(x, w, y, grad)


def test_bilinear_forms() -> None:
    agree(products())


def bags() -> Iterable[Call]:
    offsets = torch.tensor([0, 3, 10, 11, 30])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for kind in (torch.int64, torch.int32):
            table, indices = R(50, 16).to(dtype), torch.randint(0, 50, (40,)).to(kind)
            for mode in (0, 1, 2):
                for last, padding in ((False, -1), (True, -1), (False, 2)):
                    places = torch.cat([offsets, torch.tensor([40])]).to(kind) if last else offsets.to(kind)
                    for operator in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default):
                        yield operator, table, indices, places, False, mode, False, None, last, padding
                    if not mode:
                        weights = torch.rand(40).to(dtype)
                        yield operator, table, indices, places, False, mode, False, weights, last, padding


def test_bags_of_embeddings() -> None:
    agree(bags())


def bags_backward() -> Iterable[Call]:
    table, indices, offsets = R(50, 16), torch.randint(0, 50, (40,)), torch.tensor([0, 3, 10, 11, 30])
    for mode in (0, 1, 2):
        for weights in (None, torch.rand(40)) if mode == 0 else (None,):
            _, places, sizes, greatest = aten._embedding_bag(table, indices, offsets, False, mode, False, weights)
            for grad in (R(5, 16), torch.ones(()).expand(5, 16)):
                yield (
                    aten._embedding_bag_backward.default, grad, indices, offsets, places, sizes, greatest, 50, False,
                    mode, False, weights, -1,
                )  # fmt: skip


def test_gradients_of_bags() -> None:
    agree(bags_backward())


class Applied(nn.Module):
    """A function of a parameter."""

    def __init__(self, function: Callable[[Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(positive(*shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.weight) * x


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "inverse": torch.linalg.inv,
    "determinant": lambda w: torch.linalg.slogdet(w)[1],
    "Cholesky": torch.linalg.cholesky,
    "QR": lambda w: torch.linalg.qr(w)[1],
    "singular values": torch.linalg.svdvals,
    "eigenvalues": torch.linalg.eigvalsh,
    "eigenvalues without symmetry": lambda w: w[0] * torch.linalg.eigvals(input=w.detach()).abs(),
    "rank": lambda w: w * torch.linalg.matrix_rank(input=w.detach()),
    "rank of a symmetric matrix": lambda w: w * torch.linalg.matrix_rank(w.detach(), hermitian=True),
    "condition": torch.linalg.cond,
    "nuclear norm": lambda w: torch.linalg.norm(w, "nuc"),
    "nuclear norm of values": lambda w: w * w.detach().norm(p="nuc"),
    "distances": lambda w: torch.cdist(w, w.detach()),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_step_through_it(name: str, mode: str) -> None:
    model, x = Applied(FUNCTIONS[name], 30, 30), torch.ones(1)
    estimate = estimate_memory(model, input_data=x, mode=mode)
    assert abs(estimate.peak_bytes - measure(model, (x,), mode).peak_bytes) <= 16
    assert not estimate.unknown


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_exponentials_of_a_batch(dtype: torch.dtype) -> None:
    agree((aten.linalg_matrix_exp.default, R(*s, dtype=dtype) * 30) for s in ((5, 16, 16), (2, 3, 8, 8), (5, 1, 1)))


@pytest.mark.parametrize("shape", [(12, 12), (6, 8, 8), (2, 3, 3)])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.1, 1.0, 30.0])
def test_an_exponential_depends_on_norms_and_is_named(scale: float, shape: tuple[int, ...]) -> None:
    model, x = Applied(lambda w: torch.linalg.matrix_exp(scale * w), *shape), torch.ones(1)
    estimate = estimate_memory(model, input_data=x, mode="eval", steps=1)
    low, high = estimate.peak_range
    assert low <= measure(model, (x,), "eval", steps=1).peak_bytes <= high
    assert estimate.unknown == (("aten::linalg_matrix_exp", 1),)


class Multiplied(nn.Module):
    """A product of elements of a parameter and an input."""

    def __init__(self, product: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.product, self.weight = product, nn.Parameter(torch.rand(40, 30) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x * self.weight)


PRODUCTS: dict[str, Callable[[Tensor], Tensor]] = {
    "of all": torch.prod,
    "along rows": lambda x: x.prod(1),
    "along columns, kept": lambda x: torch.prod(x, 0, keepdim=True),
    "cumulative": lambda x: x.cumprod(dim=1),
    "powers": lambda x: torch.linalg.vander(x[:5], N=4),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_gradient_of_a_product_without_a_zero(name: str) -> None:
    model, x = Multiplied(PRODUCTS[name]), torch.rand(40, 30) + 0.5
    estimate = estimate_memory(model, input_data=x)
    assert abs(estimate.peak_bytes - measure(model, (x,)).peak_bytes) <= 16
    assert any("assumed to contain no zeros" in text for text in estimate.assumptions)
    assert not estimate_memory(model, input_data=x, mode="eval").assumptions


@pytest.mark.parametrize("zeros", [1, 120])
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_gradient_of_a_product_with_zeros_is_in_the_range(name: str, zeros: int) -> None:
    model, x = Multiplied(PRODUCTS[name]), torch.rand(40, 30) + 0.5
    x.flatten()[:zeros] = 0
    low, high = estimate_memory(model, input_data=x).peak_range
    assert low <= measure(model, (x,)).peak_bytes <= high
    assert high > low


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_bilinear_forms_and_of_their_derivatives(dtype: torch.dtype) -> None:
    def calls() -> Iterable[Call]:
        for batch, i, j, n in ((4, 40, 40, 8), (64, 30, 20, 5), (1, 5, 5, 5), (3, 7, 1, 2)):
            x, y, out, weight = (R(*shape, dtype=dtype) for shape in ((batch, i), (batch, j), (batch, n), (n, i, j)))
            of_x, of_y, of_out, of_weight = [1, 3], [1, 2], [2, 3], [0]
            for lay in (Tensor.contiguous, lambda t: t.mT.contiguous().mT):
                a, b, c, w = map(lay, (x, y, out, weight))
                yield aten._trilinear.default, a, w, b, of_x, of_weight, of_y, [2, 3]
                yield aten._trilinear.default, a, c, b, of_x, of_out, of_y, [0]
                yield aten._trilinear.default, a, b, c, of_x, of_y, of_out, [0]
                yield aten._trilinear.default, c, w, b, of_out, of_weight, of_y, [1, 3]
                yield aten._trilinear.default, a, w, c, of_x, of_weight, of_out, [1, 2]

    agree(calls())
