"""Estimates for CUDA where C++ cannot be shown a GPU are those where it can."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cuda.truth import unguarded
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.errors import UnsupportedError
from torchsummary_plus.live import cuda_guard
from torchsummary_plus.live import cuda_guard as cuda_driver
from torchsummary_plus.live.unguarded import _policies

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU has a guard of its own"),
    pytest.mark.skipif(cuda_guard.Slot.find() is None, reason="there is nothing to compare with"),
]


class Forward(nn.Module):
    """A function of the input and a weight."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(64, 64)), function

    def forward(self, x: Tensor) -> Any:
        return self.function(x @ self.weight)


def assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[[1, 2]] = 0.0
    y[y > 0.5] = 1
    return y


@torch.inference_mode()
def dropped_in_inference(x: Tensor) -> Tensor:
    return F.dropout(x, 0.1, True).to(x.device).type_as(x)


class First(nn.Module):
    """The first result of a layer that runs without cuDNN."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        with torch.backends.cudnn.flags(enabled=False):
            return self.layer(x)[0]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dropout": lambda x: F.dropout(x, 0.1) + F.dropout(x, 0.0) + F.dropout(x, 1.0) + F.dropout(x * 2, 0.1, True, True),
    "softmax in float32": lambda x: F.softmax(x.half(), -1, dtype=torch.float32),
    "promoted": lambda x: torch.addcmul(x, x.bfloat16(), x) + torch.einsum("ij,kj->ik", x, x)[:, :1],
    "moves": lambda x: x.to(x.device).to("cuda").to(x.device, torch.float64).cpu().cuda() * x.type_as(x),
    "a loss on the CPU": lambda x: (x * 2).cpu() * 2,
    "from the CPU": lambda x: torch.ones(8, 64).to(x) * x.new_tensor([2.0]) + torch.where(x > 0, x, 0.0),
    "lists as indices": lambda x: x[[1, 2, 3]] + x[:, [1, 2]].sum(),
    "assigned": assigned,
    "LSTM cell": First(nn.LSTMCell(64, 32)),
    "GRU": First(nn.GRU(64, 32, bias=False)),
    "inference": lambda x: x if torch.is_grad_enabled() else dropped_in_inference(x),
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


@pytest.mark.parametrize(("platform", "name"), [("win32", "nvcuda.dll"), ("linux", "libcuda.so.1")])
def test_the_driver_is_asked_by_its_name_on_each_platform(
    platform: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Driver:
        """A driver with a GPU of compute capability 8.9."""

        def __init__(self, name: str) -> None:
            opened.append(name)

        def cuInit(self, flags: int) -> int:
            return 0

        def cuDeviceGet(self, device: Any, index: int) -> int:
            return 0

        def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
            value._obj.value = {75: 8, 76: 9}[attribute]
            return 0

    monkeypatch.setattr(ctypes, "CDLL", Driver)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(cuda_driver, "cuda_driver", cuda_driver.cuda_driver.__wrapped__)
    assert cuda_driver.capability_of.__wrapped__(0) == (8, 9)
    assert opened == [name]


@pytest.mark.parametrize(("platform", "name"), [("darwin", "libc10.dylib"), ("win32", "c10.dll")])
def test_the_registry_of_guards_is_looked_for_on_each_platform(
    platform: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def missing(path: str) -> None:
        opened.append(path)
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(sys, "platform", platform)
    assert cuda_guard.Slot.find() is None
    assert opened[0].endswith(name)
