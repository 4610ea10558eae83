"""Names of tensors by their owners: a module's parameter or buffer, its gradient, or an optimizer's state."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


class Owners:
    """Names of tensors. Modules and optimizers are held by weak reference and reread when new ones appear."""

    def __init__(self) -> None:
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._names: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._read = (-1, -1)

    def add(self, owner: Any) -> None:
        """Register a module or optimizer."""
        (self._modules if isinstance(owner, nn.Module) else self._optimizers).add(owner)

    def name(self, tensor: torch.Tensor) -> str:
        """Return a tensor's name in its module or optimizer; "" without an owner."""
        known = (len(self._modules), sum(len(optimizer.state) for optimizer in self._optimizers))
        if known != self._read or (isinstance(tensor, nn.Parameter) and id(tensor) not in self._names):
            self._read = known
            for owned, owned_name in self._all():
                self._give(owned, owned_name)
        ref, name = self._names.get(id(tensor), (None, ""))
        return name if ref is not None and ref() is tensor else ""

    def give_gradient(self, leaf: torch.Tensor, grad: torch.Tensor) -> None:
        """Name a gradient after its leaf."""
        self._give(grad, f"gradient of {self.name(leaf) or 'a leaf'}")

    def _give(self, tensor: torch.Tensor, name: str) -> None:
        names, key = self._names, id(tensor)
        self._names[key] = weakref.ref(tensor, lambda ref: names.pop(key) if names[key][0] is ref else None), name

    def _all(self) -> Iterator[tuple[torch.Tensor, str]]:
        inner = {id(child) for module in self._modules for child in module._modules.values()}
        for root in [module for module in self._modules if id(module) not in inner]:
            for named in (root.named_parameters(), root.named_buffers()):
                yield from ((tensor, f"{type(root).__name__}.{path}") for path, tensor in named)
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        yield value, f"{type(optimizer).__name__} {key} of {self._parameter_name(parameter)}"

    def _parameter_name(self, parameter: Any) -> str:
        ref, name = self._names.get(id(parameter), (None, ""))
        return name if ref is not None and ref() is parameter else "a parameter"
