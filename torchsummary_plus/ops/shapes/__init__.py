"""Closed-form result rules for operators of common models, used instead of running a meta kernel.

Most meta kernels are written in Python, slow, and import torch's compiler stack on first use, and some lay results out
differently from the kernels; steps need the real layout. A rule reads only shapes, strides, dtypes and the device,
agrees with the kernel where it answers (``tests/ops/test_rules.py``), and declines the rest.
"""

from . import data_movement, layers, pointwise  # noqa: F401 - they register
from .registry import ruled as ruled
