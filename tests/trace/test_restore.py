"""Whatever hooks and forwards write to outside the model is restored after a pass."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import estimate_memory, graph, summary

SEEN: list[Tensor] = []
LAST: Tensor | None = None


@of_parts(lambda: {"linear": nn.Linear(4, 4)})
def Noting(self, x: Tensor) -> Tensor:
    global LAST
    LAST = self.linear(x)
    SEEN.append(LAST)
    return LAST


class Extractor:
    def __init__(self, model: nn.Module) -> None:
        self.features: dict[str, Tensor] = {}
        model.register_forward_hook(self.note)

    def note(self, module: nn.Module, args: Any, out: Tensor) -> None:
        self.features["out"] = out
        self.last = out


@pytest.mark.parametrize("run", ["fake", "real"])
@pytest.mark.parametrize("call", [summary, graph])
def test_hooks_and_forwards_leave_no_tensor_of_a_pass(call: Callable[..., Any], run: str) -> None:
    model, taps, last, calls = Noting(), [torch.ones(1)], None, [0]
    before, extractor = list(taps), Extractor(model)

    def note(module: nn.Module, args: Any, out: Tensor) -> None:
        nonlocal last
        last = out
        taps.append(out)
        calls.append(len(calls))

    model.linear.register_forward_hook(note)
    call(model, (4,), run=run, **({"verbose": 0} if call is summary else {}))
    assert taps[0] is before[0] and len(taps) == 1
    assert last is LAST is None and SEEN == []
    assert vars(extractor) == {"features": {}}
    assert calls == [0], "nothing is added to a log of numbers either"
    estimate_memory(model, (4,), 2)


@of_parts(lambda: {"linear": nn.Linear(4, 4, bias=False)})
def Flat(self, x: Tensor) -> Tensor:
    """A parameter whose elements another tensor has too, as the flat parameters of FSDP have."""
    assert self.flat.data.data_ptr() == self.linear.weight.data_ptr()
    self.flat.data.zero_()
    return self.linear(x)


def test_what_shares_a_parameters_elements_shares_them_in_a_real_pass() -> None:
    model = Flat()
    model.flat = SimpleNamespace(data=model.linear.weight.detach().view(-1))
    weight = model.linear.weight.detach().clone()
    summary(model, (4,), run="real", verbose=0)
    assert torch.equal(model.linear.weight, weight)
