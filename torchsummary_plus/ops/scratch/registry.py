"""Registry of kernel memory that the dispatcher does not see: backend and operator -> rules.

It lives while the kernel runs, except for the workspaces that a library's handle keeps, and for results whose size the
fake kernel does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from torch._ops import OpOverload, OpOverloadPacket

from ...data.arguments import Registered, names_cures
from ...data.errors import InputError, choice_error
from ...data.units import describe

Formula = Callable[..., Any]
"""``formula(result, *args, **kwargs)`` with the operator's arguments; each registry below says what it returns."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A formula, and the largest relative error observed when it was measured.

    A formula whose first parameter is called ``chip`` receives the GPU's before the result, and cuDNN if the second is
    called ``cudnn``. ``since`` is the first torch release that the rule holds for; on older ones the operator is named
    and its range left open.
    """

    formula: Formula
    band: float = 0.0
    since: str = ""
    takes: tuple[str, ...] = ()
    """Which of "chip" and "cudnn" the formula receives before the result."""


class Result(NamedTuple):
    """The kernel allocates the result tensor at this position.

    ``nbytes`` are given if they were measured, or are not those of the fake, within a relative error ``band``.
    """

    result: int
    nbytes: int | None = None
    band: float = 0.0


class Alloc(NamedTuple):
    """The kernel allocates a buffer; buffers count from 0. It lives at most until the kernel ends.

    A ``band`` above 0 is a guess's relative error (for a guess of 0, its error in bytes); the operator is then named as
    unknown. If there is no memory, the kernel runs with the first of the ``lesser`` sizes that fits. A buffer that
    ``empties`` is the last before the allocator's cache is emptied.
    """

    nbytes: int
    band: float = 0.0
    lesser: tuple[int, ...] = ()
    empties: bool = False


GUESS = 0.5
"""The band of a buffer that no measurement has confirmed."""


class Free(NamedTuple):
    """The kernel frees a buffer."""

    buffer: int


class Handle(NamedTuple):
    """The kernel takes a library's handle, whose workspace its first call in a thread and stream allocates for good."""

    name: str
    nbytes: int


Step = Result | Alloc | Free | Handle

Timeline = tuple[Step, ...]
"""A kernel's allocations one by one; results it does not name are allocated first."""


class AtMost(NamedTuple):
    """Scratch with only an upper bound: an estimate names the operator and widens its range accordingly.

    The bound comes on top of the kernel's known ``timeline``; None is that of an operator without a rule. An operator
    that ``multiplies`` may also be the first to take cuBLAS's workspace.
    """

    nbytes: int | None
    timeline: Timeline = ()
    multiplies: bool = False


UNKNOWN = AtMost(None)
"""Scratch without a bound of its own."""


def most_bytes(timeline: Timeline) -> int:
    """Return the most scratch bytes that a kernel holds at once; they are freed before a doubt is recorded."""
    live: list[int] = []
    most = 0
    for step in timeline:
        if isinstance(step, Alloc):
            live.append(step.nbytes)
            most = max(most, sum(live))
        elif isinstance(step, Free):
            live[step.buffer] = 0
    return most


DOUBT = 8
"""Bound for an operator without a rule: this multiple of its arguments' and results' bytes, plus ``LEAST_DOUBT``."""

F = TypeVar("F", bound=Formula)

Register = Callable[[Formula], Formula]

OLDEST = "2.6"
"""The oldest supported release of torch."""

SCRATCH: dict[tuple[str, str], Rule] = {}
"""-> the kernel's timeline, or :class:`AtMost` if only a bound is known.

A peak is a maximum and need not grow linearly with the batch; a timeline's steps do, and the replay finds the maximum.
"""

OF_ROWS = frozenset(
    f"aten::{name}" for name in ("_sparse_coo_tensor_with_dims_and_tensors", "_coalesce", "sparse_mask")
)
"""Operators on sparse tensors, such as embedding gradients: the number of rows after coalescing is not modelled."""

