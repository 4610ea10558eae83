"""Models that torchsummary 1.5.1 reads correctly: one input tensor, plain layers, torch alone.

``CLASSICS`` maps a name to (builder, input size without the batch axis). Widths are small where size teaches nothing.
"""

from tests.api import classics_branches, classics_images, classics_plain, classics_residual  # noqa: F401 - they fill it
from tests.api.classics_case import CLASSICS, without_weights

__all__ = ["CLASSICS", "without_weights"]
