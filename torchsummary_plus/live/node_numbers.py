"""Sequence numbers of autograd's nodes, which say what created them and when."""

from __future__ import annotations

from typing import Any

SHOWN: dict[Any, int] = {}
"""The true numbers of nodes that are numbered anew while a backward runs."""


def number_of(node: Any) -> int:
    """Return the number that a node was created with."""
    return SHOWN[node] if SHOWN and node in SHOWN else int(node._sequence_nr())