UNMODELLED: dict[str, frozenset[str]] = {
    "cpu": OF_ROWS | {"aten::linalg_matrix_exp", "aten::masked_scatter_backward", "aten::nonzero_static"},
    "cuda": OF_ROWS,
}
"""Operators known to use scratch memory but without a rule, or on the CPU as their values say: they are named."""


@names_cures({})
def register_scratch(
    device: str, *ops: OpOverload | OpOverloadPacket | str, source: str, band: float = 0.0
) -> Callable[[F], Registered[F]]:
    """Register the decorated rule, ``(result, *args, **kwargs) -> bytes | None``, for operators' scratch memory.

    It returns the bytes at the kernel's own peak, freed on return, or None if there are some but their number is
    unknown. ``device`` is "cpu" or "cuda". ``ops`` are packets (all their overloads), overloads, or names:
    "mylib::rotate" for the unnamed overload, else "mylib::rotate.out". ``source`` says where the figure comes from;
    ``band`` is its largest relative error, by which ``peak_range`` is widened. The returned rule has a ``remove()``
    method and is removed at the end of a ``with`` block.

    Raises InputError for any other device, for a value that is no operator, and for one that already has a rule.

    >>> @register_scratch("cuda", "mylib::rotate", source="rotate.cu: a copy of the points")
    ... def rotate(result, points, angles):
    ...     return points.numel() * points.element_size()
    >>> register_scratch("cuda", "mylib::rotate", source="rotate.cu")(rotate)
    Traceback (most recent call last):
    torchsummary_plus.data.errors.InputError: mylib::rotate already has a scratch rule on cuda
    >>> rotate.remove()
    """
    if device not in ("cpu", "cuda"):
        raise choice_error("device", device, ["cpu", "cuda"])
    import_module("..cuda", __name__)  # Registers CUDA's own rules, to detect duplicates.
    names = [name for op in ops for name in _names(op)]

    def register(formula: F) -> Registered[F]:
        if not callable(formula):
            raise InputError(f"the rule of {names[0]} is {describe(formula)}; accepted: a function")
        for name in names:
            if (device, name) in SCRATCH or names.count(name) > 1:
                raise InputError(f"{name} already has a scratch rule on {device}")

        def timeline(*call: Any, **named: Any) -> Timeline | AtMost:
            nbytes = formula(*call, **named)
            return UNKNOWN if nbytes is None else (Alloc(max(0, nbytes)),)

        keys = [(device, name) for name in names]
        SCRATCH.update(dict.fromkeys(keys, Rule(timeline, band, since=OLDEST)))
        return Registered(formula, SCRATCH, keys)

    return register


def _names(op: OpOverload | OpOverloadPacket | str) -> list[str]:
    """Return the dispatcher's names of an operator. Raises :class:`InputError`."""
    if isinstance(op, OpOverloadPacket):
        return [getattr(op, overload).name() for overload in op.overloads()]
    name = op.name() if isinstance(op, OpOverload) else op
    if not isinstance(name, str) or name.count("::") != 1:
        raise InputError(
            f"operator is {describe(op)}; accepted: a packet (torch.ops.mylib.rotate), one of its overloads, or a name "
            "('mylib::rotate')"
        )
    return [name]


def scratch(backend: str, *operators: str, band: float = 0.0, since: str = "") -> Register:
    """Register a rule for operators on one backend."""

    def register(formula: Formula) -> Formula:
        names: tuple[str, ...] = getattr(getattr(formula, "__code__", None), "co_varnames", ())
        takes = tuple(name for name, asked in zip(names, ("chip", "cudnn")) if name == asked)
        for operator in operators:
            if (backend, operator) in SCRATCH:
                raise ValueError(f"{operator} on {backend} already has a rule")
            SCRATCH[backend, operator] = Rule(formula, band, since, takes)
        return formula

    return register
