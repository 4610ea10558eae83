"""Kinds of dtypes."""

import torch

HALVES = (torch.float16, torch.bfloat16)
"""Half precision."""
