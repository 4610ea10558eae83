"""Operators that write in place or to tensors given as ``out``, and the functions whose kernels they run."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ...live import compat

_COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""Keys of kernels that call other operators. A CPU build of torch has no kernel at all for an operator of CUDA's."""


class Variant(NamedTuple):
    """The function that an operator computes, and the names of the arguments that it writes to besides the first."""

    function: str
    outs: frozenset[str] = frozenset()
    copies: bool = False
    """Whether it may compute a result of its own and copy that, because it calls other operators."""


@cache
def variant_of(name: str) -> Variant:
    """Return what an operator is a variant of: itself if it is a function or no function matches.

    >>> variant_of("aten::cumsum_").function, variant_of("aten::mm.out").function, variant_of("aten::mm").function
    ('aten::cumsum', 'aten::mm', 'aten::mm')
    """
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    operators: Any = getattr(torch.ops, namespace)
    operator = getattr(getattr(operators, packet, None), overload or "default", None)
    if namespace != "aten" or not isinstance(operator, OpOverload) or not operator._schema.is_mutable:
        return Variant(name)
    outs = frozenset(argument.name for argument in operator._schema.arguments if argument.is_out)
    functions = getattr(operators, packet if outs else packet.removesuffix("_"), None)
    for other in functions.overloads() if functions is not None else ():
        function = getattr(functions, other)
        if not function._schema.is_mutable and _arguments(function) == _arguments(operator):
            is_own = any(compat.has_kernel(name, device) for device in ("CPU", "CUDA"))
            calls_others = any(compat.has_kernel(name, key) for key in _COMPOSITE)
            return Variant(function.name(), outs, copies=bool(outs) and calls_others and not is_own)
    return Variant(name)


def _arguments(operator: OpOverload) -> list[tuple[str, str]]:
    """Return the names and types of the arguments that a function needs."""
    return [(argument.name, str(argument.type)) for argument in operator._schema.arguments if not argument.is_out]
