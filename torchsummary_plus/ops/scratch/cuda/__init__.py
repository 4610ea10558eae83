"""Scratch memory of CUDA kernels: cuBLAS, cuDNN and fused attention. Importing the package registers the rules."""

from . import (  # noqa: F401 - the modules register their rules
    attention,
    bilinear,
    blas,
    comparing,
    convolution,
    copies,
    embeddings,
    images,
    losses,
    norms,
    products,
    promoting,
    recurrent,
    reductions,
    selecting,
    sorting,
    synced,
    upsampling,
)
