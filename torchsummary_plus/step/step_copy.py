"""A step, and the copy of a model and its step that a pass runs, with everything else that the step reaches.

That is other models, optimizer state, tensors in closures (:mod:`..live.copying`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ..live.copying import Copier
from ..live.fakes import Fake, is_plain
from ..live.reachable import Reachable, gradient_of, names_replaced
from ..live.weights import Away, Change
from ..table.environments import copied_tree
from ..table.forward import deep_stack
from ..table.modules import ModuleTree, tensors_in
from ..trace.values import OUTSIDE
from .training import Loss


@dataclass(frozen=True)
class Step:
    """The step to record.

    ``mode`` "train" or "eval"; ``optimizer`` None, a name, a class or a callable from parameters; ``loss`` None for the
    output's own, else its sum; ``autocast`` a dtype; ``train_step`` the user's own ``(model, *inputs)``;
    ``keep_output`` for a loop that keeps the output until the next one; ``steps`` the number of repetitions, each of
    ``micro_batches`` forwards and backwards whose gradients add up.
    """

    mode: str = "train"
    optimizer: Any = None
    loss: Loss | None = None
    autocast: torch.dtype | None = None
    train_step: Callable[..., Any] | None = None
    keep_output: bool = False
    steps: int = 2
    micro_batches: int = 1

    def copied(self, copier: Copier) -> Step:
        """Return the step with copies of its functions, modules and optimizer."""
        loss = None if self.loss is None else replace(self.loss, function=copier.of(self.loss.function))
        return replace(self, loss=loss, optimizer=copier.of(self.optimizer), train_step=copier.of(self.train_step))


class PriorTensor(NamedTuple):
    """A tensor that exists before the steps, its kind, and its module's number.

    It counts only ``if_used`` where an installed package keeps it, as most packages keep more than a step needs.
    """

    tensor: Tensor
    kind: str
    owner: int
    if_used: bool = False


class StepCopy:
    """A copy of a model and its step.

    Until :meth:`finish`, it knows the replacement of every tensor, and holds those that exist before the step.
    """

    def __init__(self, tree: ModuleTree, step: Step, copier: Copier | None = None) -> None:
        self.tree = tree
        self.step = step
        self.prior: list[PriorTensor] = []
        """Tensors besides the model; cleared once recorded, so that only the program holds them."""
        self.without_bytes: frozenset[int] = frozenset()
        """Ids of tensors on ``meta`` beside a model that is not: a skeleton in a plain list is no memory."""
        self.replacements: list[Tensor] = []
        self.notes: Sequence[str] = ()
        """Assumptions about what exists before the steps."""
        self._copier = copier or Copier(lambda tensor: tensor)
        self.known: Callable[[Tensor], Tensor | None] = self._copier.known
        """Returns the replacement of a tensor that the steps reach, if it is one."""
        self._hooks: list[tuple[weakref.ref[Tensor], list[Any], list[Any]]] = []
        self._held_elsewhere: list[Any] = []
        """Copies of what only variables hold, or objects that are shared, such as a logger."""

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

    def finish(self) -> None:
        """Drop all references to replacements, so that only the copies hold them."""
        for held in (self.prior, self.replacements, self._hooks, self._copier):
            held.clear()
        self.tree.release()


def with_loss(tree: ModuleTree, step: Step) -> list[nn.Module]:
    """Return the modules whose tensors a step uses: the model's, and those of a loss outside it."""
    known = set(map(id, tree.modules))
    return [*tree.modules, *(module for module in (step.loss.modules if step.loss else []) if id(module) not in known)]


UNSEEN = "autograd graphs from before the step: the tensors they save are not counted"


def reachable_from(tree: ModuleTree, step: Step) -> Reachable:
    """Return what the code of a model and its step reaches."""
    with deep_stack():
        return Reachable([*tree.modules, step.train_step, step.loss, step.optimizer])


