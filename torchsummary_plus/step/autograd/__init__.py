"""Reproduces the autograd engine's behaviour without a dispatch mode, which alters it.

``dispatch`` runs operators, ``functions`` the functions above them; ``cuda_engine`` stands in for the engine on CUDA.
"""
