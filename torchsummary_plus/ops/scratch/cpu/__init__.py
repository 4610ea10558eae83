"""Scratch memory of CPU kernels: ATen's, MKL's and oneDNN's. Importing the package registers the rules."""

from . import (  # noqa: F401 - the modules register their rules
    attention,
    bags,
    convolution,
    copies,
    distances,
    fft,
    general,
    half,
    images,
    in_place,
    indexing,
    linalg,
    losses,
    observers,
    pointwise,
    products,
    recurrent,
    reductions,
    selecting,
    transposing,
)
