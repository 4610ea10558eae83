"""MobileNetV2 (Sandler et al. 2018): 3,504,872 parameters, most convolutions depthwise."""

from __future__ import annotations

from torch import Tensor, nn

STAGES = (
    # expansion, channels, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def conv_bn_relu(channels: int, out: int, kernel_size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel_size, stride, padding=kernel_size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """An inverted residual: expand, depthwise convolution, project, with a shortcut if the shapes match."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels * expansion
        self.has_shortcut = stride == 1 and channels == out
        self.conv = nn.Sequential()
        if expansion != 1:
            self.conv.append(conv_bn_relu(channels, hidden, kernel_size=1))
        self.conv.append(conv_bn_relu(hidden, hidden, kernel_size=3, stride=stride, groups=hidden))
        self.conv.append(nn.Conv2d(hidden, out, kernel_size=1, bias=False))
        self.conv.append(nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.has_shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    """Images (N, 3, H, W) -> logits (N, num_classes)."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn_relu(3, 32, kernel_size=3, stride=2))
        channels = 32
        for expansion, width, blocks, first_stride in STAGES:
            for block in range(blocks):
                stride = first_stride if block == 0 else 1
                self.features.append(InvertedResidual(channels, width, stride, expansion))
                channels = width
        self.features.append(conv_bn_relu(channels, 1280, kernel_size=1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))
