"""Scratch memory of CUDA kernels: cuBLAS, cuDNN, attention and others. Importing the package registers the rules."""

from . import attention, bounds, convolution, copies, layers, reductions, sorting  # noqa: F401
