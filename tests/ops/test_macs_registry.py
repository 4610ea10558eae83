"""The registry of formulas: each fits its operator, users can add theirs, and mistakes are rejected on registration."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from tests.ops.counting import count, rand, unknown
from torchsummary_plus.data.errors import InputError
from torchsummary_plus.ops.macs import register_mult_adds
from torchsummary_plus.ops.macs import registry as macs_registry


@torch.library.custom_op("macs_test::thrice", mutates_args=(), schema="(Tensor x) -> Tensor")
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
    options = dict(packets())
    assert len(options) > 100
    for name, packet in options.items():
        macs_registry._add({}, [packet], macs_registry.FORMULAS[name])


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
    with register_mult_adds(op)(lambda result, x: None):
        assert unknown(run) == {"macs_test.thrice.default"}, "it says that it does not know"
    register_mult_adds(op)(lambda result, x: x.numel())
    assert count(run) == 3


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(
    "ops",
    [("aten::mm",), (torch.ops.aten.mm,), ("aten::addmm_",), ("macs_test::thrice", torch.ops.macs_test.thrice)],
    ids=["a name", "a packet", "an in-place form", "twice at once"],
)
def test_duplicates_are_refused(ops: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="already has a formula"):
        register_mult_adds(*ops)(lambda result, *args, **kwargs: 0)


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
        register_mult_adds(op)(formula)
    assert before == macs_registry.FORMULAS


def test_a_formula_is_taken_back_by_its_handle_or_at_the_end_of_a_block() -> None:
    run = lambda: thrice(rand(3))  # noqa: E731
    formula = register_mult_adds("macs_test::thrice")(lambda result, x: x.numel())
    assert (formula(None, rand(3)), count(run)) == (3, 3)
    formula.remove()
    formula.remove()
    assert unknown(run) == {"macs_test.thrice.default"}
    with pytest.raises(KeyError), register_mult_adds("macs_test::thrice")(lambda result, x: 7):
        assert count(run) == 7
        raise KeyError
    assert unknown(run) == {"macs_test.thrice.default"}


@torch.library.custom_op("macs_test::five_times", mutates_args=(), schema="(Tensor x) -> Tensor")
def five_times(x: Tensor) -> Tensor:
    return 5 * x


def test_formulas_of_torchs_own_counter_are_used() -> None:
    """Called as torch does, with shapes or raw; two flops are a multiply-add; own formulas take precedence."""
    run = lambda: five_times(rand(3))  # noqa: E731
    assert unknown(run) == {"macs_test.five_times.default"}
    seen: list[Any] = []
    shapes = lambda x, out_shape=None, **kwargs: seen.append((x, out_shape)) or 5 * x[0]  # noqa: E731
    register_flop_formula(torch.ops.macs_test.five_times)(shapes)
    try:
        assert (count(run), seen[-1]) == (8, (torch.Size([3]), torch.Size([3])))
        with FlopCounterMode(display=False) as torchs:
            run()
        assert torchs.get_total_flops() == 15
        with register_mult_adds("macs_test::five_times")(lambda result, x: 15):
            assert count(run) == 15
        forget_five_times()
        register_flop_formula(torch.ops.macs_test.five_times, get_raw=True)(lambda x, out_val=None: 4 * out_val.numel())
        assert count(run) == 6
    finally:
        forget_five_times()


def forget_five_times() -> None:
    for registered in (torch.ops.macs_test.five_times, torch.ops.macs_test.five_times.default):
        flop_registry.pop(registered, None)
