"""What a step is: forward, loss, backward, optimizer, zero_grad; told to whoever keeps account of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

from ..data.errors import InputError
from ..data.memory_records import SUMMED
from ..live.inputs import Example
from ..live.modules import ModuleTree
from ..live.offloading import offloaded
from ..live.structures import all_tensors
from ..trace.passes import Pass
from ..trace.questions import OUTSIDE
from .losses import Convert, Loss, Make
from .optimizers import closure_of, needs_closure, optimizer_maker, set_to_train


@dataclass(frozen=True)
class Step:
    """The step to keep books of.

    ``mode`` "train" or "eval"; ``optimizer`` None, a name, a class or a callable from parameters; ``loss`` None for the
    output's own, else its sum; ``autocast`` a dtype; ``train_step`` the user's own ``(model, *inputs)``;
    ``keep_output`` for a loop that keeps the output until the next one; ``steps`` how many times it runs.
    """

    mode: str = "train"
    optimizer: Any = None
    loss: Loss | None = None
    autocast: torch.dtype | None = None
    train_step: Callable[..., Any] | None = None
    keep_output: bool = False
    steps: int = 2


Held = tuple[Tensor, str, int]
"""A tensor that is there before the steps, with its kind and the number of the module that it is for."""


class Account(Protocol):
    """Whoever is told what tensors are for, and which phase of which step begins.

    Phases are "setup", "forward" (with the loss), "backward", "optimizer", and "end": what comes after one of the last
    two until a module is called again, such as gradients that are clipped and let go, or the loss of a micro-batch.
    """

    phase: str
    step: int

    def hold(self, tensors: Iterable[Tensor], kind: str, owner: int = OUTSIDE) -> None: ...

    def enter(self, phase: str, step: int) -> None: ...


class Steps:
    """The steps of one model, run as they are, and told to an account."""

    def __init__(
        self, watch: Pass, device: torch.device, account: Account, step: Step, outside: list[Held] | None = None
    ) -> None:
        self.watch = watch
        self.tree = tree = watch.tree
        self.model = tree.modules[0]
        self.device = device
        self.account = account
        self.step = step
        self.outside = outside or []
        """What is there beside the model; it is cleared once it is booked, so that the program alone holds it."""
        self.doing = "forward"
        """What the step is about, to be blamed where it fails."""
        self.optimizer: torch.optim.Optimizer | None = None
        """The one of these steps: it is there, with its state, for as long as they are."""
        self.kept: Any = None
        """The output that the loop keeps, until that of the next forward is bound to its name."""
        self.stepping: list[ExitStack] = []
        """What ends with each optimizer's step under way, the outermost first."""
        self.held: dict[int, tuple[Tensor, int]] = {}
        """Each parameter by its id, with the first module that holds it; those of the loss are no module's."""
        self.targets: Any = None
        """What the loss is given beside the output; where they are made of it, from the first one on."""
        self.notes: dict[str, None] = {}
        """What was assumed of the loss, each once."""
        self.loss_modules = [] if step.loss is None else step.loss.modules
        owned = [*enumerate(tree.modules), *((OUTSIDE, module) for module in self.loss_modules)]
        for index, module in owned:
            for parameter in module._parameters.values():
                if parameter is not None:
                    self.held.setdefault(id(parameter), (parameter, index))

    def _hold_what_is_there(self, args: Any, kwargs: Any) -> None:
        for tensor, kind, owner in self.outside:
            self.account.hold([tensor], kind, owner)
        self.outside.clear()
        for parameter, owner in self.held.values():
            self.account.hold([parameter], "parameters", owner)
        for index, module in [*((OUTSIDE, one) for one in self.loss_modules), *enumerate(self.tree.modules)]:
            self.account.hold((b for b in module._buffers.values() if b is not None), "buffers", index)
            self.account.hold(offloaded(module), "parameters", index)
        self.account.hold(all_tensors((args, kwargs, self.targets)), "inputs")

    def _give_targets(self, example: Example, make: Make, convert: Convert) -> None:
        """Make the targets that the loss was asked for with, for the batch of an example."""
        if self.step.loss is not None and self.step.mode == "train":
            self.targets = self.step.loss.targets(example.batch_size or 1, self.tree.dtype(), make, convert)

    def _assumed(self, others: Sequence[str]) -> tuple[str, ...]:
        """What was assumed: of the loss, and otherwise."""
        return (*self.notes, *others)

    def _all(self, args: Any, kwargs: Any) -> Any:
        """All steps; what is kept of the last one."""
        self.optimizer = self._optimizer()
        for number in range(self.step.steps):
            self.account.enter("forward", number)
            self._once(args, kwargs, self.optimizer)
        kept, self.kept = self.kept, None
        return kept

    def _once(self, args: Any, kwargs: Any, optimizer: torch.optim.Optimizer | None) -> None:
        if self.step.train_step is not None:
            self.doing = "train_step"
            self.step.train_step(self.model, *args, **kwargs)
            return
        if optimizer is not None and needs_closure(optimizer):
            self._searched(args, kwargs, optimizer)
            return
        loss = self._forward(args, kwargs)
        if loss is None:
            return
        self.doing = "backward"
        loss.backward()
        with self._phase("backward"):
            del loss
        self.doing = "optimizer"
        if optimizer is not None:
            self._stepped(args, kwargs, optimizer)
            optimizer.zero_grad()
        else:
            for module in (self.model, *self.loss_modules[:1]):
                module.zero_grad()

    def _loss(self, output: Any, given: Any) -> Tensor:
        """The loss of an output, as it was asked for; targets that are made of it stay."""
        if self.step.loss is None:
            own = own_loss(output)
            if own is None:
                self.notes[SUMMED] = None
            return default_loss(output) if own is None else own
        loss, targets, said = self.step.loss(output, self.targets, given)
        if said:
            self.notes[said] = None
            self.account.hold(all_tensors(targets), "inputs")
        self.targets = targets
        return loss

    def _forward(self, args: Any, kwargs: Any) -> Tensor | None:
        """Return the loss, which an inference step has none of; the output is kept if the loop keeps it."""
        self.doing = "forward"
        with self._autocast():
            output = self.model(*args, **kwargs)
            self.kept = output if self.step.keep_output else None
            if self.step.mode == "eval":
                self.account.enter("end", self.account.step)
                return None
            self.doing = "loss"
            return self._loss(output, (args, kwargs))

    def _stepped(self, args: Any, kwargs: Any, optimizer: torch.optim.Optimizer) -> None:
        """One step on gradients that are there; with a closure where the optimizer asks for one, as SAM does."""
        under_way = len(self.stepping)
        try:
            optimizer.step()
        except Exception as error:
            if "closure" not in str(error):
                raise
            while len(self.stepping) > under_way:
                self.stepping.pop().close()
            closure: Any = self._closure(args, kwargs, optimizer)
            optimizer.step(closure)

    def _searched(self, args: Any, kwargs: Any, optimizer: torch.optim.Optimizer) -> None:
        """One step that runs forward and backward itself, as often as it likes."""
        closure: Any = self._closure(args, kwargs, optimizer)
        self.doing = "optimizer"
        optimizer.step(closure)
        optimizer.zero_grad()

    def _closure(self, args: Any, kwargs: Any, optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
        """What an optimizer calls for gradients and the loss."""

        def closure() -> Any:
            optimizer.zero_grad()
            loss = self._forward(args, kwargs)
            self.doing = "backward"
            if loss is not None:
                loss.backward()
            self.doing = "optimizer"
            return loss

        return closure

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.step.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.step.autocast)

    @contextmanager
    def _phase(self, phase: str, after: str = "") -> Iterator[None]:
        """A phase inside another one, which then goes on unless another comes ``after``."""
        outer = self.account.phase
        self.account.enter(phase, self.account.step)
        try:
            yield
        finally:
            self.account.enter(after or outer, self.account.step)

    @contextmanager
    def _backwards_named(self) -> Iterator[None]:
        """The phase is the backward's from where the autograd engine starts until ``backward`` returns.

        A forward is then over; one that asks for gradients (``torch.autograd.grad``, a call inside a module) goes on.
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

        engine._engine_run_backward, engine.backward = run_named, backward_named
        try:
            yield
        finally:
            engine._engine_run_backward, engine.backward = run, backward

    @contextmanager
    def _gradients_named(self) -> Iterator[None]:
        """Each gradient is booked as one, and for the module whose parameter it is of, as soon as it is there."""
        handles = []
        for parameter, owner in self.held.values():
            if parameter.requires_grad:
                handles.append(parameter.register_post_accumulate_grad_hook(self._name_gradient(owner)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _name_gradient(self, index: int) -> Callable[[Tensor], None]:
        def name(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self.account.hold([parameter.grad], "gradients", index)

        return name

    def _forward_of(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure that an optimizer calls, in the phase of a forward."""

        def forward() -> Any:
            with self._phase("forward"):
                return closure()

        return forward

    def _stepping(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
        """What holds while an optimizer steps."""
        return nullcontext()

    def _optimizer(self) -> torch.optim.Optimizer | None:
        self.doing = "optimizer"
        maker = optimizer_maker(self.step.optimizer)
        if maker is None or self.step.mode == "eval":
            return None
        optimizer = maker([parameter for parameter, _ in self.held.values() if parameter.requires_grad])
        set_to_train(optimizer)
        return optimizer

    @contextmanager
    def _optimizers_named(self) -> Iterator[None]:
        """The phase is the optimizer's while one steps, and its state is booked as such, for the parameter's module."""
        stepping = self.stepping

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
            stepping.append(ExitStack())
            stepping[-1].enter_context(self._phase("optimizer", "end" if self.account.phase == "forward" else ""))
            stepping[-1].enter_context(self._stepping(optimizer))
            return closure_of(args, kwargs, self._forward_of)

        def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            stepping.pop().close()
            for stepped, state in optimizer.state.items():
                owner = self.held[id(stepped)][1] if id(stepped) in self.held else OUTSIDE
                self.account.hold(all_tensors(state), "optimizer_state", owner)

        handles = [
            optimizers.register_optimizer_step_pre_hook(before),
            optimizers.register_optimizer_step_post_hook(after),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def own_loss(output: Any) -> Tensor | None:
    """The ``loss`` that an output has by itself, if it has one."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return own if isinstance(own, Tensor) else None


def default_loss(output: Any) -> Tensor:
    """The output's own ``loss`` if it has one, else the sum of its floating tensors that require gradients."""
    own = own_loss(output)
    if own is not None:
        return own
    found = [tensor for tensor in all_tensors(output) if tensor.is_floating_point() and tensor.requires_grad]
    if not found:
        raise InputError("no floating-point output requires gradients; accepted: loss= a callable of the output")
    total = found[0].sum()
    for tensor in found[1:]:
        total = total + tensor.sum()
    return total


def with_loss(tree: ModuleTree, step: Step) -> list[nn.Module]:
    """The modules whose tensors a step takes: the model's, and those of a loss that is none of them."""
    known = set(map(id, tree.modules))
    return [*tree.modules, *(one for one in (step.loss.modules if step.loss else []) if id(one) not in known)]


def tensors_in(modules: Iterable[nn.Module]) -> list[Tensor]:
    """The parameters and buffers that modules hold themselves."""
    held = (tensor for one in modules for tensor in (*one._parameters.values(), *one._buffers.values()))
    return [tensor for tensor in held if tensor is not None]
