"""Multiply-adds: ``formulas`` of operators, those that are ``free``, and the ``registry`` for third-party ones."""

from .formulas import multiply_adds
from .registry import register_mult_adds

__all__ = ["multiply_adds", "register_mult_adds"]
