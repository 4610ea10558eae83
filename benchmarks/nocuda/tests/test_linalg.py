"""Linear algebra that takes cuBLAS's workspace: the rules agree with torch, also where a library refuses the call."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.nocuda.tests.single_calls import allocated_by_rule, changes
from tests.truth.releases import from_release
from torchsummary_plus.ops.scratch.cuda import blas
from torchsummary_plus.step.workspace import Workspaces

aten = torch.ops.aten
ROWS = (1, 3, 8, 9, 16, 17, 32, 33, 64, 65, 100, 128, 129, 256, 257, 300)
COLUMNS = (0, 1, 2, 3, 8, 9, 16, 64, 65, 300)
BATCHES = ((), (), (1,), (2,), (3,), (8,), (4, 5), (33,))
Case = tuple[Any, tuple[Any, ...]]


def factors(batch: tuple[int, ...], rows: int, columns: int) -> Case:
    pivots = torch.ones(*batch, rows, dtype=torch.int32)
    return aten.linalg_lu_solve.default, (torch.ones(*batch, rows, rows), pivots, torch.ones(*batch, rows, columns))


KINDS: dict[str, Callable[[tuple[int, ...], int, int], Case]] = {
    "linalg_lu_solve": factors,
    "triangular": lambda batch, rows, columns: (
        aten.triangular_solve.default,
        (torch.ones(*batch, rows, columns), torch.ones(*batch, rows, rows)),
    ),
    "cholesky_solve": lambda batch, rows, columns: (
        aten.cholesky_solve.default,
        (torch.ones(*batch, rows, columns), torch.ones(*batch, rows, rows)),
    ),
    "cholesky_inverse": lambda batch, rows, _: (aten.cholesky_inverse.default, (torch.ones(*batch, rows, rows),)),
    "linalg_lu_factor_ex": lambda batch, rows, _: (aten.linalg_lu_factor_ex.default, (torch.ones(*batch, rows, rows),)),
    "_linalg_slogdet": lambda batch, rows, _: (aten._linalg_slogdet.default, (torch.ones(*batch, rows, rows),)),
    "linalg_qr": lambda batch, rows, columns: (aten.linalg_qr.default, (torch.ones(*batch, rows, max(1, columns)),)),
}
"""Operators and arguments by kind, given a batch and numbers of rows and columns."""


def takes_workspace(operator: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call allocates a workspace of cuBLAS, if it is the first one."""
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    placed = [arg.cuda() if isinstance(arg, Tensor) else arg for arg in args]

    def attempt() -> None:
        with suppress(RuntimeError):  # The no-op runtime refuses what cuBLAS and cuSOLVER would have to compute.
            operator(*placed)

    return blas.workspace_bytes(torch.cuda.get_device_capability()) in changes(attempt)


@pytest.mark.parametrize("kind", KINDS)
def test_the_operators_that_take_a_workspace_are_known(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "are_workspaces_kept", lambda: True)  # Else no rule says which call is the first one.
    rng = random.Random(kind)
    capability = torch.cuda.get_device_capability()
    answers = set()
    for _ in range(30):
        operator, args = KINDS[kind](rng.choice(BATCHES), rng.choice(ROWS), rng.choice(COLUMNS))
        fakes = [arg.to("meta") if isinstance(arg, Tensor) else arg for arg in args]
        blocks = Workspaces("cuda", capability).lasting(operator.name(), tuple(fakes), {}, operator(*fakes))
        answers.add(bool(blocks))
        assert bool(blocks) == takes_workspace(operator, args), (operator, [arg.shape for arg in args])
    assert answers == ({True} if kind == "triangular" else {True, False})


def test_a_solve_with_factors_allocates_what_its_rule_says() -> None:
    """Wherever it consists of triangular solves; the no-op runtime refuses cuSOLVER's and cuBLAS's own."""
    rng = random.Random("solve")
    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    solved = 0
    for _ in range(60):
        _, (matrix, pivots, columns) = factors(rng.choice(BATCHES), rng.choice(ROWS), rng.choice(COLUMNS[1:]))
        how = {"left": rng.random() < 0.6, "adjoint": rng.random() < 0.5}
        sides = columns if how["left"] else columns.mT.contiguous()
        call = partial(torch.linalg.lu_solve, *(tensor.cuda() for tensor in (matrix, pivots, sides)), **how)
        with suppress(RuntimeError):
            truth = [size for size in changes(call) if size > 0]
            fakes = tuple(tensor.to("meta") for tensor in (matrix, pivots, sides))
            assert truth == allocated_by_rule(aten.linalg_lu_solve.default, fakes, how), (
                matrix.shape, sides.shape, how,
            )  # fmt: skip
            solved += 1
    assert solved > 15


TWICE = from_release("2.13", "a solve by two triangular ones")


@pytest.mark.parametrize(
    "kind", ["triangular", *(pytest.param(name, marks=TWICE) for name in ("cholesky_solve", "cholesky_inverse"))]
)
def test_triangular_solves_allocate_what_their_rules_say(kind: str) -> None:
    """Also of empty batches, of no rows and without right-hand sides; single matrices are often cuSOLVER's."""
    rng = random.Random(kind)
    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    solved = 0
    for _ in range(60):
        operator, args = KINDS[kind](rng.choice((*BATCHES, (0,))), rng.choice((0, *ROWS)), rng.choice(COLUMNS))
        call = partial(operator, *(tensor.cuda() for tensor in args))
        with suppress(RuntimeError):
            truth = [size for size in changes(call) if size > 0]
            assert truth == allocated_by_rule(operator, tuple(tensor.to("meta") for tensor in args), {}), args
            solved += 1
    assert solved > 15


def solve(batch: tuple[int, ...], rows: int, columns: int) -> Case:
    return aten._linalg_solve_ex.default, (torch.ones(*batch, rows, rows), torch.ones(*batch, rows, columns))


BY_BLOCKS = {
    **{kind: KINDS[kind] for kind in ("linalg_lu_factor_ex", "_linalg_slogdet")},
    "_linalg_det": lambda batch, rows, _: (aten._linalg_det.default, (torch.ones(*batch, rows, rows),)),
    "linalg_lu": lambda batch, rows, _: (aten.linalg_lu.default, (torch.ones(*batch, rows, rows),)),
    "linalg_inv_ex": lambda batch, rows, _: (aten.linalg_inv_ex.default, (torch.ones(*batch, rows, rows),)),
    "_linalg_solve_ex": solve,
}


@from_release("2.15", "factorization block by block")
@pytest.mark.parametrize("kind", BY_BLOCKS)
def test_a_factorization_by_blocks_allocates_what_its_rule_says(kind: str) -> None:
    """Whose products take the same workspace, one after another."""
    for batch, rows, columns in (((4,), 256, 1), ((5,), 257, 257), ((2, 3), 300, 2), ((33,), 260, 9)):
        operator, args = BY_BLOCKS[kind](batch, rows, columns)
        sizes = changes(partial(operator, *(tensor.cuda() for tensor in args)))
        ruled = allocated_by_rule(operator, tuple(tensor.to("meta") for tensor in args), {})
        assert without_repeats(sizes) == without_repeats(ruled), (batch, rows, columns)


def without_repeats(sizes: list[int]) -> list[int]:
    """Return the bytes allocated, once for equal ones in a row."""
    return [size for size, _ in groupby(size for size in sizes if size > 0)]
