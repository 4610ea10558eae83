"""Reproduces the autograd engine's behaviour without a dispatch mode, which alters it.

- ``dispatch`` runs operators, and ``functions`` the functions above them; ``inline`` and ``casting`` help it.
  ``cuda_engine`` stands in for the engine on CUDA.
- Composite functions, operator by operator: ``cuda_functions``, ``encoder``.
- Formulas of gradients: ``products``, ``extremes``, ``nodes``.
- What nodes keep, and when they run: ``saved_numbers``, ``views``, ``gpu_node_numbers``.
"""
