"""The registry of bytes that a kernel takes and the dispatcher does not see: backend and operator -> rules.

Three kinds. *Scratch* lives while the kernel runs. A *reserve* is a result whose bytes the fake kernel does not know,
kept as long as the result is. A *lasting* workspace is taken by the first call that asks for it and held from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

Formula = Callable[..., Any]
"""``formula(result, *args, **kwargs)``, the operator's own arguments; what it returns is said by each kind below."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A formula with what it rests on, and the largest relative error that was seen when it was measured.

    ``calibrated`` is False for an estimate that no measurement has confirmed: an estimate of memory names the operator.
    A formula that is ``by_capability`` is given the GPU's compute capability before the operator's result, one that is
    ``by_cudnn`` cuDNN after that. ``since`` is the release of torch from which on the rule holds: on an older one the
    operator is named, with an open range.
    """

    formula: Formula
    source: str
    band: float
    calibrated: bool = True
    by_capability: bool = False
    by_cudnn: bool = False
    since: str = ""


class Phase(NamedTuple):
    """A stretch of a kernel: how many tensors of its result are there, and the bytes of scratch beside them.

    A ``band`` above 0 is the relative error of a guess, of a guess of 0 the bytes that it may be off; the operator is
    then named as unknown. Where there is no memory
    for the scratch, the kernel does with the first of the ``lesser`` sizes that there is memory for. What is ``held``
    are further blocks, by name: one of the same name in the next phase is the same, and stays. ``first`` are the places
    of results that come ahead of those before them. After scratch that ``empties`` the allocator's cache is emptied.
    """

    results: int
    nbytes: int
    band: float = 0.0
    lesser: tuple[int, ...] = ()
    held: tuple[tuple[str, int], ...] = ()
    first: tuple[int, ...] = ()
    empties: bool = False


class Made(NamedTuple):
    """A kernel allocates a tensor of its result: the one of this place."""

    result: int


class Taken(NamedTuple):
    """A kernel allocates a buffer, which lives to its end at the latest; buffers count from 0."""

    nbytes: int


class Given(NamedTuple):
    """A kernel frees a buffer."""

    buffer: int


Course = tuple[Made | Taken | Given, ...]
"""A kernel's allocations one by one, after the tensors of its result that it does not name."""

ALL_RESULTS = 1 << 30
"""More tensors than any result has."""


class AtMost(NamedTuple):
    """Scratch of which only an upper bound is known: an estimate names the operator and opens its range that far.

    The bound is of what may come on top of the kernel's ``phases``, as far as these are known.
    """

    nbytes: int
    phases: tuple[Phase, ...] = ()


DOUBT = 8
"""How many times the bytes of its arguments and results an operator without a rule may take, and ``LEAST_DOUBT`` more.

Of the CPU's operators in ``UNMODELLED`` the matrix exponential takes most: 6 times them.
"""

Register = Callable[[Formula], Formula]

SCRATCH: dict[tuple[str, str], Rule] = {}
"""-> the bytes of scratch at the kernel's own peak, beside all of its results; or the kernel's phases, or its course.

A peak is a maximum, which need not grow in a straight line with the batch; a phase does, and the replay of the phases
finds the maximum. :class:`AtMost` where only a bound is known, None where it takes some and not even that.
"""

RESERVES: dict[tuple[str, str], Rule] = {}
"""-> a tuple of bytes, one for each tensor of the result; None for one whose fake size is right."""

LASTING: dict[tuple[str, str], Rule] = {}
"""-> pairs of a name and bytes; a name that was taken before takes nothing more."""

_SPARSE = ("_sparse_coo_tensor_with_dims_and_tensors", "_coalesce", "sparse_mask")
"""Sparse tensors, as gradients of embeddings: how many rows they hold when they are summed up is not modelled."""

UNMODELLED: dict[str, frozenset[str]] = {
    "cpu": frozenset(
        f"aten::{name}"
        for name in (
            *(
                "linalg_matrix_exp",
                "linalg_lstsq",
                "linalg_pinv.atol_rtol_tensor",
                "linalg_eig",
                "_linalg_eigvals",
                "linalg_lu_factor_ex",
            ),
            *("cholesky_solve", "cholesky_inverse", "ormqr", "linalg_householder_product", "_unique", "_unique2"),
            *("_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
            *_SPARSE,
        )
    ),
    "cuda": frozenset(f"aten::{name}" for name in _SPARSE),
}
"""Operators known to take scratch memory for which there is no rule yet: an estimate names them."""


def scratch(backend: str, *operators: str, source: str, band: float, **traits: Any) -> Register:
    """Register the scratch of some operators on one backend; ``traits`` are the other fields of :class:`Rule`."""
    return _register(SCRATCH, backend, operators, source, band, traits)


def reserve(backend: str, *operators: str, source: str, band: float, **traits: Any) -> Register:
    """Register the true sizes of the results of some operators on one backend."""
    return _register(RESERVES, backend, operators, source, band, traits)


def lasting(backend: str, *operators: str, source: str, band: float, **traits: Any) -> Register:
    """Register the lasting workspaces of some operators on one backend."""
    return _register(LASTING, backend, operators, source, band, traits)


def _register(
    table: dict[tuple[str, str], Rule],
    backend: str,
    operators: tuple[str, ...],
    source: str,
    band: float,
    traits: dict[str, Any],
) -> Register:
    def register(formula: Formula) -> Formula:
        for operator in operators:
            if (backend, operator) in table:
                raise ValueError(f"{operator} on {backend} already has a rule")
            table[backend, operator] = Rule(formula, source, band, **traits)
        return formula

    return register
