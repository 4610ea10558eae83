"""Objects that steps use besides the model and its inputs: other models, optimizer state, tensors in closures."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ..live import compat
from ..live.exchange import Exchange, Make, StandIns
from ..live.fakes import Fake, is_plain
from ..live.function_caches import without_cached_tensors
from ..live.graphs import SavedByGraphs, references_in_graphs
from ..live.modules import ModuleTree, tensors_in
from ..live.offloading import kept_in_memory
from ..live.reach import Reached
from ..live.versions import since
from ..trace.questions import OUTSIDE
from ..trace.restore import restored_reach
from ..trace.swap import swap_tensors
from ..trace.user_logs import LOGS, Additions, added_to, items_of
from .account import PriorTensor
from .iterators import iterators_copied
from .optimizers import stepping
from .rebindable_containers import RebindableContainers
from .rebindable_tensors import RebindableTensors
from .runner import Step

UNSEEN = "the tensors they save are not counted, because torch exposes them only since 2.10"


def reached_by(tree: ModuleTree, step: Step) -> Reached:
    """Return what the code of a model and its step reaches."""
    return Reached([*tree.modules, step.train_step, step.loss, step.optimizer, *compat.global_hooks])


class Surroundings:
    """Everything a step's code reaches: its own functions, the model's hooks, and all objects held from there.

    An optimizer held only by a library is found too if it has the model's parameters; its tensors are then exchanged,
    and recorded once it has stepped.
    """

    def __init__(self, tree: ModuleTree, step: Step) -> None:
        self.tree = tree
        self._own = {id(tensor) for tensor in tree.tensors()}
        parameters = {id(p): i for i, module in reversed(list(enumerate(tree.modules))) for p in _parameters(module)}
        steps_itself = step.train_step is not None or any(t._post_accumulate_grad_hooks for t in tree.tensors())
        self.stepping = stepping() if steps_itself else []
        self.reach = reached_by(tree, step)
        self._of_packages = [*tree.modules, *filter(None, (step.train_step, step.loss))]
        self._lone = RebindableContainers(self.reach)
        self.alone = RebindableTensors(self.reach, references_in_graphs(self.reach.tensors), self._lone.parameters)
        self.modules = [module for module in self.reach.modules if id(module) not in tree.index]
        counters = {id(module.n_averaged) for module in self.modules if isinstance(module, AveragedModel)}
        self.moving = {id(tensor) for tensor in tensors_in(self.modules)} - counters
        """Ids of tensors outside the model that move with it, single numbers too: those of other modules, and states.

        ``AveragedModel`` makes its counter on the CPU, wherever the model is.
        """
        self._owners = parameters
        gradients = [t.grad for t in self.reach.tensors if id(t) in parameters and t.is_leaf and t.grad is not None]
        self.without_bytes = _on_meta(self.reach.tensors) if any(not t.is_meta for t in tree.tensors()) else set()
        self._left = set() if step.train_step is not None else {id(gradient) for gradient in gradients}
        known = [optimizer for optimizer in self.stepping if isinstance(optimizer, torch.optim.Optimizer)]
        of_model = [
            optimizer
            for optimizer in known
            if any(id(p) in parameters for g in optimizer.param_groups for p in g["params"])
        ]
        self._hidden = Reached([optimizer.state for optimizer in of_model])
        for optimizer in {*self.reach.optimizers, *of_model}:
            self.moving.update(map(id, _moving_states(optimizer)))
        away = {id(tensor) for module in tree.modules for tensor in kept_in_memory(module)}
        self.alone.ids -= self._left | away  # Offloaded weights are moved by their own hooks.
        self._lone.restrict_to(self.alone.ids)
        lasting = [tensor for tensor in (*tree.tensors(), *self.reach.tensors) if id(tensor) not in self.alone.ids]
        self._in_graphs = SavedByGraphs(self.reach.tensors, [*lasting, *gradients])
        scalers = [value for value in self.reach.mutable if isinstance(value, torch.amp.GradScaler)]
        self.has_idle_scaler = not all(scaler.is_enabled() for scaler in scalers)
        """Whether a gradient scaler does nothing, as one created where torch finds no GPU."""
        self.has_unseen_graphs = not since("2.10") and any(tensor.grad_fn is not None for tensor in self.reach.tensors)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the model and all reachable objects that the steps change.

        What they add to a user's logs is kept (:func:`restored_reach`).
        """
        every = [*self.tree.modules, *self.modules]
        try:
            with (
                restored_reach(every, self.reach, self.stepping, self._hidden.mutable) as added,
                without_cached_tensors(self._of_packages, self.reach.caches),
                iterators_copied(self.reach),
                self._lone.copied(partial(_note_additions, added)),
            ):
                yield
        finally:
            for reached in (self.reach, self._hidden):  # The next search counts references to them.
                for found in (reached.tensors, reached.mutable, reached.modules, reached.optimizers):
                    found.clear()
            self.modules.clear()
            for holding in (self._in_graphs, self._lone, self.alone):
                holding.clear()

    @contextmanager
    def alone_exchanged(self, make: Make) -> Iterator[StandIns]:
        """Replace the tensors that only containers hold by ``make``'s stand-ins; yield these by the originals' ids."""
        with self.alone.exchanged(make, self._lone.copy_of) as stand_ins:
            self._lone.forget_copies()
            yield stand_ins

    def put(self, exchange: Exchange, make: Make, but: Container[int] = (), stand_ins: StandIns | None = None) -> None:
        """Exchange the reached tensors that are not exchanged yet, except those whose ids are in ``but``.

        Gradients among them get a stand-in, which is added to ``stand_ins``.
        """
        exchange.entries = self.alone
        standing = {id(stand_in()) for stand_in in (stand_ins or {}).values()}

        def put(tensor: Tensor) -> Tensor:
            is_put = id(tensor) in standing or id(tensor) in but or isinstance(tensor, Fake)
            return tensor if is_put else exchange.put(tensor, make)

        swap_tensors(self.modules, put, put)
        for tensor in [*self.reach.tensors, *self._hidden.tensors]:
            if is_plain(tensor) and id(tensor) not in self._left and id(tensor) not in but:
                exchange.put(tensor, make)
        exchange.give_gradients(make, but, stand_ins)

    def holdings(self, stand_ins: StandIns, make: Make, moved: bool = False) -> Iterator[PriorTensor]:
        """Yield the tensors that exist before the steps, each with its kind and its module's number.

        A tensor that is set aside is represented by its stand-in, and one that only a graph keeps by ``make``'s. If the
        steps are ``moved`` to another device than the model's, a tensor that nothing moves along counts only if used.
        """
        known = self._known()
        moving = {id(tensor) for tensor in tensors_in(self.modules)} | known.keys()
        standing = {id(tensor): tensor for tensor in self.reach.tensors}
        for reached in self.reach.tensors:
            if id(reached) in self._own or id(reached) in self._left or id(reached) in self.without_bytes:
                continue
            tensor = stand_ins[id(reached)]() if id(reached) in stand_ins else reached
            assert tensor is not None
            standing[id(reached)] = tensor
            learns = tensor.is_leaf and tensor.requires_grad
            kind, owner = known.get(id(tensor), ("parameters" if learns else "buffers", OUTSIDE))
            stays = moved and kind == "buffers" and moving.isdisjoint((id(tensor), id(reached)))
            yield PriorTensor(tensor, kind, owner, stays or id(reached) in self.reach.of_packages)
        counted = {*standing, *map(id, standing.values()), *self._own}
        for buffer in tensors_in(self.modules):
            if id(buffer) not in counted:  # A copy of one that another module has too.
                yield PriorTensor(buffer, "buffers", OUTSIDE)
        for tensor in self._in_graphs.stand_ins(standing.__getitem__, make):
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
            if tensor.is_leaf and tensor.grad is not None:
                known[id(tensor.grad)] = ("gradients", self._owners.get(id(tensor), OUTSIDE))
        return known


def _note_additions(added: Additions, original: Any, now: Any) -> None:
    """Note what was added to the copy of a user's log."""
    if type(now) is type(original) in LOGS:
        added.add(original, added_to(now, items_of(original)))


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


def _on_meta(tensors: Iterable[Tensor]) -> set[int]:
    """Return the ids of tensors without bytes, as those of a skeleton for ``torch.func.functional_call``."""
    return {id(tensor) for tensor in tensors if tensor.is_meta}


def _parameters(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module._parameters.values() if parameter is not None]


def _values(state: Any) -> Sequence[Any]:
    return list(state.values()) if isinstance(state, dict) else []
