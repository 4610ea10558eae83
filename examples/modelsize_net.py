"""pytorch_modelsize's example: two convolutions with 4,800 parameters, 4,640 of them in its published total.

For one 32 x 32 image of 32-bit floats, the input takes 32,768 bits, forward and backward 4,595,712, and the parameters
153,600. The total is 4,782,080 bits, or 0.570068359375 MB.
"""

from __future__ import annotations

from torch import Tensor, nn


class ModelsizeNet(nn.Module):
    """Images (N, 1, 32, 32) -> feature maps (N, 32, 38, 38)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(1, 16, kernel_size=3, padding=5)
        self.conv1 = nn.Conv2d(16, 32, kernel_size=3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv1(self.conv0(x))
