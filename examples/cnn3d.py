"""A 3D CNN for brain scans, after course notes on the parameters and memory of CNNs.

The notes give four figures: the parameters of the first layer, (27 x 1 + 1) x 30 = 840; its feature map, 191 x 227 x
191 x 30 floats = 993.74 MB (decimal); nine feature maps between input and output; and 3,301,651 parameters in all. They
do not give the other layers, so these are our own, with a total of 1,022,101.
"""

from __future__ import annotations

from torch import Tensor, nn


class CNN3d(nn.Module):
    """Scans (N, 1, 193, 229, 193) -> one number each (N, 1): four convolutions with pooling, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(1, 30, kernel_size=3)
        self.pool1 = nn.MaxPool3d(2)
        self.conv2 = nn.Conv3d(30, 60, kernel_size=3)
        self.pool2 = nn.MaxPool3d(2)
        self.conv3 = nn.Conv3d(60, 120, kernel_size=3)
        self.pool3 = nn.MaxPool3d(2)
        self.conv4 = nn.Conv3d(120, 240, kernel_size=3)
        self.pool4 = nn.AdaptiveAvgPool3d(1)
        self.fc = nn.Linear(240, 1)

    def forward(self, scan: Tensor) -> Tensor:
        x = self.pool1(self.conv1(scan).relu())
        x = self.pool2(self.conv2(x).relu())
        x = self.pool3(self.conv3(x).relu())
        x = self.pool4(self.conv4(x).relu())
        return self.fc(x.flatten(1))