class Surroundings:
    """Everything a step's code reaches: its own functions, the model's hooks, and all objects held from there."""

    def __init__(self, tree: ModuleTree, step: Step) -> None:
        self.tree = tree
        self.step = step
        owners = {id(p): i for i, module in reversed(list(enumerate(tree.modules))) for p in _parameters(module)}
        self.reachable = reachable_from(tree, step)
        self.modules = [module for module in self.reachable.modules if id(module) not in tree.index]
        counters = {id(module.n_averaged) for module in self.modules if isinstance(module, AveragedModel)}
        self.moving = {id(tensor) for tensor in tensors_in(self.modules)} - counters
        """Ids of tensors outside the model that move with it, single numbers too: those of other modules, and states.

        ``AveragedModel`` makes its counter on the CPU, wherever the model is.
        """
        self._kinds = {id(p): ("parameters", OUTSIDE) for module in self.modules for p in _parameters(module)}
        """By id: the kind of a tensor outside the model, and its module's number."""
        for optimizer in self.reachable.optimizers:
            # State lies where its parameters do: all but counts of steps that the CPU reads.
            # Source: torch/optim/optimizer.py, ``_process_value_according_to_param_policy``.
            groups = optimizer.param_groups
            on_card = {id(p) for g in groups if g.get("fused") or g.get("capturable") for p in g["params"]}
            self._kinds.update((id(p), ("parameters", OUTSIDE)) for group in groups for p in group["params"])
            for parameter, state in optimizer.state.items():
                for name, value in state.items() if isinstance(state, dict) else ():
                    self._kinds[id(value)] = "optimizer_state", owners.get(id(parameter), OUTSIDE)
                    if isinstance(value, Tensor) and (name != "step" or id(parameter) in on_card):
                        self.moving.add(id(value))
        self._left: set[int] = set()
        """Ids of the model's gradients, which are left behind unless the step is the user's own."""
        for tensor in self.reachable.tensors:
            gradient = gradient_of(tensor)
            if gradient is not None:
                self._kinds[id(gradient)] = "gradients", owners.get(id(tensor), OUTSIDE)
                if step.train_step is None and id(tensor) in owners:
                    self._left.add(id(gradient))
        on_device = any(not tensor.is_meta for tensor in tree.tensors())
        self.without_bytes = {id(t) for t in self.reachable.tensors if t.is_meta} if on_device else set()
        """Ids of tensors without bytes, as those of a skeleton for ``torch.func.functional_call``."""
        self.has_idle_scaler = not all(scaler.is_enabled() for scaler in self.reachable.scalers)
        """Whether a gradient scaler does nothing, as one created where torch finds no GPU."""
        self.notes = [UNSEEN] if any(tensor.grad_fn is not None for tensor in self.reachable.tensors) else []
        """Assumptions about what exists before the steps."""

    @contextmanager
    def copied(
        self, own: Change, other: Change, away: Away | None = None, moved: bool = False, again: Change | None = None
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
        seen: set[int] = set()  # ``Module.to`` copies a buffer for every module, while a parameter stays one object.
        for module in dict.fromkeys([*self.tree.modules, *loss_modules, *self.modules]) if again is not None else ():
            for name, buffer in vars(module).get("_buffers", {}).items():
                if buffer is not None and not isinstance(buffer, nn.Parameter):
                    if id(buffer) in seen and again is not None:
                        copier.of(module)._buffers[name] = again(buffer)
                    seen.add(id(buffer))
        rest = [tensor for tensor in self.reachable.tensors if id(tensor) not in self._left]
        for tensor in rest:
            copier.of(tensor)
        copy = StepCopy(tree, step.copied(copier), copier)
        copy.take_over([*self.tree.tensors(), *tensors_in(self.modules), *rest], self._left)
        with names_replaced(copier, self.reachable):
            copy.hold_others()
            copy.without_bytes = frozenset(
                id(copier.of(t)) for t in self.reachable.tensors if id(t) in self.without_bytes
            )
            copy.notes = self.notes
            copy.prior = [*self._holdings(copier, moved)]
            yield copy

    def _holdings(self, copier: Copier, moved: bool) -> Iterator[PriorTensor]:
        """Yield the tensors that exist before the steps, each with its kind and its module's number."""
        left_out = {id(tensor) for tensor in self.tree.tensors()} | self._left | self.without_bytes
        for reached in self.reachable.tensors:
            if id(reached) in left_out:
                continue
            tensor = copier.of(reached)
            learns = tensor.is_leaf and tensor.requires_grad
            kind, owner = self._kinds.get(id(reached), ("parameters" if learns else "buffers", OUTSIDE))
            stays = moved and kind == "buffers" and id(reached) not in self.moving
            yield PriorTensor(tensor, kind, owner, stays or id(reached) in self.reachable.of_packages)
        counted = {id(copier.of(tensor)) for tensor in (*self.tree.tensors(), *self.reachable.tensors)}
        for buffer in tensors_in(map(copier.of, self.modules)):
            if id(buffer) not in counted:  # A copy of one that another module has too.
                yield PriorTensor(buffer, "buffers", OUTSIDE)


def _parameters(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module._parameters.values() if parameter is not None]
