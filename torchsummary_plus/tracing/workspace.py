"""What an operator's kernel takes beside its results: the rules of ``workspace_*``, asked for one call."""

from __future__ import annotations

from functools import cache
from typing import Any

from . import workspace_conv  # noqa: F401 - its rules register themselves
from .workspace_registry import LASTING, RESERVES, SCRATCH, UNMODELLED, Rule


class Workspaces:
    """What the kernels of one backend take, call by call."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.unknown: dict[str, int] = {}
        """Calls of operators that take scratch memory by no rule, by name."""
        self._taken: set[str] = set()

    def scratch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
        """Bytes that the kernel holds while it runs, beside its results; 0 where none are known of."""
        rule, is_unknown = _scratch_rule(self.backend, name)
        if is_unknown:
            self.unknown[name] = self.unknown.get(name, 0) + 1
        return 0 if rule is None else max(0, rule.formula(out, *args, **kwargs))

    def reserves(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[int | None, ...]:
        """The true bytes of each tensor in the result, None for one as large as its fake; () where all are."""
        rule = RESERVES.get((self.backend, name))
        sizes: tuple[int | None, ...] = () if rule is None else rule.formula(out, *args, **kwargs)
        return sizes

    def lasting(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
        """Bytes that this call is the first to take, and that are held from then on."""
        rule = LASTING.get((self.backend, name))
        if rule is None:
            return 0
        fresh = {key: nbytes for key, nbytes in rule.formula(out, *args, **kwargs) if key not in self._taken}
        self._taken.update(fresh)
        return sum(fresh.values())


@cache
def _scratch_rule(backend: str, name: str) -> tuple[Rule | None, bool]:
    rule = SCRATCH.get((backend, name))
    return rule, rule is None and name in UNMODELLED[backend]
