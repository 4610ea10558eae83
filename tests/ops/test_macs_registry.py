"""The registry of formulas: each fits its operator, users add theirs, and mistakes are refused when they are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.counting import count, rand, unknown
from torchsummary_plus.data.errors import InputError
from torchsummary_plus.ops.macs import register_formula
from torchsummary_plus.ops.macs import registry as macs_registry


@torch.library.custom_op("macs_test::thrice", mutates_args=())
def thrice(x: Tensor) -> Tensor:
    return 3 * x


def packets() -> Iterator[tuple[str, Any]]:
    """The formulas whose operator this torch has."""
    for name in macs_registry.FORMULAS:
        space, _, word = name.partition("::")
        packet = getattr(getattr(torch.ops, space), word, None)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            yield name, packet


def test_every_formula_can_be_called_as_its_operator_is() -> None:
    found = dict(packets())
    assert len(found) > 100
    for name, packet in found.items():
        macs_registry._check_signature(macs_registry.FORMULAS[name], packet, name)


@pytest.fixture
def forget() -> Iterator[None]:
    before = dict(macs_registry.FORMULAS)
    yield
    macs_registry.FORMULAS.clear()
    macs_registry.FORMULAS.update(before)


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("op", ["macs_test::thrice", torch.ops.macs_test.thrice], ids=["name", "packet"])
def test_a_formula_makes_an_operator_known(op: Any) -> None:
    run = lambda: thrice(rand(3))  # noqa: E731
    assert unknown(run) == {"macs_test.thrice.default"}
    register_formula(op)(lambda result, x: x.numel())
    assert count(run) == 3


@pytest.mark.usefixtures("forget")
def test_a_formula_may_say_that_it_does_not_know() -> None:
    register_formula("macs_test::thrice")(lambda result, x: None)
    assert unknown(lambda: thrice(rand(3))) == {"macs_test.thrice.default"}


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(
    "ops",
    [
        ("aten::mm",),
        (torch.ops.aten.mm,),
        ("aten::addmm_",),
        ("macs_test::thrice", torch.ops.macs_test.thrice),
    ],
    ids=["a name", "a packet", "an in-place form", "twice at once"],
)
def test_duplicates_are_refused(ops: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="already has a formula"):
        register_formula(*ops)(lambda result, *args, **kwargs: 0)


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("op", ["mm", "aten.mm", "aten::mm.default", torch.ops.aten.mm.default, 3], ids=str)
def test_other_names_are_refused(op: Any) -> None:
    with pytest.raises(InputError, match="accepted"):
        register_formula(op)(lambda result, *args, **kwargs: 0)


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(
    ("op", "formula"),
    [
        ("macs_test::thrice", lambda: 0),
        (torch.ops.macs_test.thrice, lambda x: 0),
        (torch.ops.macs_test.thrice, lambda result, x, y: 0),
        (torch.ops.aten.renorm, lambda result, x, p, dim, maxnorm: 0),
    ],
    ids=["no result", "no room for the argument", "one too many", "no room for out="],
)
def test_bad_signatures_are_refused(op: Any, formula: Any) -> None:
    before = dict(macs_registry.FORMULAS)
    with pytest.raises(InputError, match=r"must accept \(result, \*args, \*\*kwargs\)"):
        register_formula(op)(formula)
    assert before == macs_registry.FORMULAS
