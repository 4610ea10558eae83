"""Matrix products in half precision: their scratch memory against torch's profiler, on each instruction set."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from kernel_truth import Call, aten, described, measured, tensors
from torch import Tensor

from torchsummary_plus.tracing.workspace import Workspaces

SIZES = (1, 2, 3, 8, 17, 24, 32, 33, 50, 64, 65, 100, 128, 200, 256, 300, 513, 600, 1024)
HALVES = (torch.bfloat16, torch.float16)


def matrix(rows: int, columns: int, dtype: torch.dtype, layout: str, batch: tuple[int, ...] = ()) -> Tensor:
    """A matrix of zeros by rows, by columns, or of every other column of a wider one."""
    if layout == "columns":
        return torch.zeros(*batch, columns, rows, dtype=dtype).transpose(-1, -2)
    if layout == "spaced":
        return torch.zeros(*batch, rows, 2 * columns, dtype=dtype)[..., ::2]
    return torch.zeros(*batch, rows, columns, dtype=dtype)


def products(count: int, seed: int) -> Iterator[Call]:
    """Products of many shapes and layouts, small ones among them."""
    draw = random.Random(seed)
    while count:
        m, k, n = (draw.choice(SIZES) for _ in range(3))
        batch = draw.choice(((), (), (1,), (3,), (8,)))
        if m * k * n > 4e7:
            continue
        dtype = HALVES[count % 2]
        a, b = (
            matrix(*shape, dtype, draw.choice(("rows", "rows", "columns", "columns", "spaced")), batch)
            for shape in ((m, k), (k, n))
        )
        bias = torch.zeros(*batch, m, n, dtype=dtype)
        plain, added = (aten.bmm, aten.baddbmm) if batch else (aten.mm, aten.addmm)
        yield (plain.default, a, b) if draw.random() < 0.6 else (added.default, bias, a, b)
        count -= 1


def vectors() -> Iterator[Call]:
    for dtype in HALVES:
        for rows, columns in ((64, 100), (200, 513), (30, 40)):
            for layout in ("rows", "columns", "spaced"):
                yield aten.mv.default, matrix(rows, columns, dtype, layout), torch.zeros(columns, dtype=dtype)
        yield aten.mm.default, matrix(1, 512, dtype, "rows"), matrix(512, 128, dtype, "columns")
        for layout in ("rows", "columns"):
            yield aten.mm.default, matrix(512, 128, dtype, "rows"), matrix(128, 1, dtype, layout)


def disagreeing(calls: list[Call]) -> list[str]:
    """The calls that hold other than their rules say; where these know a bound alone, more than that."""
    wrong = []
    for call, (peak, out) in zip(calls, measured([partial(*call) for call in calls])):
        operator, *args = call
        books = Workspaces("cpu")
        (phase,) = books.scratch(operator.name(), tuple(args), {}, out)
        said = sum(tensor.numel() * tensor.element_size() for tensor in tensors(out)) + phase.nbytes
        if not said <= peak <= said + books.take_doubt():
            wrong.append(f"{operator.name()}{described(args)}: {said:,} instead of {peak:,}")
    return wrong


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("threads", [1, 2, 5], indirect=True)
def test_products_in_half_precision() -> None:
    calls = [*products(60, torch.get_num_threads()), *vectors()]
    wrong = disagreeing(calls)
    assert not wrong, "\n".join(wrong)
