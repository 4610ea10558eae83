"""Scratch memory of CPU arithmetic, indexed writes and searches, against torch's profiler."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from tests.ops.test_workspace_cpu import HALF, TABLE, R, indices, turned
from tests.truth.kernel_truth import Call, agree, aten
from tests.truth.releases import from_release
from torchsummary_plus.live.versions import since

SCALAR, INTEGERS, FLAGS = torch.tensor(2.0), indices(5, 30, 40), TABLE > 0
OTHERS = (2.0, 2, TABLE, TABLE.to(HALF), INTEGERS, FLAGS, SCALAR, SCALAR.double(), R(40).to(HALF))


def arithmetic() -> Iterable[Call]:
    """Every pair of operands of dtypes that differ, and Python numbers."""
    operators = (aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.eq.Tensor, aten.lt.Tensor)
    for operator in operators:
        for x in (TABLE, TABLE.to(HALF), INTEGERS, FLAGS, TABLE.double(), SCALAR):
            for other in OTHERS:
                if isinstance(other, Tensor) or operator in operators[:3]:
                    yield operator, x, other
    for x in (TABLE, INTEGERS, FLAGS):
        yield aten.eq.Scalar, x, 1
        yield aten.rsub.Scalar, x.float(), 1
    for x, other in (
        (TABLE, 2.0),
        (TABLE, TABLE.to(HALF)),
        (TABLE.to(HALF), TABLE),
        (TABLE, INTEGERS),
        (TABLE, SCALAR),
    ):
        yield aten.add_.Tensor, x.clone(), other
        yield aten.mul_.Tensor, x.clone(), other
    yield aten.where.self, FLAGS, TABLE, TABLE.to(HALF)
    yield aten.where.self, FLAGS, INTEGERS, SCALAR
    yield aten.addcmul.default, TABLE, TABLE.to(HALF), TABLE
    yield aten.sqrt.default, INTEGERS
    yield aten.cumsum.default, FLAGS, 1
    yield aten.abs.default, torch.complex(TABLE, TABLE)
    for x in (TABLE, TABLE.double(), TABLE.to(HALF), INTEGERS, torch.complex(TABLE, TABLE)):
        yield aten.isinf.default, x
    for training in (False, True):
        yield aten.rrelu_with_noise.default, TABLE, torch.zeros_like(TABLE), 0.1, 1, training
        yield aten.rrelu_with_noise_.default, TABLE.clone(), torch.zeros_like(TABLE), 0.1, 0.3, training
    yield aten.pow.Scalar, 2.0, TABLE
    yield aten._foreach_add.Scalar, [TABLE, R(3)], 1.0
    yield aten._foreach_mul_.ScalarList, [TABLE.clone(), R(3)], [1.0, 2.0]
    yield aten._foreach_pow.ScalarAndTensor, 0.9, [torch.tensor(1.0), torch.tensor(2.0)]


def promotions() -> Iterable[Call]:
    """Operators of two operands of different dtypes."""
    floats, integers = (TABLE, TABLE.to(HALF), TABLE.double(), INTEGERS), (INTEGERS, INTEGERS.int(), FLAGS)
    for x in floats:
        for other in floats:
            yield from ((operator.default, x, other) for operator in (aten.fmin, aten.fmax))
            if x.is_floating_point() or other.is_floating_point():
                yield from ((operator.default, x, other) for operator in (aten.hypot, aten.logaddexp, aten.logaddexp2))
            yield aten.clamp_min.Tensor, x, other
            yield aten.clamp.Tensor, x, other, other
    for x in integers:
        for other in integers:
            yield aten.bitwise_and.Tensor, x, other
            yield from ((operator.default, x, other) for operator in (aten.logical_and, aten.logical_xor))
        yield aten.bitwise_or.Scalar, x, 1
        yield from ((aten.clamp.default, x, low) for low in (0, 0.5))
        yield from ((aten.pow.Tensor_Scalar, x, exponent) for exponent in (2, 1.5))
        yield aten.xlogy.Scalar_Other, x, 2
        yield aten.copysign.Scalar, x, 1.5


def mixtures() -> Iterable[Call]:
    """Losses, joined tensors and writes whose operands have different dtypes."""
    kinds = (TABLE, TABLE.to(HALF), TABLE.double())
    for x in kinds:
        for target in kinds:
            for reduction in (0, 1, 2):
                yield aten.mse_loss.default, x, target, reduction
                yield aten.smooth_l1_loss.default, x, target, reduction
                yield aten.huber_loss.default, x, target, reduction
                yield aten.binary_cross_entropy_with_logits.default, x, target, None, None, reduction
            yield aten.dist.default, x, target
            yield aten.cat.default, [x, target, INTEGERS]
            yield aten.addcmul.default, x, target, FLAGS
            yield aten.pow_.Tensor, x.clone(), target
            yield aten.remainder_.Tensor, x.clone(), target
            yield aten.clamp_min_.Tensor, x.clone(), target
        yield aten.where.self, FLAGS, x, FLAGS
    yield aten.bitwise_and_.Scalar, INTEGERS.clone(), 1
    yield aten.bitwise_or_.Tensor, INTEGERS.clone(), FLAGS


def test_mixtures() -> None:
    agree(mixtures())


def test_promotions() -> None:
    agree(promotions())


def test_arithmetic() -> None:
    """What is of another dtype than the computation is cast first; a number is a tensor too."""
    agree(arithmetic())


def floating() -> Iterable[Call]:
    """Functions of integers with a floating-point result."""
    for name in ("asin", "acosh", "tan", "erfinv", "lgamma", "exp2", "angle", "special_i0e", "deg2rad", "logit"):
        for x in (INTEGERS, TABLE, SCALAR):
            yield getattr(aten, name).default, x
    for operator in (aten.xlogy.Tensor, aten.copysign.Tensor, aten.special_chebyshev_polynomial_t.default):
        yield operator, INTEGERS, INTEGERS
        yield operator, TABLE, INTEGERS
    for x in (TABLE + 9, TABLE.to(HALF) + 9, TABLE.double() + 9):
        yield aten.mvlgamma.default, x, 3


def test_functions_of_integers() -> None:
    agree(floating())


def written_at_indices() -> Iterable[Call]:
    order = TABLE.argsort(0)
    for x in (TABLE, TABLE.to(HALF)):
        yield aten.scatter.src, x, 0, order, x
        yield aten.scatter.value, x, 0, order, 1.0
        yield aten.scatter_add.default, x, 1, order[:, :3] % 3, x
        yield aten.gather.default, x, 0, order[:5]
        for reduce in ("sum", "mean", "amax"):
            yield aten.scatter_reduce.two, x, 0, order, x, reduce
        yield aten.renorm.default, x, 2, 1, 0.5
    for x in (TABLE, INTEGERS):
        for dim in (0, 1):
            few = torch.zeros(3, dtype=torch.long)
            yield aten.index_reduce.default, x, dim, few, x[:3] if dim == 0 else x[:, :3], "mean"
    yield aten.index_reduce.default, TABLE, 0, torch.zeros(3, dtype=torch.long), TABLE[:3], "amax"
    for dtype in (torch.float64, torch.bfloat16) if since("2.11") else (torch.float64,):
        for rows in (TABLE, TABLE[:, :2]):
            x = rows.to(dtype)
            yield aten.index_reduce_.default, x.clone(), 0, torch.zeros(3, dtype=torch.long), x[:3], "mean"
    yield aten._chunk_cat.default, [R(5, 3), R(7, 2)], 0, 4
    for length, step in ((9, 4), (5, 8), (4, 9)):
        yield aten.unfold_backward.default, R(30, length, 8), (30, 40), 1, 8, step
    for bins in (10, 100):
        yield aten.histc.default, TABLE, bins, -1, 1
    for rows, columns in ((5, 5), (7, 5), (3, 5)):
        for batch in ((), (2, 3)):
            factors = torch.linalg.lu_factor(R(*batch, rows, columns))
            yield aten.lu_unpack.default, *factors
    for counts in (False, True):
        yield aten.unique_consecutive.default, INTEGERS.flatten().sort()[0], True, counts
    for x in (TABLE, SCALAR, R(3, 1), TABLE.double(), INTEGERS, FLAGS):
        yield aten.allclose.default, x, x, 0.1, 0.01
    for reduction in (0, 1):
        yield aten.multilabel_margin_loss_forward.default, R(6, 5), indices(5, 6, 5), reduction
    yield aten.native_dropout_backward.default, TABLE, FLAGS.expand_as(TABLE), 2.0
    for b in (R(5), R(5, 2)):
        yield aten._linalg_solve_ex.default, R(5, 5), b
    yield aten._linalg_solve_ex.default, R(3, 5, 5), R(3, 5)


def test_writes_at_indices_and_counts() -> None:
    agree(written_at_indices())


def rows_of_half() -> Iterable[Call]:
    """An index for each row, of long and short rows, and what keeps torch from adding whole rows."""
    few = indices(20, 30)
    for width in (15, 16, 48):
        table, rows = R(20, width).to(HALF), R(30, width).to(HALF)
        by_row = few[:, None].expand(30, width)
        for index in (by_row, by_row.contiguous()):
            yield aten.gather.default, table, 0, index
            for x, src in ((table, rows), (table, turned(30, width).to(HALF)), (table.float(), rows.float())):
                yield aten.scatter_add.default, x, 0, index, src
                yield aten.scatter_reduce.two, x, 0, index, src, "mean"
                yield aten.scatter_reduce_.two, x.clone(), 0, index, src, "amax"
        for index, src in ((few, rows), (few.int(), rows), (few, turned(30, width).to(HALF))):
            yield aten.index_add.default, table, 0, index, src
            yield aten.index_add_.default, table.clone(), -2, index, src
        yield aten.index_add.default, rows, 1, indices(width, width), rows
    yield aten.index_add.default, R(5, 6, 7).to(HALF), 1, few[:4] % 6, R(5, 4, 7).to(HALF)
    yield aten.index_add.default, R(9).to(HALF), 0, few[:4] % 9, R(4).to(HALF)
    yield aten.index_add.default, R(9, 20), 0, indices(9, 4, 2)[:, 0], R(4, 20)
    yield aten.scatter_add.default, R(20, 48).to(HALF), -2, few[:, None].expand(30, 48), R(30, 48).to(HALF)


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_rows_of_half_precision(threads: int) -> None:
    agree(rows_of_half())


def searched() -> Iterable[Call]:
    edges = torch.linspace(-1, 1, 9)
    for bounds in (edges, edges.to(HALF), edges.double(), edges[::2]):
        for x in (R(2, 16, 48), R(2, 16, 48).to(HALF), turned(2, 16, 48), turned(2, 16, 48).to(HALF), INTEGERS):
            yield aten.searchsorted.Tensor, bounds, x
            yield aten.bucketize.Tensor, x, bounds
    for number in (0.5, 3):
        yield aten.searchsorted.Scalar, edges, number
        yield aten.bucketize.Scalar, number, edges
    for number in (torch.tensor(3), torch.tensor(0.5, dtype=torch.double)):
        yield aten.searchsorted.Tensor, edges, number


def test_searches() -> None:
    """Both operands are made contiguous and of one dtype."""
    agree(searched())


def losses_in_half() -> Iterable[Call]:
    for shape in ((5, 5, 5), (1,)):
        x, target = (torch.rand(shape).to(HALF) for _ in range(2))
        for operator in (aten.mse_loss, aten.smooth_l1_loss, aten.soft_margin_loss, aten.huber_loss):
            for reduction in (0, 1, 2):
                yield operator.default, x, target, reduction
        for reduction in (0, 1, 2):
            yield aten.binary_cross_entropy.default, x, target, None, reduction
            yield aten.binary_cross_entropy_with_logits.default, x, target, None, None, reduction
        yield aten.mean.default, x
    half, row = R(4, 6, 5).to(HALF), R(6)
    for weight in (row, row.to(HALF), None):
        yield aten.native_batch_norm.default, half, weight, weight, None, None, True, 0.1, 1e-5


@from_release("2.8", "the mean squared error in bfloat16 on the CPU")
def test_losses_and_statistics_in_half_precision() -> None:
    agree(losses_in_half())


def histograms() -> Iterable[Call]:
    x, edges = torch.rand(50, 2), [torch.linspace(0, 1, 11), torch.linspace(0, 1, 21)]
    yield aten._histogramdd_from_bin_tensors.default, x, edges
    yield aten._histogramdd_from_bin_cts.default, x, [10, 20]


def test_histograms_of_points_are_counted_by_each_thread() -> None:
    agree(histograms())
