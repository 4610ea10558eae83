"""Parameters and buffers of the model that a step replaces, or whose layers it replaces, freed when the step ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..live.exchange import Exchange
from ..live.modules import ModuleTree, tensors_in
from ..live.reach import Reached
from .optimizers import stepping

SHOWN = 3
"""How many replaced tensors a note names."""


class ReplacedTensors:
    """Frees exchanged tensors of a model that nothing reaches any more.

    A program frees such a tensor by replacing it. Here whoever restores the model holds it, so that it is freed at the
    end of the step. ``roots`` and all optimizers lead to everything else that the steps can use.
    """

    def __init__(self, tree: ModuleTree, exchange: Exchange, roots: Sequence[Any]) -> None:
        self._model = tree.modules[0]
        self._exchange = exchange
        self._roots = roots
        self._names: dict[int, str] = {}
        for name, tensor in _named(tree):
            if tensor in exchange:
                self._names.setdefault(id(tensor), name)
        self._freed: dict[str, None] = {}

    def unreached(self, optimizer: object) -> set[int]:
        """Return the ids of what neither the model, nor the step's code, nor the steps' own optimizer reaches now."""
        present = {id(tensor) for tensor in tensors_in(self._model.modules())}
        absent = self._names.keys() - present
        if not absent:
            return set()
        return absent - set(map(id, Reached([self._model, *self._roots, *stepping(), optimizer]).tensors))

    def free(self, unreached: set[int]) -> None:
        """Free tensors, and remember their names."""
        for key in [key for key in self._names if key in unreached]:
            if self._exchange.release(key):
                self._freed[self._names.pop(key)] = None

    def notes(self) -> list[str]:
        """Return a note that names the tensors freed, if there are any."""
        if not self._freed:
            return []
        first = ", ".join([*list(self._freed)[:SHOWN], *["..."] * (len(self._freed) > SHOWN)])
        return [f"{first}: replaced by the step, and counted until that step ends"]


def _named(tree: ModuleTree) -> list[tuple[str, Tensor]]:
    return [(tree.join(i, name), tensor) for i, m in enumerate(tree.modules) for name, tensor in _own(m)]


def _own(module: Any) -> list[tuple[str, Tensor]]:
    entries = [*module._parameters.items(), *module._buffers.items()]
    return [(name, tensor) for name, tensor in entries if tensor is not None]
