"""Models that torchsummary 1.5.1 reads correctly: one input tensor, plain layers, torch alone.

``CLASSICS`` maps a name to (builder, input size without the batch axis). Widths are small where size teaches nothing.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.mobilenet_v2 import MobileNetV2
from examples.resnet import resnet18

Builder = Callable[[], nn.Module]
CLASSICS: dict[str, tuple[Builder, tuple[int, ...]]] = {
    builder.__name__: (builder, (3, 224, 224)) for builder in (resnet18, MobileNetV2)
}


def classic(*size: int) -> Callable[[Builder], Builder]:
    def add(builder: Builder) -> Builder:
        CLASSICS[builder.__name__] = (builder, size)
        return builder

    return add


def without_weights(builder: Builder) -> nn.Module:
    """The model with memory for its weights and nothing written there: no time goes into random numbers."""
    with torch.device("meta"):
        model = builder()
    return model.to_empty(device="cpu")


@classic(1, 8000)
def speech_cnn() -> nn.Module:
    def block(i: int, o: int, k: int, s: int) -> list[nn.Module]:
        return [nn.Conv1d(i, o, k, s), nn.BatchNorm1d(o), nn.ReLU(), nn.MaxPool1d(4)]

    return nn.Sequential(
        *block(1, 16, 80, 16), *block(16, 32, 3, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 35)
    )


@classic(1, 24, 28, 24)
def cnn_3d() -> nn.Module:
    def conv(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv3d(i, o, 3), nn.BatchNorm3d(o), nn.ReLU()]

    head = [nn.Flatten(), nn.Linear(6 * 5 * 6 * 5, 1)]
    return nn.Sequential(*conv(1, 4), nn.MaxPool3d(2), *conv(4, 6), nn.AvgPool3d(2, ceil_mode=True), *head)


@classic(3, 64, 64)
class FullyConvolutional(nn.Module):
    """Two outputs at the root, which has no row."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)])
        self.score, self.norm = nn.Conv2d(8, 2, 1), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for stage in self.stages:
            x = F.relu(stage(x))
        y = self.score(self.norm(x))
        return y, F.interpolate(y, scale_factor=4)
