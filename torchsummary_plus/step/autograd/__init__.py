"""The autograd engine's behaviour without a dispatch mode, which would alter it."""
