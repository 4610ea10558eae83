"""What a training or inference step is: forward, loss, backward, optimizer, zero_grad; and the books of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as optimizers

from ..errors import InputError, SummaryError
from ..memory_records import MemoryLog
from .cuda_engine import CudaEngine
from .embeddings import Embeddings
from .hints import forward_error, step_error
from .inputs import Example, realise
from .ledger import Ledger
from .modules import ModuleTree
from .optimizers import optimizer_maker
from .passes import failed_frame
from .questions import OUTSIDE
from .semantics import StepKernels, engine_watched
from .semantics_functions import StepFunctions, failed_node, functions_as_without_mode
from .structures import all_tensors


@dataclass(frozen=True)
class Step:
    """The step to keep books of.

    ``mode`` "train" or "eval"; ``optimizer`` None, a name, a class or a callable from parameters; ``loss`` a callable
    on the output; ``autocast`` a dtype; ``train_step`` the user's own ``(model, *inputs)``; ``keep_output`` for a loop
    that keeps the output until the next one; ``steps`` how many times it runs.
    """

    mode: str = "train"
    optimizer: Any = None
    loss: Callable[[Any], Tensor] | None = None
    autocast: torch.dtype | None = None
    train_step: Callable[..., Any] | None = None
    keep_output: bool = False
    steps: int = 2


class Books:
    """The steps of one model, run under a ledger. Call it when fakes stand for the model's tensors."""

    def __init__(self, tree: ModuleTree, kernels: StepKernels, ledger: Ledger, step: Step) -> None:
        self.tree = tree
        self.model = tree.modules[0]
        self.kernels = kernels
        self.watch = kernels.watch
        self.ledger = ledger
        self.step = step
        self.device = kernels.device
        self.capability = ledger.workspaces.capability
        self.doing = "forward"
        """What the step is about, to be blamed where it fails."""
        self.held: dict[int, tuple[Tensor, int]] = {}
        """Each parameter by its id, with the first module that holds it."""
        for index, module in enumerate(tree.modules):
            for parameter in module._parameters.values():
                if parameter is not None:
                    self.held.setdefault(id(parameter), (parameter, index))

    def keep(self, example: Example, embeddings: Embeddings) -> MemoryLog:
        """Run the steps; the books end between two of them, with all that a loop holds then."""
        kernels = self.kernels
        args, kwargs, made = realise(
            example, example.batch_size or 1, self.tree.dtype(), kernels.input_of, kernels.stand_in
        )
        embeddings.watch(made)
        for parameter, owner in self.held.values():
            self.ledger.hold([parameter], "parameters", owner)
        for index, module in enumerate(self.tree.modules):
            self.ledger.hold((b for b in module._buffers.values() if b is not None), "buffers", index)
        self.ledger.hold(all_tensors((args, kwargs)), "inputs")
        with ExitStack() as stack:
            stack.enter_context(self._gradients_named())
            stack.enter_context(self._optimizers_named())
            kernels.hook_parameters()
            engine = CudaEngine(self.watch)
            functions = StepFunctions(self.watch, engine, self.device, self.capability)
            stack.enter_context(engine_watched(functions, self._phase))
            stack.enter_context(self.watch)
            for parameter, _ in self.held.values():
                engine.add_leaf(parameter, lasting=True)
            stack.enter_context(functions)
            stack.enter_context(functions_as_without_mode(functions, self._notice))
            optimizer = self._optimizer()
            output = None
            for number in range(self.step.steps):
                self.ledger.enter("forward", number)
                output = self._once(args, kwargs, optimizer)
            log = self.ledger.log(tuple(self.tree.paths), kernels.answers.assumptions(self.tree.paths))
            del output
        return log

    def _once(self, args: Any, kwargs: Any, optimizer: torch.optim.Optimizer | None) -> Any:
        if self.step.train_step is not None:
            self.doing = "train_step"
            self.step.train_step(self.model, *args, **kwargs)
            return None
        self.doing = "forward"
        with self._autocast():
            output = self.model(*args, **kwargs)
            if self.step.mode == "eval":
                return output if self.step.keep_output else None
            self.doing = "loss"
            loss = (self.step.loss or default_loss)(output)
        kept = output if self.step.keep_output else None
        del output
        self.doing = "backward"
        loss.backward()
        del loss
        self.doing = "optimizer"
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        else:
            self.model.zero_grad()
        return kept

    def blame(self, error: Exception, values: str) -> SummaryError:
        """The error as the user should read it: which part of the step failed, where, and why.

        ``values`` tells why there was no real forward to ask for values, if there was none.
        """
        if self.doing == "forward" or failed_frame(error) is not None:
            return forward_error(error, self.watch, (), values)
        phase = self.ledger.phase if self.doing == "train_step" and self.ledger.phase != "forward" else self.doing
        node = failed_node(error)
        owner = OUTSIDE if node is None else self.ledger.made_in(node)
        return step_error(error, phase, self.tree, owner, values)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.step.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.step.autocast)

    def _notice(self, tensor: Tensor, name: str) -> None:
        self.ledger.notice(self.watch.frame, tensor, name)

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

    def _name_gradient(self, index: int) -> Callable[[Tensor], None]:
        def name(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self.ledger.hold([parameter.grad], "gradients", index)

        return name

    def _optimizer(self) -> torch.optim.Optimizer | None:
        self.doing = "optimizer"
        maker = optimizer_maker(self.step.optimizer)
        if maker is None or self.step.mode == "eval":
            return None
        return maker([parameter for parameter, _ in self.held.values() if parameter.requires_grad])

    @contextmanager
    def _optimizers_named(self) -> Iterator[None]:
        """The phase is the optimizer's while one steps, and its state is booked as such, for the parameter's module."""
        phases = ExitStack()

        def before(*_: Any) -> None:
            phases.enter_context(self._phase("optimizer"))

        def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            phases.close()
            for stepped, state in optimizer.state.items():
                held = [value for value in state.values() if isinstance(value, Tensor)]
                owner = self.held[id(stepped)][1] if id(stepped) in self.held else OUTSIDE
                self.ledger.hold(held, "optimizer_state", owner)

        handles = [
            optimizers.register_optimizer_step_pre_hook(before),
            optimizers.register_optimizer_step_post_hook(after),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def default_loss(output: Any) -> Tensor:
    """The output's own ``loss`` if it has one, else the sum of its floating tensors that require gradients."""
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    found = [tensor for tensor in all_tensors(output) if tensor.is_floating_point() and tensor.requires_grad]
    if not found:
        raise InputError("the output has no floating tensor that requires gradients; accepted: loss= a callable on it")
    total = found[0].sum()
    for tensor in found[1:]:
        total = total + tensor.sum()
    return total
