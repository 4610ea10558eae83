"""Which operators' kernels autocast reaches inside, against what they allocate under it."""

from collections.abc import Iterator
from random import Random
from typing import Any

import torch

from torchsummary_plus.live import compat
from torchsummary_plus.live.autocast import kernel_cast_within
from torchsummary_plus.watch.profiled import QuietProfile, changes

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

REACHED = {"aten::_trilinear", "aten::_euclidean_dist", "aten::linalg_pinv.atol_rtol_tensor"}


def operators() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield torch's functional operators with a composite kernel below autograd, with small arguments."""
    for name in sorted({name for key in COMPOSITES for name in compat.composite_registrations(key)}):
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space != "aten" or overload.endswith("out"):
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


def allocated(operator: Any, args: tuple[Any, ...], autocast: bool) -> list[int] | None:
    """Return what an operator allocates in its second call, or None if it does not take the arguments."""
    with torch.autocast("cpu", enabled=autocast, cache_enabled=False), torch.no_grad():
        try:
            operator(*args)
            with QuietProfile() as done:
                operator(*args)
        except Exception:
            return None
    return [change.nbytes for change in changes(done, "cpu")]


def test_autocast_reaches_the_inside_of_every_kernel_that_allocates_otherwise_under_it() -> None:
    called, otherwise = set(), set()
    every = list(operators())
    known = [call for call in every if call[0].name() in REACHED]
    for operator, args in (*known, *Random(0).sample(every, 80)):
        plain = allocated(operator, args, autocast=False)
        if plain is None or compat.has_kernel(operator.name(), "AutocastCPU"):
            continue
        called.add(operator.name())
        if allocated(operator, args, autocast=True) != plain:
            otherwise.add(operator.name())
            assert kernel_cast_within(operator, "cpu", args) is not None, operator.name()
    assert otherwise >= REACHED
    assert len(called) > 30


def test_operators_whose_kernels_call_no_cast_operator_are_left_whole() -> None:
    x = torch.ones(4, 4)
    for device in ("cpu", "cuda"):
        for operator in (torch.ops.aten.index_put.default, torch.ops.aten.mul.Scalar, torch.ops.aten.rot90.default):
            assert kernel_cast_within(operator, device, (x, 2.0)) is None
