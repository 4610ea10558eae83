"""bfloat16 on GPUs below capability 8.0, where torch emulates it."""

import pytest
import torch
from torch import nn

from tests.ops.test_workspace_cuda import CUDA, TURING
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.capability import AMPERE
from torchsummary_plus.live.fakes import standing_in_for
from torchsummary_plus.results.memory_estimate import MemoryEstimate


@pytest.mark.parametrize("card", ["T4", "GTX 1080 Ti"])
def test_bfloat16_is_emulated_below_8_0(card: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(8))
    model(torch.zeros(1, 3, 16, 16))
    told = {"device": "cuda", "autocast": torch.bfloat16, "optimizer": "adamw"}
    emulated, native = (estimate_memory(model, (3, 16, 16), 64, gpu=name, **told) for name in (card, "A100 40GB"))
    assert most_saved(emulated) == most_saved(native)
    half = estimate_memory(model, (3, 16, 16), 64, gpu=card, **{**told, "autocast": torch.float16})
    assert most_saved(emulated) == most_saved(half)


def most_saved(estimate: MemoryEstimate) -> int:
    """The most that is kept for the backward at one time; the peak may be elsewhere, where a workspace is larger."""
    return max(dict(point.live)["saved_activations"] for point in estimate.timeline)


def test_models_are_told_that_bfloat16_is_emulated() -> None:
    original = torch.cuda.is_bf16_supported
    for capability, natively in ((TURING, False), (AMPERE, True)):
        with standing_in_for(CUDA, capability):
            assert torch.cuda.is_bf16_supported()
            assert torch.cuda.is_bf16_supported(including_emulation=False) is natively
    assert torch.cuda.is_bf16_supported is original
