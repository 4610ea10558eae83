"""Group norm's copies, in the forward and in the backward, depend on layouts and on the release."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.truth.releases import from_release
from torchsummary_plus import estimate_memory, measure_memory
from torchsummary_plus.live.compat import since

GROUPS, CHANNELS = 2, 6
IMAGES: dict[str, Callable[[], Tensor]] = {
    "row-major": lambda: torch.randn(2, CHANNELS, 5, 3),
    "channels-last": lambda: torch.randn(2, CHANNELS, 5, 3).to(memory_format=torch.channels_last),
    "sequences": lambda: torch.randn(2, CHANNELS, 7),
    "every second column": lambda: torch.randn(2, CHANNELS, 5, 8)[..., ::2],
    "expanded": lambda: torch.randn(2, 1, 5, 3).expand(2, CHANNELS, 5, 3),
}

measured_in_half = from_release("2.11", "the release that rules in half precision were measured on")


class Normed(nn.Module):
    """Group norm of an input that needs a gradient or not, with every second weight of a parameter or with its own.

    The gradient of its result is expanded, whole, or laid out otherwise.
    """

    def __init__(self, learns: bool, is_strided: bool, then: str) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, CHANNELS)
        self.factor = nn.Parameter(torch.ones(())) if learns else None
        self.weights = nn.Parameter(torch.randn(2 * CHANNELS)) if is_strided else None
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        if self.factor is not None:
            x = x * self.factor
        if self.weights is None:
            out: Tensor = self.norm(x)
        else:
            out = nn.functional.group_norm(x, GROUPS, self.weights[::2], self.weights[1::2])
        if self.then == "transposed":
            return out.transpose(-1, -2).contiguous().square()
        return out * 2 if self.then == "doubled" else out


@pytest.mark.parametrize("layout", IMAGES)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=measured_in_half)], ids=str)
def test_its_copies_are_those_of_a_real_step(layout: str, dtype: torch.dtype) -> None:
    for learns, is_strided, then in (
        *((False, False, "expanded"), (False, True, "doubled")),
        *((True, False, "transposed"), (True, True, "doubled"), (True, False, "expanded")),
    ):
        if "channels-last" in layout and not learns and not since("2.14"):
            continue  # torch itself crashes the process.
        x = IMAGES[layout]()
        x = x.to(dtype) if dtype is not torch.float32 else x
        model = Normed(learns, is_strided, then).to(dtype)
        predicted, measured = (call(model, input_data=x) for call in (estimate_memory, measure_memory))
        assert predicted.unknown == ()
        assert predicted.phase_peaks == measured.phase_peaks, (learns, is_strided, then)
