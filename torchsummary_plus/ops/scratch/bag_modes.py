"""Modes of an embedding bag, as its operators number them."""

from __future__ import annotations

SUM, MEAN, MAX = range(3)
