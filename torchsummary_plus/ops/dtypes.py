"""Kinds of dtypes."""

from __future__ import annotations

import torch

HALVES = (torch.float16, torch.bfloat16)
"""Half precision."""
