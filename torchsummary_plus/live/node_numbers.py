"""Sequence numbers of autograd nodes, which identify when, and by which module, a node was created."""

from __future__ import annotations

from typing import Any

SHOWN: dict[Any, int] = {}
"""The original numbers of nodes that are renumbered while a backward runs."""


def number_of(node: Any) -> int:
    """Return the number that a node was created with."""
    return SHOWN[node] if SHOWN and node in SHOWN else int(node._sequence_nr())
