"""The autograd engine's own behaviour, which a dispatch mode would change."""
