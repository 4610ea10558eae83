"""Whatever hooks and forwards write to outside the model is restored after a pass."""

from collections.abc import Callable
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
