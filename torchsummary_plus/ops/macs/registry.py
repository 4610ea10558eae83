"""Registry of multiply-add formulas: operator name -> formula, checked on registration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch._ops import OpOverloadPacket

from ...data.arguments import Registered, names_cures
from ...data.errors import InputError
from ...data.units import describe

Formula = Callable[..., Any]
"""``formula(result, *args, **kwargs)`` -> multiply-adds, or None if the shapes do not determine them."""

F = TypeVar("F", bound=Formula)

FORMULAS: dict[str, Formula] = {}
"""By operator name, such as ``aten::mm``; overloads and in-place forms share one formula."""


@names_cures({})
def register_mult_adds(*ops: OpOverloadPacket | str) -> Callable[[F], Registered[F]]:
    """Register the decorated formula, ``(result, *args, **kwargs) -> int | None``, for operators.

    ``ops`` are packets (``torch.ops.mylib.rotate``) or names (``"mylib::rotate"``), which need not exist yet; a
    higher-order operator is named ``"higher_order::flex_attention"``. The formula receives the operator's result and
    its arguments, and reads shapes, never values; one that always returns 0 declares its operators free.

    Raises InputError for any other kind of ``op``, for an operator that already has a formula, and for a formula with a
    wrong signature: it must accept each overload's fewest and most arguments for a packet, a result for a name.

    The formula is returned with a ``remove()`` method; in a ``with`` statement it is removed at the end of the block.
    Formulas of ``torch.utils.flop_counter.register_flop_formula`` are used too: two flops are one multiply-add.

    >>> @register_mult_adds("mylib::rotate")
    ... def rotate(result, points, angles):
    ...     return 4 * points.shape[0]
    >>> register_mult_adds("mylib::rotate")(rotate)
    Traceback (most recent call last):
    torchsummary_plus.data.errors.InputError: mylib::rotate already has a formula
    >>> rotate.remove()
    """

    return lambda formula: registered(FORMULAS, ops, formula)


def registered(table: dict[str, Formula], ops: Sequence[OpOverloadPacket | str], formula: F) -> Registered[F]:
    """Check a formula and add it to a table until it is removed; see :func:`register_mult_adds`."""
    _add(table, ops, formula)
    return Registered(formula, table, map(_name, ops))


def register_formula(words: str) -> Callable[[F], F]:
    """Register a formula for good, as the package's own are, for a list of operators; see :func:`names`."""

    def register(formula: F) -> F:
        _add(FORMULAS, names(words), formula)
        return formula

    return register


def _add(table: dict[str, Formula], ops: Sequence[OpOverloadPacket | str], formula: Formula) -> None:
    """Check a formula and register it for every operator: it must accept each overload's fewest and most arguments."""
    own = [_name(op) for op in ops]
    for op, name in zip(ops, own):
        if name in table or own.count(name) > 1:
            raise InputError(f"{name} already has a formula")
        try:
            signature = inspect.signature(formula)
            signature.bind_partial(None)
            for overload in op.overloads() if isinstance(op, OpOverloadPacket) else ():
                arguments = getattr(op, overload)._schema.arguments
                positional = [argument for argument in arguments if not argument.kwarg_only]
                signature.bind(None, *(argument for argument in positional if not argument.has_default_value()))
                signature.bind(None, *positional, **{a.name: None for a in arguments if a.kwarg_only})
        except TypeError as error:
            raise InputError(f"the formula of {name} must accept (result, *args, **kwargs): {error}") from error
    table.update(dict.fromkeys(own, formula))


def names(words: str) -> list[str]:
    """Split a list of operators, each after its namespace, into full names.

    >>> names("aten:: mm bmm quantized:: matmul")
    ['aten::mm', 'aten::bmm', 'quantized::matmul']
    """
    full: list[str] = []
    namespace = ""
    for word in words.split():
        if word.endswith("::"):
            namespace = word
        else:
            full.append(namespace + word)
    return full


def base_name(name: str) -> str:
    """Return an operator's name without the suffix of its in-place form.

    >>> base_name("aten::addmm_"), base_name("aten::__and__")
    ('aten::addmm', 'aten::__and__')
    """
    return name if name.endswith("__") else name.removesuffix("_")


def _name(op: OpOverloadPacket | str) -> str:
    name = op._qualified_op_name if isinstance(op, OpOverloadPacket) else op
    if not isinstance(name, str) or "." in name or name.count("::") != 1:
        raise InputError(f"operator is {describe(op)}; accepted: a packet (torch.ops.aten.mm) or its name ('aten::mm')")
    return base_name(name)
