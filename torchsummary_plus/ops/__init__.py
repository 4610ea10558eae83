"""Operators: their multiply-adds, the shapes of their results, and the scratch memory of their kernels."""
