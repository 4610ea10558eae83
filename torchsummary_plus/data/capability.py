"""A GPU's compute capability."""

from __future__ import annotations

Capability = tuple[int, int]  # Major and minor number: (9, 0) for an H200.
AMPERE: Capability = (8, 0)  # The GPU assumed if none is known: an A100.
