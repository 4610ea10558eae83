"""Functions that run otherwise in a dispatch mode of the user's own, as under selective checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoints
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.truth.weights_truth import agree

pytestmark = pytest.mark.usefixtures("threads")


class Listening(TorchDispatchMode):
    """Lets every operator pass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def products() -> Any:
    """Selective checkpointing that keeps matrix products."""
    saved = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)

    def policy(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> checkpoints.CheckpointPolicy:
        choice = checkpoints.CheckpointPolicy
        return choice.MUST_SAVE if operator in saved else choice.PREFER_RECOMPUTE

    return checkpoints.create_selective_checkpoint_contexts(policy)


class Within(nn.Module):
    """A function of a layer and its input, run in a mode, without one, or under selective checkpointing."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], layer: nn.Module, way: str) -> None:
        super().__init__()
        self.function, self.layer, self.way = function, layer, way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "selective":
            saved: Tensor = checkpoint(self.function, self.layer, x, use_reentrant=False, context_fn=products)
            return saved
        if self.way == "mode":
            with Listening():  # type: ignore[no-untyped-call]
                return self.function(self.layer, x)
        return self.function(self.layer, x)


FUNCTIONS: dict[str, tuple[Callable[[Any, Tensor], Tensor], Callable[[], nn.Module]]] = {
    "linear of a view": (lambda layer, x: layer(x.mT).tanh().sum(1), lambda: nn.Linear(12, 512)),
    "one-hot": (lambda layer, x: layer(F.one_hot(x.argmax(-1), 400).float()), lambda: nn.Linear(400, 4)),
    "recurrence": (lambda layer, x: layer(x)[0], lambda: nn.GRU(20, 64)),
    "pool": (lambda layer, x: layer(F.max_pool1d(x.detach(), 2)), lambda: nn.Linear(10, 4)),
}


@pytest.mark.parametrize("way", ["plain", "mode", "selective"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_estimate_is_exact(name: str, way: str) -> None:
    function, layer = FUNCTIONS[name]
    agree(lambda: Within(function, layer(), way), lambda: torch.rand(8, 12, 20), "train")
