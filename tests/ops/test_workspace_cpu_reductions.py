"""Scratch memory of reductions on the CPU, against torch's profiler, with one and with several threads."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from tests.ops.test_workspace_cpu import HALF, R, indices
from tests.truth.kernel_truth import Call, agree, aten
from tests.truth.memory_truth import threads_set_to
from torchsummary_plus.api.memory import estimate_memory, measure_memory

MANY, FEW = (640, 64), (12, 10)
"""Sizes that torch splits among threads, and that it does not."""

OF_ALL = (aten.sum, aten.mean, aten.prod, aten.nansum, aten.all, aten.any, aten.var, aten.std, aten.count_nonzero)
OF_AXES = (aten.sum.dim_IntList, aten.mean.dim, aten.amax, aten.amin, aten.logsumexp, aten.count_nonzero.dim_IntList)
OF_AXIS = (aten.all.dim, aten.any.dim, aten.prod.dim_int)


def reductions(x: Tensor) -> Iterable[Call]:
    floating = x.dtype.is_floating_point
    needs_floats = {aten.mean, aten.var, aten.std, aten.mean.dim}
    for operator in OF_ALL:
        if floating or operator not in needs_floats:
            yield operator.default, x
    for operator in OF_AXES:
        if floating or operator not in needs_floats:
            overload = operator if isinstance(operator, torch._ops.OpOverload) else operator.default
            yield from ((overload, x, axes) for axes in ([0], [1], [0, 1]))
    yield from ((operator, x, axis) for operator in OF_AXIS for axis in (0, 1))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [MANY, FEW], ids=["many", "few"])
def test_reductions(shape: tuple[int, int], threads: int) -> None:
    """Another dtype's input is cast first; threads that share the elements of one result have a partial one each."""
    with threads_set_to(threads):
        for x in (R(*shape), R(*shape).double(), R(*shape).to(HALF), indices(5, *shape), R(*shape) > 0):
            agree(reductions(x))


def test_distinct_values() -> None:
    """They are sorted, with their positions; booleans are only counted. A permutation's largest is checked."""
    x = indices(5, 64, 70)
    tables = (x, x.t(), x[:, ::2], x.float(), x > 2)
    agree((aten._unique2.default, t, True, inverse, counts) for t in tables for inverse in (0, 1) for counts in (0, 1))
    agree((aten._unique.default, t) for t in tables)
    agree([(aten.randperm.default, 100)])


class Mask(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            x.all(),
            x.unique(),
            x.count_nonzero(0),
            x.median(0)[0],
            torch.arange(3).repeat_interleave(torch.tensor([1, 2, 1])),
        )


def test_what_a_model_reduces_without_a_gradient() -> None:
    x = torch.rand(640, 64)
    measured = measure_memory(Mask(), input_data=x, mode="eval")
    assert estimate_memory(Mask(), input_data=x, mode="eval").peak_bytes == measured.peak_bytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inner_products_in_half_precision_are_tried(dtype: torch.dtype) -> None:
    """oneDNN's matrix product, with buffers that may be larger than the vectors."""

    class Inner(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.dot(x)

    x = torch.rand(9000).to(dtype)
    measured = measure_memory(Inner(), input_data=x, mode="eval")
    assert estimate_memory(Inner(), input_data=x, mode="eval").peak_bytes == measured.peak_bytes
