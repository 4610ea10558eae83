"""Reproduces the autograd engine's behaviour without a dispatch mode, which alters it.

- ``dispatch`` runs operators, and ``functions`` the functions above them, a GPU's by ``cuda_functions``.
  ``cuda_engine`` stands in for the engine on CUDA.
"""
