"""Scratch memory of CUDA kernels: cuBLAS, cuDNN and fused attention. Importing the package registers the rules."""

from . import (  # noqa: F401 - the modules register their rules
    attention,
    blas,
    bounds,
    convolution,
    copies,
    embeddings,
    losses,
    norms,
    recurrent,
    reductions,
    selecting,
    sorting,
)
