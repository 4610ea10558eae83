"""What a training or inference step is: forward, loss, backward, optimizer, zero_grad; and the books of one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as optimizers

from ..errors import InputError, choice_error
from ..memory_records import MemoryLog
from ..units import describe
from .embeddings import Embeddings, NeedsIntegerError
from .fakes import fake_like, new_fake, standing_in_for
from .hints import forward_error
from .inputs import Example, realise
from .ledger import OUTSIDE, Ledger
from .modules import ModuleTree
from .passes import Listener, Pass, deep_stack
from .semantics import StepKernels, engine_watched
from .semantics_functions import StepFunctions, functions_as_without_mode
from .structures import all_tensors
from .workspace import Capability, capability_here
from .world import LOCK, restored, swap_tensors

OptimizerMaker = Callable[[Any], torch.optim.Optimizer]


@dataclass(frozen=True)
class Step:
    """The step to keep books of.

    ``mode`` "train" or "eval"; ``optimizer`` None, a name, a class or a callable from parameters; ``loss`` a callable
    on the output; ``autocast`` a dtype; ``train_step`` the user's own ``(model, *inputs)``; ``keep_output`` for a loop
    that keeps the output until the next one; ``steps`` how many times it runs.
    """

    mode: str = "train"
    optimizer: Any = None
    loss: Callable[[Any], torch.Tensor] | None = None
    autocast: torch.dtype | None = None
    train_step: Callable[..., Any] | None = None
    keep_output: bool = False
    steps: int = 2


def record_step(
    model: nn.Module,
    example: Example,
    step: Step,
    device: torch.device | None,
    capability: Capability | None = None,
    listeners: Sequence[Listener] = (),
) -> MemoryLog:
    """The memory events of a model's steps on fake tensors; raises :class:`ForwardError`. The model is as it was.

    ``capability`` is that of the GPU which is asked about: None for the one that is here, or an A100 without one.

    The first run of an operator may import parts of torch, whose frames keep its tensors alive for a while; then the
    step is recorded once more. So it is with integers for a sized input that reaches an embedding.
    """
    while True:
        try:
            return _imported_and_recorded(model, example, step, device, capability or capability_here(), listeners)
        except NeedsIntegerError as needed:
            example = example.with_dtype(needed.index, torch.long)


def _imported_and_recorded(
    model: nn.Module,
    example: Example,
    step: Step,
    device: torch.device | None,
    capability: Capability,
    listeners: Sequence[Listener],
) -> MemoryLog:
    imported = len(sys.modules)
    asked = (model, example, step, device, capability, listeners)
    log = _record(*asked)
    return log if len(sys.modules) == imported else _record(*asked)


def _record(
    model: nn.Module,
    example: Example,
    step: Step,
    device: torch.device | None,
    capability: Capability,
    listeners: Sequence[Listener],
) -> MemoryLog:
    maker = optimizer_maker(step.optimizer)
    with LOCK, ExitStack() as stack:
        tree = ModuleTree(model)
        place = placed(device or tree.device())
        stack.enter_context(restored(tree.modules))
        stack.enter_context(deep_stack())
        mode_key = stack.enter_context(standing_in_for(place, backward=step.mode == "train"))
        model.train(step.mode == "train")
        swap_tensors(tree.modules, lambda p: fake_like(p, place), lambda t: fake_like(t, place))
        kernels = StepKernels(place)
        ledger = Ledger("cuda" if place.type == "cuda" else "cpu", capability)
        embeddings = Embeddings(example)
        watch = kernels.watch = Pass(tree, kernels, [embeddings, ledger, *listeners])
        if mode_key is not None:
            watch.hold(mode_key)
        watch.install()
        try:
            return _Books(tree, watch, ledger, step, maker, place).keep(example, embeddings)
        except NeedsIntegerError:
            raise
        except Exception as error:
            raise forward_error(error, watch, ()) from error


class _Books:
    """The steps of one model, run under a ledger."""

    def __init__(
        self,
        tree: ModuleTree,
        watch: Pass,
        ledger: Ledger,
        step: Step,
        maker: OptimizerMaker | None,
        device: torch.device,
    ) -> None:
        self.tree = tree
        self.model = tree.modules[0]
        self.watch = watch
        self.ledger = ledger
        self.step = step
        self.maker = maker
        self.device = device
        self.capability = ledger.workspaces.capability
        self.held: dict[int, tuple[torch.Tensor, int]] = {}
        """Each parameter by its id, with the first module that holds it."""
        for index, module in enumerate(tree.modules):
            for parameter in module._parameters.values():
                if parameter is not None:
                    self.held.setdefault(id(parameter), (parameter, index))

    def keep(self, example: Example, embeddings: Embeddings) -> MemoryLog:
        """Run the steps; the books end between two of them, with all that a loop holds then."""
        args, kwargs, made = realise(
            example,
            example.batch_size or 1,
            self.tree.dtype(),
            lambda shape, dtype: new_fake(shape, dtype, self.device),
            lambda tensor: fake_like(tensor, self.device),
        )
        embeddings.watch(made)
        for parameter, owner in self.held.values():
            self.ledger.hold([parameter], "parameters", owner)
        for index, module in enumerate(self.tree.modules):
            self.ledger.hold((b for b in module._buffers.values() if b is not None), "buffers", index)
        self.ledger.hold(all_tensors((args, kwargs)), "inputs")
        with ExitStack() as stack:
            stack.enter_context(self._gradients_named())
            stack.enter_context(engine_watched(self.watch, self.device, self._phase, self.capability))
            stack.enter_context(self.watch)
            stack.enter_context(StepFunctions(self.watch, self.device, self.capability))
            stack.enter_context(functions_as_without_mode(self.device))
            optimizer = self._optimizer([parameter for parameter, _ in self.held.values()])
            if optimizer is not None:
                stack.enter_context(self._optimizer_named(optimizer))
            output = None
            for number in range(self.step.steps):
                self.ledger.enter("forward", number)
                output = self._once(args, kwargs, optimizer)
            log = self.ledger.log(tuple(self.tree.paths))
            del output
        return log

    def _once(self, args: Any, kwargs: Any, optimizer: torch.optim.Optimizer | None) -> Any:
        if self.step.train_step is not None:
            self.step.train_step(self.model, *args, **kwargs)
            return None
        if self.step.mode == "eval":
            with torch.no_grad(), self._autocast():
                output = self.model(*args, **kwargs)
            return output if self.step.keep_output else None
        with self._autocast():
            output = self.model(*args, **kwargs)
            loss = (self.step.loss or default_loss)(output)
        kept = output if self.step.keep_output else None
        del output
        loss.backward()
        del loss
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        else:
            self.model.zero_grad()
        return kept

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.step.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.step.autocast)

    @contextmanager
    def _phase(self, phase: str) -> Iterator[None]:
        outer = self.ledger.phase
        self.ledger.enter(phase, self.ledger.step)
        try:
            yield
        finally:
            self.ledger.enter(outer, self.ledger.step)

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

    def _name_gradient(self, index: int) -> Callable[[torch.Tensor], None]:
        def name(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                self.ledger.hold([parameter.grad], "gradients", index)

        return name

    def _optimizer(self, parameters: list[Any]) -> torch.optim.Optimizer | None:
        if self.maker is None or self.step.mode == "eval":
            return None
        optimizer = self.maker([p for p in parameters if p.requires_grad])
        if self.device.type == "cuda":
            for group in optimizer.param_groups:
                if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                    group["foreach"] = True
        return optimizer

    @contextmanager
    def _optimizer_named(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """The phase is the optimizer's while it steps, and its state is booked as such, for the parameter's module."""
        phases = ExitStack()

        def before(*_: Any) -> None:
            phases.enter_context(self._phase("optimizer"))

        def after(*_: Any) -> None:
            phases.close()
            for stepped, state in optimizer.state.items():
                held = [value for value in state.values() if isinstance(value, torch.Tensor)]
                owner = self.held[id(stepped)][1] if id(stepped) in self.held else OUTSIDE
                self.ledger.hold(held, "optimizer_state", owner)

        handles = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def placed(device: torch.device) -> torch.device:
    """A device with its index."""
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device


def default_loss(output: Any) -> torch.Tensor:
    """The output's own ``loss`` if it has one, else the sum of its floating tensors that require gradients."""
    own = getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    found = [tensor for tensor in all_tensors(output) if tensor.is_floating_point() and tensor.requires_grad]
    if not found:
        raise InputError("the output has no floating tensor that requires gradients; accepted: loss= a callable on it")
    total = found[0].sum()
    for tensor in found[1:]:
        total = total + tensor.sum()
    return total


_NAMES = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not optimizers.Optimizer
}


def optimizer_maker(optimizer: Any) -> OptimizerMaker | None:
    """A callable from parameters to an optimizer, from None, a name ("adamw"), a class or such a callable."""
    if optimizer is None:
        return None
    if isinstance(optimizer, str):
        if optimizer.lower() not in _NAMES:
            raise choice_error("optimizer", optimizer, sorted(_NAMES))
        optimizer = _NAMES[optimizer.lower()]
    made: Any = optimizer
    if inspect.isclass(optimizer) and "lr" in inspect.signature(optimizer).parameters:
        return lambda parameters: made(parameters, lr=1e-3)
    if callable(made):
        return made  # type: ignore[no-any-return]
    raise InputError(
        f"optimizer is {describe(optimizer)}; accepted: None, a name, a class, or a callable from parameters"
    )
