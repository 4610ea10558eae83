"""Objects that steps use besides the model and its inputs: other models, optimizer state, tensors in closures.

Steps run on a copy of everything that they reach (:mod:`..live.copying`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ..live import compat
from ..live.copying import Copier
from ..live.fakes import Fake, is_plain
from ..live.function_caches import without_cached_tensors
from ..live.graphs import SavedByGraphs
from ..live.offloading import Away
from ..live.reach import Reached
from ..live.remaking import Change
from ..live.versions import since
from ..table.environments import copied_tree
from ..table.modules import ModuleTree, tensors_in
from ..trace.names import names_replaced
from ..trace.questions import OUTSIDE
from .account import PriorTensor
from .runner import with_loss
from .step import Step
from .step_copy import StepCopy, gradient_of

UNSEEN = "the tensors they save are not counted, because torch exposes them only since 2.10"


def reached_by(tree: ModuleTree, step: Step) -> Reached:
    """Return what the code of a model and its step reaches."""
    return Reached([*tree.modules, step.train_step, step.loss, step.optimizer, *compat.global_hooks])


class Surroundings:
    """Everything a step's code reaches: its own functions, the model's hooks, and all objects held from there."""

    def __init__(self, tree: ModuleTree, step: Step) -> None:
        self.tree = tree
        self.step = step
        self._own = {id(tensor) for tensor in tree.tensors()}
        self._owners = {id(p): i for i, module in reversed(list(enumerate(tree.modules))) for p in _parameters(module)}
        self.reach = reached_by(tree, step)
        self.modules = [module for module in self.reach.modules if id(module) not in tree.index]
        counters = {id(module.n_averaged) for module in self.modules if isinstance(module, AveragedModel)}
        self.moving = {id(tensor) for tensor in tensors_in(self.modules)} - counters
        """Ids of tensors outside the model that move with it, single numbers too: those of other modules, and states.

        ``AveragedModel`` makes its counter on the CPU, wherever the model is.
        """
        for optimizer in self.reach.optimizers:
            self.moving.update(map(id, _moving_states(optimizer)))
        gradients = [g for t in self.reach.tensors if id(t) in self._owners and (g := gradient_of(t)) is not None]
        on_device = any(not tensor.is_meta for tensor in tree.tensors())
        self.without_bytes = {id(t) for t in self.reach.tensors if t.is_meta} if on_device else set()
        """Ids of tensors without bytes, as those of a skeleton for ``torch.func.functional_call``."""
        self._left = set() if step.train_step is not None else set(map(id, gradients))
        self._in_graphs = SavedByGraphs(self.reach.tensors, [*tree.tensors(), *gradients])
        self.has_idle_scaler = not all(scaler.is_enabled() for scaler in self.reach.scalers)
        """Whether a gradient scaler does nothing, as one created where torch finds no GPU."""
        self.has_unseen_graphs = not since("2.10") and any(tensor.grad_fn is not None for tensor in self.reach.tensors)

    @contextmanager
    def copied(
        self, own: Change, other: Change, away: Away, moved: bool = False, again: Change | None = None
    ) -> Iterator[StepCopy]:
        """Yield a copy of the model and its step for which the names in their code stand, inside the block.

        ``own`` returns the replacements of the plain tensors that the model's modules and the loss's hold, ``other``
        those of all others. If the steps are ``moved`` to another device than the model's, a tensor that nothing moves
        along counts only if used, and ``again`` replaces a buffer for every module but the first that has it.
        """
        step = self.step

        def beside(tensor: Tensor) -> Tensor:
            return tensor if isinstance(tensor, Fake) or not is_plain(tensor) else other(tensor)

        loss_modules = with_loss(self.tree, step)[len(self.tree.modules) :]
        tree, copier = copied_tree(self.tree, own, beside, away, loss_modules)
        for tensor in tensors_in(self.modules):
            copier.of(tensor)
        if again is not None:
            _separate_buffers([*self.tree.modules, *loss_modules, *self.modules], copier, again)
        rest = [tensor for tensor in self.reach.tensors if id(tensor) not in self._left]
        for tensor in rest:
            copier.of(tensor)
        loss = None if step.loss is None else replace(step.loss, function=copier.of(step.loss.function))
        new_step = replace(step, loss=loss, optimizer=copier.of(step.optimizer), train_step=copier.of(step.train_step))
        caches = without_cached_tensors(
            [*self.tree.modules, *filter(None, (step.train_step, step.loss))], self.reach.caches
        )
        copy = StepCopy(tree, new_step, copier)
        copy.take_over([*self.tree.tensors(), *tensors_in(self.modules), *rest], self._left)
        with names_replaced(copier, self.reach), caches:
            copy.hold_others()
            copy.without_bytes = frozenset(id(copier.of(t)) for t in self.reach.tensors if id(t) in self.without_bytes)
            copy.prior = [*self._holdings(copier, beside, moved)]
            yield copy

    def _holdings(self, copier: Copier, make: Change, moved: bool) -> Iterator[PriorTensor]:
        """Yield the tensors that exist before the steps, each with its kind and its module's number.

        One that only a graph keeps is represented by ``make``'s.
        """
        known = self._known()
        moving = {id(tensor) for tensor in tensors_in(self.modules)} | known.keys()
        standing: dict[int, Tensor] = {}
        for reached in self.reach.tensors:
            if id(reached) in self._own or id(reached) in self._left or id(reached) in self.without_bytes:
                continue
            tensor = standing[id(reached)] = copier.of(reached)
            learns = tensor.is_leaf and tensor.requires_grad
            kind, owner = known.get(id(reached), ("parameters" if learns else "buffers", OUTSIDE))
            stays = moved and kind == "buffers" and id(reached) not in moving
            yield PriorTensor(tensor, kind, owner, stays or id(reached) in self.reach.of_packages)
        counted = {id(copier.of(tensor)) for tensor in (*self.tree.tensors(), *self.reach.tensors)}
        for buffer in tensors_in(map(copier.of, self.modules)):
            if id(buffer) not in counted:  # A copy of one that another module has too.
                yield PriorTensor(buffer, "buffers", OUTSIDE)
        of_model = {id(tensor): copier.of(tensor) for tensor in self.tree.tensors()}
        for tensor in self._in_graphs.stand_ins({**of_model, **standing}.__getitem__, make):
            yield PriorTensor(tensor, "buffers", OUTSIDE)

    def _known(self) -> dict[int, tuple[str, int]]:
        """Return the known kinds and owners of tensors, by their ids."""
        known: dict[int, tuple[str, int]] = {}
        for module in self.modules:
            known.update((id(parameter), ("parameters", OUTSIDE)) for parameter in _parameters(module))
        for optimizer in self.reach.optimizers:
            known.update((id(p), ("parameters", OUTSIDE)) for group in optimizer.param_groups for p in group["params"])
            for parameter, state in optimizer.state.items():
                owner = self._owners.get(id(parameter), OUTSIDE)
                known.update((id(value), ("optimizer_state", owner)) for value in _values(state))
        for tensor in self.reach.tensors:
            gradient = gradient_of(tensor)
            if gradient is not None:
                known[id(gradient)] = ("gradients", self._owners.get(id(tensor), OUTSIDE))
        return known


def _separate_buffers(modules: Iterable[nn.Module], copier: Copier, again: Change) -> None:
    """Put ``again(b)`` into the copy of every module but the first that holds a buffer ``b``.

    ``Module.to`` copies it for each of them, while a parameter remains the same object.
    """
    seen: set[int] = set()
    for module in dict.fromkeys(modules):
        for name, buffer in vars(module).get("_buffers", {}).items():
            if buffer is not None and not isinstance(buffer, nn.Parameter):
                if id(buffer) in seen:
                    copier.of(module)._buffers[name] = again(buffer)
                seen.add(id(buffer))


def _moving_states(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the state that lies where its parameters do: all but counts of steps that the CPU reads.

    Source: torch/optim/optimizer.py, ``_process_value_according_to_param_policy``.
    """
    on_card = {id(p) for g in optimizer.param_groups if g.get("fused") or g.get("capturable") for p in g["params"]}
    for parameter, state in optimizer.state.items():
        named = state.items() if isinstance(state, dict) else ()
        for name, value in named:
            if isinstance(value, Tensor) and (name != "step" or id(parameter) in on_card):
                yield value


def _parameters(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module._parameters.values() if parameter is not None]


def _values(state: Any) -> Iterable[Any]:
    return state.values() if isinstance(state, dict) else ()
