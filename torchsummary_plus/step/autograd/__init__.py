"""Reproduces the autograd engine's behaviour without a dispatch mode, which alters it."""
