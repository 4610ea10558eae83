"""The tables of rules for results that kernels lay out differently from torch's meta kernels."""

from __future__ import annotations

from collections.abc import Callable

from .registry import ShapeRule, rule_in

KERNEL_RULES: dict[str, ShapeRule] = {}
"""Consulted before the meta kernels' rules, by the operator's name in its schema."""

CPU_RULES: dict[str, ShapeRule] = {}
"""The same for tensors on the CPU only."""


def register(table: dict[str, ShapeRule], names: str) -> Callable[[ShapeRule], ShapeRule]:
    """Register the decorated rule in a table, for names separated by spaces."""
    return rule_in(table, *names.split())


def of_kernel(name: str, on_cpu: bool) -> ShapeRule | None:
    """Return the rule for an operator's kernels, or None."""
    return (CPU_RULES.get(name) if on_cpu else None) or KERNEL_RULES.get(name)
