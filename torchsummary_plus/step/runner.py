"""A step, the copy that a pass runs of a model and of everything else that its step reaches, and its phases.

What a step reaches is other models, optimizer state, tensors in closures (:mod:`..live.copying`). Its phases (forward,
loss, backward, optimizer, zero_grad) are reported to an account.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers
from torch.optim.swa_utils import AveragedModel

from ..data.errors import UnsupportedError
from ..data.memory_records import SUMMED, WITHOUT_GRAPH
from ..live import compat
from ..live.copying import Copier
from ..live.fakes import Fake, is_plain
from ..live.isolation import in_pass, is_beside, safe_point
from ..live.reachable import Reachable, gradient_of, names_replaced
from ..live.structures import all_tensors, kinds_left, not_run, suspended_code
from ..live.weights import Away, Change, offloaded, packed_blocks, remade
from ..table.environments import copied_tree
from ..table.forward import Pass, deep_stack
from ..table.inputs import Example, realise
from ..table.modules import ModuleTree, tensors_in
from ..trace.values import OUTSIDE, ValueSource
from .training import Loss, Make, closure_of, default_loss, needs_closure, not_converging, optimizer_maker, own_loss


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


class Steps:
    """One model's steps, run unchanged and reported to an account: a ledger, marks or a stopwatch.

    It is notified of tensors' kinds and modules, and of each phase that begins: "setup", "forward" (with the loss),
    "backward", "optimizer", and "end": whatever follows one of the last two until a module is called again, such as
    gradient clipping or the loss of a micro-batch.
    """

    def __init__(self, watch: Pass, device: torch.device, account: Any, copy: StepCopy) -> None:
        self.watch = watch
        self.tree = tree = watch.tree
        self.model = tree.modules[0]
        self.device = device
        self.account = account
        self.copy = copy
        self.step = step = copy.step
        self.doing = "forward"
        """What the step is doing, to name in an error."""
        self.optimizer: torch.optim.Optimizer | None = None
        """The optimizer of these steps, which lives with its state as long as they do."""
        self.output: Any = None
        """The output that the loop keeps until the next forward's output replaces it."""
        self.stepping: list[ExitStack] = []
        """Exit stacks of the active optimizer steps, outermost first."""
        self.parameters: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        """Each parameter by id, with the first module that holds it; a loss's parameters belong to no module."""
        self.targets: Any = None
        """The loss's targets; if made from the output, from the first one on."""
        self.packed: list[tuple[Tensor, int]] = []
        """Stand-ins for the weights that quantized modules keep in C++ objects, with the modules' numbers."""
        self.answers: ValueSource | None = None
        """What answers the code that asks for values; None in real steps."""
        self.notes = dict.fromkeys(copy.notes)
        """Assumptions about what exists before the steps and about the loss, without repetition."""
        self.loss_modules = [] if step.loss is None else step.loss.modules
        owned = [*enumerate(tree.modules), *((OUTSIDE, module) for module in self.loss_modules)]
        for index, module in owned:
            for parameter in _parameters(module):
                self.parameters.setdefault(id(parameter), (weakref.ref(parameter), index))

    def _classify_initial_tensors(self, args: Any, kwargs: Any) -> None:
        """Record tensors that exist before the steps: the model's, then others, such as averages, then the inputs."""
        self._classify_model()
        for holding in self.copy.prior:
            if not holding.if_used:
                self.account.classify([holding.tensor], holding.kind, holding.owner)
        if self.copy.prior:
            self._classify_model()  # What shares the memory of its tensors does not change their kinds.
        self.account.classify(all_tensors((args, kwargs, self.targets)), "inputs")
        for holding in self.copy.prior:
            if holding.if_used:
                self.account.record_if_used(holding)

    def _classify_model(self) -> None:
        for tensor, owner in self.packed:
            self.account.classify([tensor], "parameters", owner)
        moved = [(index, self.tree.modules[index]) for index in self.tree.moving_order()]
        for index, module in [*moved, *((OUTSIDE, module) for module in self.loss_modules)]:
            if index >= self.tree.unregistered and all(id(t) in self.copy.without_bytes for t in tensors_in([module])):
                continue
            if self.device.type == "cuda" and self.answers is not None:  # Real ones lie where they are.
                self.account.join(flattened(module), index)
            for parameter in _parameters(module):
                self.account.classify([parameter], "parameters", self._owner_of(parameter, index))
            self.account.classify((b for b in module._buffers.values() if b is not None), "buffers", index)
            self.account.classify(offloaded(module), "parameters", index)

    def _owner_of(self, parameter: Tensor, otherwise: int) -> int:
        reference, owner = self.parameters.get(id(parameter), (None, otherwise))
        return owner if reference is not None and reference() is parameter else otherwise

    def make_packed(self, make: Make) -> None:
        """Make stand-ins for the packed weights and biases of quantized modules, which only the CPU runs."""
        modules = self.tree.modules if self.device.type == "cpu" else []
        blocks, elsewhere, unreadable = packed_blocks(modules)
        self.packed = [(make((nbytes,), torch.uint8), index) for nbytes, index in blocks]
        if elsewhere:
            self.notes[f"packed weights of up to {elsewhere:,} bytes in their library's memory are not counted"] = None
        if unreadable:
            note = f"packed weights of {unreadable} modules that their library cannot unpack are not counted"
            self.notes[note] = None

    def make_inputs(self, example: Example, make: Make, change: Change) -> tuple[Any, Any, list[Tensor]]:
        """Make the arguments of the steps, and the loss's targets; return also which inputs are new.

        ``change`` replaces a tensor of the user's that the steps do not reach otherwise.
        """

        @cache  # torch asks whether the inputs of an attention are one tensor (``_in_projection_packed``).
        def convert(tensor: Tensor) -> Tensor:
            known = self.copy.known(tensor)
            return remade(tensor, change) if known is None else known

        if any(tensor.grad_fn is not None for tensor in all_tensors((example.args, example.kwargs))):
            self.notes[WITHOUT_GRAPH] = None
        batch, loss = example.batch_size or 1, self.step.loss
        args, kwargs, new_inputs = realise(example, batch, self.tree, make, convert, self.step.train_step)
        if loss is not None and self.step.mode == "train":
            self.targets = loss.targets(batch, self.tree.dtype(), make, convert)
        return args, kwargs, new_inputs

    def assumptions(self, others: Sequence[str]) -> tuple[str, ...]:
        """Return the assumptions about the loss and the modules' modes, and the others."""
        left_out = self.tree.left_out if self.step.train_step is None else ()
        return (*self.notes, *self.tree.own_modes, *left_out, *others)

    def each(self) -> Iterator[None]:
        """Yield at the beginning of each step; between two, the loop holds its output."""
        self.optimizer = self._optimizer()
        for number in range(self.step.steps):
            self.account.enter("forward", number)
            yield

    def run(self, args: Any, kwargs: Any) -> None:
        """Run all steps for real; what a loop holds between two steps is live at the end."""
        self._classify_initial_tensors(args, kwargs)
        with self._states_named(), self._backwards_named():
            self.copy.give_hooks()
            self.copy.finish()
            for _ in self.each():
                self.run_once(args, kwargs)
            self.account.stop()
            self.output = None

    def run_once(self, args: Any, kwargs: Any, in_closure: bool = False) -> Tensor | None:
        """Run one step, or return the last loss to an optimizer that calls this ``in_closure``.

        Losses are divided by the number of micro-batches, as trainers do. The output is kept if the loop keeps it. Code
        in it that did not run is noted; raises :class:`UnsupportedError` if there is nothing else.
        """
        if self.step.train_step is not None:
            self.doing = "train_step"
            with self.autocast():
                self.step.train_step(self.tree.called, *args, **kwargs)
            return None

        def closure() -> Tensor | None:
            assert self.optimizer is not None
            self.optimizer.zero_grad()
            return self.run_once(args, kwargs, in_closure=True)

        if self.optimizer is not None and not in_closure and needs_closure(self.optimizer):
            self.doing = "optimizer"
            self.optimizer.step(closure)  # type: ignore[arg-type]
            self.optimizer.zero_grad()
            return None
        for remaining in reversed(range(self.step.micro_batches)):
            self.account.enter("forward", self.account.step)
            self.doing = "forward"
            with self.autocast():
                output = self.model(*args, **kwargs)
                left = not_run(kinds_left(suspended_code(output)))
                if left and not all_tensors(output):
                    raise UnsupportedError(f"{left}, so its memory is unknown; pass a train_step that consumes it")
                if left:
                    self.notes[left] = None
                self.output = output if self.step.keep_output else None
                if self.step.mode == "eval":
                    self.account.enter("end", self.account.step)
                    return None
                self.doing = "loss"
                loss = self._loss(output, (args, kwargs))
                del output
            if self.step.micro_batches > 1:
                loss = loss / self.step.micro_batches
            self.doing = "backward"
            loss.backward()
            if remaining:
                with self._phase("backward"):
                    del loss
        self.doing = "optimizer"
        if in_closure:
            return loss
        with self._phase("backward"):
            del loss
        self._update(closure)
        return None

    def _update(self, closure: Callable[[], Tensor | None] | None = None) -> None:
        """Let the optimizer step, with the ``closure`` if it asks for one, and drop the gradients."""
        self.doing = "optimizer"
        if self.optimizer is None:
            for module in (self.model, *self.loss_modules[:1]):
                module.zero_grad()
            return
        under_way = len(self.stepping)
        try:
            self.optimizer.step()
        except Exception as error:
            if closure is None or "closure" not in str(error):  # Some, as SAM, need one for existing gradients too.
                raise
            while len(self.stepping) > under_way:
                self.stepping.pop().close()
            self.optimizer.step(closure)  # type: ignore[arg-type]
        self.optimizer.zero_grad()

    def _loss(self, output: Any, inputs: Any) -> Tensor:
        """Return the output's loss; targets made from the output are kept."""
        if self.step.loss is None:
            if own_loss(output) is None:
                self.notes[SUMMED] = None
            return default_loss(output)
        loss, targets, note = self.step.loss(output, self.targets, inputs)
        if note:
            self.notes[note] = None
            self.account.classify(all_tensors(targets), "inputs")
        self.targets = targets
        return loss

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a forward."""
        if self.step.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.step.autocast)

    @contextmanager
    def _phase(self, phase: str, after: str = "") -> Iterator[None]:
        """Enter a nested phase; the outer one continues unless ``after`` follows."""
        outer = self.account.phase
        self.account.enter(phase, self.account.step)
        try:
            with self.watch.state.override(in_optimizer=phase == "optimizer"):
                yield
        finally:
            self.account.enter(after or outer, self.account.step)

    @contextmanager
    def _backwards_named(self) -> Iterator[None]:
        """Set the phase to backward from the autograd engine's start until ``backward`` returns.

        The forward is then over; after other requests for gradients (``torch.autograd.grad``, inside a module) it
        continues.
        """
        engine: Any = torch.autograd
        run, backward = engine._engine_run_backward, engine.backward
        under_way: list[bool] = []

        def run_named(*args: Any, **kwargs: Any) -> Any:
            with self._phase("backward", "backward" if under_way else ""):
                return run(*args, **kwargs)

        def backward_named(*args: Any, **kwargs: Any) -> None:
            outer = self.account.phase
            under_way.append(True)
            try:
                backward(*args, **kwargs)
            finally:
                under_way.pop()
                ends = outer == "forward" and self.watch.frame is None
                self.account.enter("end" if ends else outer, self.account.step)

        names = {"_engine_run_backward": in_pass(run_named, run), "backward": in_pass(backward_named, backward)}
        with compat.replaced({(engine, name): function for name, function in names.items()}):
            yield

    @contextmanager
    def _states_named(self) -> Iterator[None]:
        """Record gradients and optimizers' states as such, for the parameter's module, as soon as they exist.

        During an optimizer's step, the phase is "optimizer", and in the closure that it calls, "forward".
        """
        stepping = self.stepping

        def name(index: int, parameter: Tensor) -> None:
            safe_point()
            with compat.no_function(), self.watch.state.override(in_engine=False):
                if parameter.grad is not None:
                    self.account.classify([parameter.grad], "gradients", index)

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
            if is_beside():
                return None
            stepping.append(ExitStack())
            stepping[-1].enter_context(self._phase("optimizer", "end" if self.account.phase == "forward" else ""))
            if self.answers is not None:
                stepping[-1].enter_context(not_converging(optimizer, self.account, self.answers))
            return closure_of(args, kwargs, self._phase("forward"))

        def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if is_beside():
                return
            stepping.pop().close()
            for stepped, state in optimizer.state.items():
                self.account.classify(all_tensors(state), "optimizer_state", self._owner_of(stepped, OUTSIDE))

        handles = [
            parameter.register_post_accumulate_grad_hook(partial(name, owner))
            for reference, owner in self.parameters.values()
            if (parameter := reference()) is not None and parameter.requires_grad
        ]
        parameter = None  # A step may replace it.
        handles.append(optimizers.register_optimizer_step_pre_hook(before))
        handles.append(optimizers.register_optimizer_step_post_hook(after))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _optimizer(self) -> torch.optim.Optimizer | None:
        """Return the steps' optimizer: the copy of one that was given, with its state, if it holds any parameter."""
        self.doing = "optimizer"
        given, maker = self.step.optimizer, optimizer_maker(self.step.optimizer)
        if maker is None or self.step.mode == "eval":
            return None
        registered = {key: at() for key, (at, owner) in self.parameters.items() if owner < self.tree.unregistered}
        trained = {key: p for key, p in registered.items() if p is not None and p.requires_grad}
        groups = given.param_groups if isinstance(given, optimizers.Optimizer) else []
        held = {id(parameter) for group in groups for parameter in group["params"]}
        optimizer: torch.optim.Optimizer
        if held & self.parameters.keys():
            optimizer = given
            if left := trained.keys() - held:
                self.notes[
                    f"the optimizer trains {len(trained) - len(left):,} of {len(trained):,} parameters that require "
                    "gradients; the gradients of the others stay from step to step"
                ] = None
        else:
            optimizer = maker(list(trained.values()))
        set_to_train = getattr(optimizer, "train", None)
        if callable(set_to_train):  # Of two modes, as schedule-free optimizers have.
            set_to_train()
        return optimizer


ACCEPTED = (torch.float16, torch.float32, torch.float64)
"""The dtypes that ``torch.backends.cudnn.is_acceptable`` accepts."""


def flattened(module: nn.Module) -> list[Tensor]:
    """Return the weights that a module keeps in one block on a GPU; none if they are replaced, tied or not cuDNN's."""
    if not isinstance(module, nn.RNNBase) or not torch.backends.cudnn.enabled:
        return []
    weights = [module._parameters.get(name) for name in module._flat_weights_names]
    present = [weight for weight in weights if weight is not None]
    if len({id(weight) for weight in present}) < len(weights) or len({weight.dtype for weight in present}) > 1:
        return []
    return list(present) if present and present[0].dtype in ACCEPTED else []
