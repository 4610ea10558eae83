"""Estimates for CUDA where C++ cannot be shown a GPU are those where it can."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cuda.truth import unguarded
from tests.parts import of_parts
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.errors import UnsupportedError
from torchsummary_plus.live import cuda_guard
from torchsummary_plus.live.unguarded import _policies

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU has a guard of its own"),
    pytest.mark.skipif(cuda_guard.Slot.find() is None, reason="there is nothing to compare with"),
]


@of_parts(lambda function: {"weight": nn.Parameter(torch.ones(64, 64)), "function": function})
def Forward(self, x: Tensor) -> Any:
    return self.function(x @ self.weight)


def assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[[1, 2]] = 0.0
    y[y > 0.5] = 1
    return y


@of_parts(lambda layer: {"layer": layer})
def First(self, x: Tensor) -> Any:
    with torch.backends.cudnn.flags(enabled=False):
        return self.layer(x)[0]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dropout": lambda x: F.dropout(x, 0.1) + F.dropout(x, 0.0) + F.dropout(x, 1.0) + F.dropout(x * 2, 0.1, True, True),
    "promoted": lambda x: torch.addcmul(x, x.bfloat16(), x) + torch.einsum("ij,kj->ik", x, x)[:, :1],
    "moves": lambda x: x.to(x.device).to("cuda").to(x.device, torch.float64).cpu().cuda() * x.type_as(x),
    "assigned": assigned,
    "LSTM cell": First(nn.LSTMCell(64, 32)),
    "attention": nn.TransformerEncoderLayer(64, 2, 64),
}


@pytest.mark.parametrize(("mode", "autocast"), [("train", None), ("eval", torch.float16)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_estimate_is_the_same(name: str, mode: str, autocast: torch.dtype | None) -> None:
    def figures() -> tuple[Any, ...]:
        estimate = estimate_memory(
            Forward(FUNCTIONS[name]), (64,), 8, "cuda", mode=mode, autocast=autocast, gpu="A100 40GB"
        )
        events = [(estimate.log.moments[moment].operator, size) for moment, _, size in estimate.log.events if size]
        return estimate.peak_bytes, estimate.peak_range, estimate.unknown, estimate.assumptions, events

    usual = figures()
    with unguarded():
        assert figures() == usual


def test_autocast_is_learnt_from_torch() -> None:
    """The operators that a dtype or a cast is known for in torch's documentation."""
    known = {name: policy.casts for name, policy in _policies().items()}
    assert {known[name] for name in ("mm", "conv2d", "linear", "scaled_dot_product_attention")} == {"lower"}
    assert {known[name] for name in ("exp", "layer_norm", "pow.Tensor_Scalar", "mse_loss")} == {"float32"}
    assert {known[name] for name in ("addcmul", "index_put", "dot")} == {"widest"}
    assert _policies()["sum"].dtype_at == 1 and "binary_cross_entropy" not in known


def test_kernels_are_replaced_only_during_a_pass() -> None:
    with unguarded():
        estimate_memory(Forward(FUNCTIONS["dropout"]), (64,), 8, "cuda", autocast=torch.bfloat16)
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::dropout", "AutogradCUDA")
    with torch.autocast("cpu", torch.bfloat16):
        assert F.dropout(torch.ones(2, 2) @ torch.ones(2, 2), 0.5).dtype is torch.bfloat16


def test_ranks_are_refused() -> None:
    from torch.distributed.fsdp import fully_shard

    def built() -> nn.Module:
        model = nn.Linear(64, 64)
        fully_shard(model)  # type: ignore[operator]
        return model

    with unguarded(), pytest.raises(UnsupportedError, match="C\\+\\+ cannot be shown GPUs"):
        estimate_memory(built, (64,), 8, "cuda", world_size=2)
