"""Scratch memory of CUDA kernels: cuBLAS, cuDNN and fused attention. Importing the package registers the rules."""

from . import (  # noqa: F401 - the modules register their rules
    attention,
    batch_norm,
    blas,
    bounds,
    composites,
    convolution,
    copies,
    embeddings,
    losses,
    norms,
    products,
    recurrent,
    reductions,
    selecting,
    softmax,
    sorting,
    topk,
)
