"""The SimpleCNN of an article on the memory of PyTorch models, as printed and as presumably intended.

Its ReLUs are created inside ``forward``, so they are not registered modules. The article gives 0.32 MB, but the
421,642 parameters alone take 1.61 MB.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import max_pool2d


class SimpleCNN(nn.Module):
    """The model as printed. It cannot run: without pooling, ``fc1`` gets 50,176 features and expects 3,136."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.ReLU()(self.conv1(x))
        x = nn.ReLU()(self.conv2(x))
        x = x.view(x.size(0), -1)
        x = nn.ReLU()(self.fc1(x))
        return self.fc2(x)


class PooledCNN(SimpleCNN):
    """Digits (N, 1, 28, 28) -> logits (N, 10): the same layers, with 2 x 2 pooling after each convolution's ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(nn.ReLU()(self.conv1(x)), 2)
        x = max_pool2d(nn.ReLU()(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        x = nn.ReLU()(self.fc1(x))
        return self.fc2(x)
