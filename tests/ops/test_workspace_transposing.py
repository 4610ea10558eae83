"""The buffer through which the CPU copies a large turned matrix inside other operators, against torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.truth.kernel_truth import Call, agree, aten, measured, predicted
from torchsummary_plus.live.versions import since

pytestmark = pytest.mark.usefixtures("threads")

R = torch.rand


def turned(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT


def sliced(tensor: Tensor) -> Tensor:
    return tensor.repeat_interleave(2, -1)[..., ::2]


LAYOUTS = {"turned": turned, "sliced": sliced, "contiguous": torch.Tensor.contiguous}


def written(x: Tensor, index: Tensor) -> Iterable[Call]:
    rows, source = torch.arange(len(x)), R(x.shape)
    yield aten.index_copy.default, x, 0, rows, source
    yield aten.index_add.default, x, 0, rows, source
    yield aten.index_reduce.default, x, 0, rows, source, "amax"
    yield aten.index_select.default, x, 1, torch.arange(x.shape[1])
    yield aten.masked_fill.Scalar, x, index > 5, 1.0
    yield aten.masked_scatter.default, x, index > 5, source
    yield aten.scatter.src, x, 0, index, source
    yield aten.scatter.value, x, 0, index, 1.0
    yield aten.scatter_add.default, x, 0, index, source
    yield aten.scatter_reduce.two, x, 0, index, source, "sum"


def copied(x: Tensor, index: Tensor) -> Iterable[Call]:
    yield aten.clone.default, x
    yield aten.roll.default, x, [3]
    yield aten.argmax.default, x
    yield aten.max.default, x
    yield aten.log_sigmoid_forward.default, x
    yield aten.embedding.default, R(100, 4), index
    for grad in (R(*index.shape, 4), R(4, *index.shape).permute(1, 2, 0)):
        yield aten.embedding_dense_backward.default, grad, index, 100, -1, False
    yield aten._log_softmax.default, x, 1, False
    yield aten.multi_margin_loss.default, x, index[:, 0] % x.shape[1], 1, 1.0, None, 1
    for chunks in (2, 3, 7) if since("2.8") or x.is_contiguous() else ():  # Before then it refused other layouts.
        yield aten._chunk_cat.default, [x, x[:5]], 0, chunks


def viewed(x: Tensor, index: Tensor) -> Iterable[Call]:
    yield aten.t_copy.default, x
    yield aten.transpose_copy.int, x, 0, 1
    yield aten.permute_copy.default, x, [1, 0]
    yield aten.squeeze_copy.default, x[None]
    yield aten.select_copy.int, torch.stack((x, x)), 0, 1
    yield aten.slice_copy.Tensor, x, 0, 2
    yield aten.alias_copy.default, x
    yield aten.unbind_copy.int, torch.stack((x, x)).permute(0, 2, 1), 0
    yield aten.split_copy.Tensor, x, 35, 1


def factored(x: Tensor, index: Tensor) -> Iterable[Call]:
    if x.shape[0] != x.shape[1]:
        yield aten.linalg_lu.default, x
        yield aten._linalg_svd.default, x, False, True
        return
    definite = x + 100 * torch.eye(len(x))
    pivots = torch.arange(1, len(x) + 1, dtype=torch.int32)
    for batch in ((), (4, 3)):
        yield aten.linalg_lu_solve.default, x, pivots, R(*batch, len(x), 2)
        yield aten.linalg_lu_solve.default, x, sliced(pivots), R(*batch, len(x), 2)
    yield aten.linalg_lu.default, definite
    yield aten._linalg_svd.default, x, False, True
    for vectors in (True, False):
        yield aten._linalg_eigh.default, definite, "L", vectors


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(70, 70), (90, 60), (60, 90), (7, 5)])
@pytest.mark.parametrize("calls", [written, copied, viewed, factored])
def test_a_turned_matrix_is_copied_in_blocks(
    calls: Callable[[Tensor, Tensor], Iterable[Call]], shape: tuple[int, int], layout: str, threads: None
) -> None:
    lay = LAYOUTS[layout]
    index = lay(torch.arange(shape[0] * shape[1]).remainder(shape[0]).view(shape))
    agree(calls(lay(R(shape)), index))


def test_probabilities_are_checked_in_a_contiguous_copy(threads: None) -> None:
    agree((aten.multinomial.default, lay(R(90, 60)), 3) for lay in LAYOUTS.values())


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_triangles_that_are_repeated_or_lie_apart_are_copied(layout: str, left: bool, threads: None) -> None:
    """A triangle for each solution, whose rows or columns are contiguous (``linalg_solve_triangular_out``)."""
    solve, options = aten.linalg_solve_triangular.default, {"upper": True, "left": left}
    for of_triangles, batch in ((), ()), ((), (3,)), ((3,), ()), ((1,), (3,)), ((3,), (3,)):
        b = R(*batch, 5, 2) if left else R(*batch, 2, 5)
        args = LAYOUTS[layout](R(*of_triangles, 5, 5)), b
        ((peak, out),) = measured([partial(solve, *args, **options)])
        assert predicted(solve, args, out, options) == peak, (of_triangles, batch)
