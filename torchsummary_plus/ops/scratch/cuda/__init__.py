"""Scratch memory of CUDA's kernels: cuBLAS, cuDNN and fused attention. Importing it registers its rules."""

from . import attention, blas, convolution, norms, products, reductions  # noqa: F401 - their rules register themselves
