"""Inputs with values, and the most elements of which a fake pass keeps them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

MASK = 1 << 21
"""Largest integer tensor, in elements, whose values a fake pass keeps, so that they can steer the forward."""


def real_input(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a real input: uniform in [0, 1) for floating-point dtypes, else zeros. No global RNG is advanced."""
    if device.type == "meta":
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        generator = torch.Generator("cpu").manual_seed(0)
        return torch.rand(tuple(shape), dtype=wide, generator=generator, device="cpu").to(device=device, dtype=dtype)
    return torch.zeros(tuple(shape), dtype=dtype, device=device)
