"""The copy of a model and its step that a pass runs, and what is known of it until the step begins."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..live.copying import Copier
from ..table.modules import ModuleTree
from .account import PriorTensor
from .step import Step


class StepCopy:
    """A copy of a model and its step.

    Until :meth:`settle`, it knows the replacement of every tensor, and holds those that exist before the step.
    """

    def __init__(self, tree: ModuleTree, step: Step, copier: Copier | None = None) -> None:
        self.tree = tree
        self.step = step
        self.prior: list[PriorTensor] = []
        """Tensors besides the model; cleared once recorded, so that only the program holds them."""
        self.without_bytes: frozenset[int] = frozenset()
        """Ids of tensors on ``meta`` beside a model that is not: a skeleton in a plain list is no memory."""
        self.replacements: list[Tensor] = []
        self._copier = copier or Copier(lambda tensor: tensor)
        self._hooks: list[tuple[weakref.ref[Tensor], list[Any], list[Any]]] = []
        self._held_elsewhere: list[Any] = []
        """Copies of what only variables hold, or objects that are shared, such as a logger."""

    def known(self, tensor: Tensor) -> Tensor | None:
        """Return the replacement of a tensor that the steps reach, if it is one."""
        replacement: Tensor | None = self._copier.known(tensor)
        return replacement

    def take_over(self, originals: Sequence[Tensor], left: set[int]) -> None:
        """Note the replacements of tensors, and their gradients and hooks; gradients in ``left`` stay behind."""
        originals = [tensor for tensor in {id(t): t for t in originals}.values() if self.known(tensor) is not tensor]
        self.replacements = [*map(self._copier.of, originals)]
        for tensor, new in zip(originals, self.replacements):
            grad = gradient_of(tensor)
            if grad is not None and id(grad) not in left and self.known(grad) is not None:
                new.grad = self._copier.of(grad)
            hooks = [*map(self._copier.of, (tensor._backward_hooks or {}).values())]
            late = [*map(self._copier.of, (tensor._post_accumulate_grad_hooks or {}).values())]
            if hooks or late:
                self._hooks.append((weakref.ref(new), hooks, late))

    def hold_others(self) -> None:
        """Hold the copies that no other copy holds: variables, or objects that are shared, hold the originals."""
        gradients = {id(new.grad) for new in self.replacements if new.grad is not None}
        candidates = [*self.replacements, *map(self._copier.of, self._copier.weakly_held.values())]
        self.replacements.clear()
        candidates = [*{id(new): new for new in candidates}.values()]
        candidates.append(self._copier.note(torch.empty(0), torch.empty(0)))
        *counts, alone = [sys.getrefcount(new) for new in candidates]  # The last has no other holders.
        candidates.pop()
        self._held_elsewhere = [new for new, n in zip(candidates, counts) if n <= alone and id(new) not in gradients]
        self.replacements = [new for new in candidates if isinstance(new, Tensor)]

    def give_hooks(self) -> None:
        """Register the originals' hooks on their replacements."""
        for reference, hooks, late in self._hooks:
            tensor = reference()
            assert tensor is not None  # The copier holds it until then.
            for hook in hooks:
                tensor.register_hook(hook)
            for hook in late:
                tensor.register_post_accumulate_grad_hook(hook)

    def settle(self) -> None:
        """Drop all references to replacements, so that only the copies hold them."""
        for held in (self.prior, self.replacements, self._hooks, self._copier):
            held.clear()
        self.tree.release()


def gradient_of(tensor: Tensor) -> Tensor | None:
    """Return a leaf's gradient; None for a view that autograd refuses to look at, since its base was written to."""
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:
        return None
