"""Tensors that a step replaces, of the model and beside it, freed when the step ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..live import compat
from ..live.exchange import Exchange
from ..live.modules import ModuleTree, tensors_in
from ..live.reach import Reached
from .optimizers import stepping

SHOWN = 3
"""How many replaced tensors a note names."""

BESIDE = "tensors outside the model"
STATE = "the state of an optimizer"


class ReplacedTensors:
    """Frees exchanged tensors that nothing reaches any more.

    A program frees such a tensor by replacing it. Here whoever restores the model holds it, so that it is freed at the
    end of the step. ``roots`` and all optimizers lead to everything else that the steps can use. Of tensors beside the
    model, only those that they lead to from the start can be replaced.
    """

    def __init__(self, tree: ModuleTree, exchange: Exchange, train_step: object, roots: Sequence[Any]) -> None:
        self._model = tree.modules[0]
        self._exchange = exchange
        self._roots = [train_step, *roots]
        self._steps_itself = train_step is not None
        self._names: dict[int, str] = {}
        for name, tensor in _named(tree):
            if tensor in exchange:
                self._names.setdefault(id(tensor), name)
        self._beside: set[int] = set()
        self._optimizers: list[Optimizer] = []
        self._hidden: list[Any] | None = None
        """Optimizers and the like that only a library holds; None if it is unknown which these are."""
        self._freed: dict[str, None] = {}

    def begin(self, optimizer: object, inputs: Iterable[Tensor]) -> None:
        """Look for the tensors beside the model that a step of the user's own may replace, except its ``inputs``."""
        if not self._steps_itself:
            return
        known = {*self._names, *map(id, tensors_in(self._model.modules())), *map(id, inputs)}
        beside = {id(tensor) for tensor in self._exchange} - known
        entries = self._exchange.entries
        beside |= entries.containers() if entries is not None else set()
        known_optimizers = [found for found in stepping() if isinstance(found, Optimizer)]
        if not beside and not known_optimizers:
            return
        self._hidden = []
        reached = self._reached(optimizer)
        self._hidden = [found for found in stepping() if id(found) not in reached]
        self._optimizers = [found for found in known_optimizers if id(found) in reached]
        self._beside = (beside & self._reached(optimizer)) | set(map(id, self._optimizers))

    def _reached(self, optimizer: object) -> set[int]:
        """Return the ids of the tensors, containers and objects, with their dictionaries, that the steps can use."""
        hidden = stepping() if self._hidden is None else self._hidden
        roots = [self._model, *self._roots, *compat.global_hooks, *hidden, optimizer]
        with compat.no_function():
            reach = Reached(roots, weakly=False)
        return {*map(id, (*reach.tensors, *reach.mutable)), *reach.namespaces}

    def unreached(self, optimizer: object) -> set[int]:
        """Return the ids of what neither the model, nor the step's code, nor the steps' own optimizer reaches now."""
        present = {id(tensor) for tensor in tensors_in(self._model.modules())}
        absent = (self._names.keys() - present) | self._beside
        return absent - self._reached(optimizer) if absent else absent

    def free(self, unreached: set[int]) -> None:
        """Free tensors, and remember their names."""
        self._beside -= unreached
        if self._exchange.entries is not None and not unreached.isdisjoint(self._exchange.entries.containers()):
            self._exchange.entries.empty(unreached)
            self._freed[BESIDE] = None
        for replaced in [found for found in self._optimizers if id(found) in unreached]:
            replaced.state.clear()  # What it held before is exchanged; this frees the rest.
            self._freed[STATE] = None
        named = [key for key in self._names if key in unreached]
        for key in [*named, *unreached.difference(named)]:
            if self._exchange.release(key):
                self._freed[self._names.pop(key, BESIDE)] = None

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
