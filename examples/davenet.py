"""DAVEnet (Harwath et al. 2018): an audio and an image branch, with one pooling module called four times.

The audio branch takes spectrograms of 40 bands without a channel axis, and applies its ReLUs as functions, so a table
of modules has no rows for them. It has 15,965,570 parameters, the image branch 19,434,304.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

VGG16_WIDTHS = (64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool", 512, 512, 512, "pool", 512, 512, 512)


class Audio(nn.Module):
    """Spectrograms (N, 40, frames) -> embeddings (N, 1024, frames / 16)."""

    def __init__(self, embedding_dim: int = 1024) -> None:
        super().__init__()
        self.batchnorm1 = nn.BatchNorm2d(1)
        self.conv1 = nn.Conv2d(1, 128, kernel_size=(40, 1))
        self.conv2 = nn.Conv2d(128, 256, kernel_size=(1, 11), padding=(0, 5))
        self.conv3 = nn.Conv2d(256, 512, kernel_size=(1, 17), padding=(0, 8))
        self.conv4 = nn.Conv2d(512, 512, kernel_size=(1, 17), padding=(0, 8))
        self.conv5 = nn.Conv2d(512, embedding_dim, kernel_size=(1, 17), padding=(0, 8))
        self.pool = nn.MaxPool2d(kernel_size=(1, 3), stride=(1, 2), padding=(0, 1))

    def forward(self, spectrogram: Tensor) -> Tensor:
        x = self.batchnorm1(spectrogram.unsqueeze(1))
        x = relu(self.conv1(x))
        for conv in (self.conv2, self.conv3, self.conv4, self.conv5):
            x = self.pool(relu(conv(x)))
        return x.squeeze(2)


class Image(nn.Module):
    """Images (N, 3, 224, 224) -> embedding maps (N, 1024, 14, 14): VGG-16 without its last pool, then a convolution."""

    def __init__(self, embedding_dim: int = 1024) -> None:
        super().__init__()
        self.image_model = nn.Sequential()
        channels = 3
        for width in VGG16_WIDTHS:
            if isinstance(width, str):
                self.image_model.append(nn.MaxPool2d(kernel_size=2, stride=2))
            else:
                self.image_model.append(nn.Conv2d(channels, width, kernel_size=3, padding=1))
                self.image_model.append(nn.ReLU(inplace=True))
                channels = width
        self.image_model.append(nn.Conv2d(channels, embedding_dim, kernel_size=3, padding=1))

    def forward(self, image: Tensor) -> Tensor:
        return self.image_model(image)
