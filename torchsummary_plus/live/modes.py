"""Switch gradients, even in inference mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def gradients(enabled: bool) -> Iterator[None]:
    """Switch gradient recording on or off, even inside ``torch.inference_mode()``.

    >>> with torch.inference_mode(), gradients(True):
    ...     torch.ones(2, requires_grad=True).exp().requires_grad
    True
    """
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield
