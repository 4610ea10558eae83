"""VGG (Simonyan & Zisserman 2014): 138,357,544 parameters with 16 layers, 143,667,240 with 19."""

from __future__ import annotations

from torch import Tensor, nn

CONVOLUTIONS_PER_STAGE = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
WIDTHS = (64, 128, 256, 512, 512)


def features(layers: int) -> nn.Sequential:
    """Return five stages of 3 x 3 convolutions, each followed by pooling that halves the resolution."""
    stages = nn.Sequential()
    channels = 3
    for width, convolutions in zip(WIDTHS, CONVOLUTIONS_PER_STAGE[layers]):
        for _ in range(convolutions):
            stages.append(nn.Conv2d(channels, width, kernel_size=3, padding=1))
            stages.append(nn.ReLU(inplace=True))
            channels = width
        stages.append(nn.MaxPool2d(kernel_size=2, stride=2))
    return stages


class VGG(nn.Module):
    """Images (N, 3, H, W) -> logits (N, num_classes)."""

    def __init__(self, layers: int = 16, num_classes: int = 1000) -> None:
        super().__init__()
        self.features = features(layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def vgg16(num_classes: int = 1000) -> VGG:
    return VGG(16, num_classes)


def vgg19(num_classes: int = 1000) -> VGG:
    return VGG(19, num_classes)


def vgg19_features() -> nn.Sequential:
    """Return the model of Pytorch-Memory-Utils' example: 20,024,384 parameters, shown there as 76.4 MB on a GPU."""
    return features(19)
