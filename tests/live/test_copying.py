"""Copies on which passes run: whatever leads to a tensor is copied once, and the original stays as it is."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus.live.copying import Copier
from torchsummary_plus.live.reachable import Reachable

COUNTS = {"calls": 0}


def doubled(tensor: Tensor) -> Tensor:
    return nn.Parameter(2 * tensor.detach()) if isinstance(tensor, nn.Parameter) else 2 * tensor


class Node:
    def __init__(self, x: Any) -> None:
        self.x = x
        self.me = self


class Slotted:
    __slots__ = ("_x", "empty")

    def __init__(self, x: Any) -> None:
        self._x = x


class Hidden(Slotted):
    """A class with a property in front of a slot of its base."""

    @property
    def _x(self) -> Any:  # type: ignore[override]
        raise AssertionError("nobody asked for it")

    @_x.setter
    def _x(self, value: Any) -> None:
        Slotted._x.__set__(self, value)  # type: ignore[attr-defined]


def closure(x: Any) -> Callable[[], Any]:
    def read() -> Any:
        COUNTS["calls"] += 1
        return x

    return read


HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (lambda x: [x], lambda held: held[0]),
    "tuple": (lambda x: (1, [x]), lambda held: held[1][0]),
    "object": (Node, lambda held: held.me.x),
    "a hidden slot": (Hidden, lambda held: Slotted._x.__get__(held)),  # type: ignore[attr-defined]
    "closure": (closure, lambda held: held()),
    "iterator": (lambda x: iter([x]), next),
    "module": (lambda x: nn.ParameterList([nn.Parameter(x)]), lambda held: held[0].detach()),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_holds_a_tensor_is_copied_and_the_original_left_alone(name: str) -> None:
    make, read = HOLDERS[name]
    x = torch.ones(2)
    original = make(x)
    copied = Copier(doubled).of(original)
    assert type(copied) is type(original) and copied is not original
    assert torch.equal(read(copied), 2 * x)
    assert torch.equal(read(original), x)
    assert COUNTS["calls"] == (name == "closure"), "the copy counts in a copy of the global"
    COUNTS["calls"] = 0


def test_one_original_has_one_copy() -> None:
    x = torch.ones(2)
    holder = [x, (x, {"again": x})]
    holder.append(holder)
    copied = Copier(doubled).of(holder)
    assert copied[2] is copied and copied[0] is copied[1][0] is copied[1][1]["again"]


def test_weak_references_lead_to_the_copies() -> None:
    lstm = nn.LSTM(2, 3)
    lstm.me = weakref.ref(lstm)
    copied = Copier(doubled).of(lstm)
    assert copied.me() is copied
    assert copied._flat_weights[0] is copied.weight_ih_l0 is copied._flat_weight_refs[0]()


def test_a_scripted_module_runs_on_the_copies_tensors() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    copied, weight = Copier(doubled).of(model.train()).eval(), getattr(model, "0").weight
    assert model.training and not copied.training
    with torch.no_grad():
        getattr(copied, "0").weight.zero_()
        getattr(copied, "0").bias.zero_()
        assert copied(torch.ones(3, 2)).abs().sum() == 0
    assert weight.abs().sum() > 0
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)
    assert any(tensor is weight for tensor in Reachable([model]).tensors)  # The module that was scripted has it.


def test_a_model_deeper_than_the_stack_is_copied() -> None:
    modules: list[nn.Module] = [nn.Linear(2, 2)]
    for _ in range(2000):
        modules.insert(0, nn.Sequential(modules[0]))
    copies = Copier(doubled).modules(modules)
    assert all(copies[k][0] is copies[k + 1] for k in range(2000))  # type: ignore[index]


def test_functions_of_a_library_that_refer_to_each_other_are_shared() -> None:
    """As ``torch.utils.checkpoint.checkpoint`` and its wrapper by the compiler, which knows it by its identity."""
    namespace: dict[str, Any] = {}
    code = "def make():\n def outer(): pass\n def inner(): return outer\n outer.inner = inner\n return outer"
    exec(compile(code, torch.__file__, "exec"), namespace)
    outer = namespace["make"]()
    assert Copier(doubled).of(outer) is outer
    outer.state = [1]
    assert Copier(doubled).of(outer) is not outer
