"""Scratch memory of the CPU's kernels: ATen's own, MKL's and oneDNN's. Importing it registers its rules."""

from . import (  # noqa: F401 - their rules register themselves
    attention,
    bags,
    convolution,
    copies,
    fft,
    general,
    half,
    images,
    linalg,
    pointwise,
    products,
    recurrent,
    selecting,
)
