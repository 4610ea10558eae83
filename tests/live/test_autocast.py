"""Which operators' kernels call operators that autocast casts."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from torchsummary_plus.live import compat

COMPOSITES = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
ARGUMENTS: dict[str, Any] = {
    "Tensor": lambda: torch.eye(4),
    "int": lambda: 1,
    "float": lambda: 0.5,
    "bool": lambda: True,
    "Scalar": lambda: 2.0,
    "List[int]": lambda: [1],
    "List[Tensor]": lambda: [torch.eye(4), torch.eye(4)],
}
OWN_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "aten::_trilinear": (*(torch.ones(1, 4, 4, 4) for _ in range(3)), [], [], [], [3])
}

NOT_ON_FAKES = "aten::_sparse_addmm", "aten::view_as_complex_copy"
"""Operators of sparse tensors and of torch's functionalisation, which no step on fakes calls."""


def operators() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield torch's functional operators with a composite kernel below autograd, with small arguments."""
    for name in sorted({name for key in COMPOSITES for name in compat.composite_registrations(key)}):
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space != "aten" or overload.endswith("out") or name in NOT_ON_FAKES:
            continue
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        schema = operator._schema
        kinds = [str(argument.type) for argument in schema.arguments if not argument.has_default_value()]
        if schema.is_mutable or torch.Tag.nondeterministic_seeded in operator.tags or "Tensor" not in kinds:
            continue
        if name in OWN_ARGUMENTS:
            yield operator, OWN_ARGUMENTS[name]
        elif set(kinds) <= ARGUMENTS.keys():
            yield operator, tuple(ARGUMENTS[kind]() for kind in kinds)


class Listening(compat.DispatchMode):
    """Records whether an operator with an autocast kernel was called."""

    def __init__(self, key: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.key = key
        self.heard: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard |= compat.has_kernel(func.name(), self.key)
        return func(*args, **(kwargs or {}))


def test_only_in_known_operators_kernels_are_operators_cast() -> None:
    for operator, args in operators():
        name = operator.name()
        composite = next(getattr(torch.DispatchKey, key) for key in COMPOSITES if compat.has_kernel(name, key))
        on_meta = [arg.to("meta") if isinstance(arg, torch.Tensor) else arg for arg in args]
        for device in ("CPU", "CUDA"):
            if not any(compat.has_kernel(name, key) for key in ("CPU", "CUDA", f"Autocast{device}")):
                with suppress(RuntimeError, TypeError, ValueError, IndexError), Listening(f"Autocast{device}") as mode:
                    operator._op_dk(composite, *on_meta)
                assert mode.heard == (compat.kernel_within(operator, False, device.lower()) is not None), name
