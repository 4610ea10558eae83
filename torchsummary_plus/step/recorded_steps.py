"""The ledger of a model's steps on fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..data.errors import SummaryError
from ..data.memory_records import MemoryLog
from ..live.isolation import in_pass
from ..live.storages import remade
from ..live.structures import all_tensors
from ..table.attempts import Embeddings
from ..table.failures import forward_error, step_error
from ..table.forward import failed_frame
from ..table.inputs import Example, realise
from ..trace.values import OUTSIDE
from .autograd.cuda_engine import CudaEngine
from .autograd.cuda_functions import loss_on_card
from .autograd.dispatch import StepKernels, engine_watched
from .autograd.functions import StepFunctions, failed_node, functions_as_without_mode
from .autograd.nodes import renewals_noted
from .ledger import IfUsed, Ledger
from .optimizers import not_converging
from .runner import Steps
from .step_copy import PriorTensor, StepCopy


def follow_meta_storages(kernels: StepKernels, ledger: Ledger) -> None:
    """Connect a ledger to the storages that stand for real ones, and record those that existed before the steps.

    The ledger can then query whether an engine formula or Python code is running.
    """

    def pair(storage: torch.UntypedStorage, meta: torch.UntypedStorage, device: torch.device) -> None:
        is_here = device.type == ledger.backend
        ledger.same(storage, meta, is_from_before=is_here and storage._cdata not in kernels.created)

    ledger.standing_for, kernels.meta_storages.on_pair = kernels.meta_storages.of, pair
    ledger.in_engine = lambda: kernels.watch.state.by_engine


@contextmanager
def resizing_watched(kernels: StepKernels, ledger: Ledger) -> Iterator[None]:
    """Record resized storages again, since no operator visible to a mode resizes them."""
    kind: Any = torch.UntypedStorage
    resize = kind.resize_

    def watched(storage: torch.UntypedStorage, nbytes: int) -> Any:
        for target in {id(target): target for target in (storage, kernels.meta_storages.of(storage))}.values():
            resize(target, nbytes)
        ledger.resized(storage)
        return storage

    kind.resize_ = in_pass(watched, resize)
    try:
        yield
    finally:
        del kind.resize_


class RecordedSteps(Steps):
    """Runs a model's steps under a ledger. The model is a copy on fakes."""

    engine: CudaEngine
    if_used: IfUsed
    """Listens for the first use of tensors that count only from then on."""

    def __init__(self, kernels: StepKernels, ledger: Ledger, copy: StepCopy) -> None:
        super().__init__(kernels.watch, kernels.device, ledger, copy)
        self.kernels = kernels
        self.ledger = ledger

    @contextmanager
    def recording(self, example: Example, embeddings: Embeddings) -> Iterator[tuple[Any, Any]]:
        """Yield the arguments of the steps, which run inside the block."""
        kernels, ledger, watch = self.kernels, self.ledger, self.watch

        @cache  # torch asks whether the inputs of an attention are one tensor (``_in_projection_packed``).
        def convert(tensor: Tensor) -> Tensor:
            known = self.copy.known(tensor)
            return remade(tensor, kernels.of_input) if known is None else known

        args, kwargs, new_inputs = realise(
            example, example.batch_size or 1, self.tree, kernels.input_of, convert, self.step.train_step
        )
        embeddings.watch(new_inputs)
        self.make_targets(example, kernels.input_of, convert)
        del convert
        self.make_packed(kernels.input_of)
        kernels.finish()
        self._classify_initial_tensors(args, kwargs)
        with ExitStack() as stack:
            stack.enter_context(self._states_named())
            stack.enter_context(resizing_watched(kernels, ledger))
            self.copy.give_hooks()
            self.engine = engine = kernels.engine = CudaEngine(watch)
            stack.callback(engine.release)
            functions = StepFunctions(watch, engine, self.device, ledger.workspaces.chip)
            watch.state.on_cuda = functions.on_cuda
            stack.enter_context(renewals_noted(ledger.workspaces.renewed))
            if functions.on_cuda:
                stack.enter_context(loss_on_card(ledger.workspaces.chip))
            else:
                functions.keep_number = ledger.numbers.of_wrapper
            stack.enter_context(engine_watched(functions, ledger.workspaces))
            stack.enter_context(self._backwards_named())
            stack.enter_context(watch)
            parameters = [tensor for reference, _ in self.parameters.values() if (tensor := reference()) is not None]
            inputs = all_tensors((args, kwargs, self.targets))
            for tensor in (*self.copy.replacements, *parameters, *self.tree.tensors(), *inputs):
                engine.add_leaf(tensor)
            self.copy.finish()
            del parameters, inputs, tensor
            stack.enter_context(functions)
            stack.enter_context(
                functions_as_without_mode(functions, lambda tensor, name: ledger.notice(watch.frame, tensor, name))
            )
            yield args, kwargs
            self.output = None

    def log(self) -> MemoryLog:
        """Return the log, which ends between two steps, with everything a loop holds there."""
        paths = tuple(self.tree.paths)
        return self.ledger.log(paths, self.assumptions(self.kernels.answers.assumptions(paths)))

    def wait_for_use(self, holding: PriorTensor) -> None:
        """Follow a tensor that counts only if the steps use it."""
        self.if_used.wait(holding)

    def blame(self, error: Exception, values: str) -> SummaryError:
        """Return the error as the user should read it: which part of the step failed, where, and why.

        ``values`` says why no real forward could supply values, if so.
        """
        if self.doing == "forward" or failed_frame(error) is not None:
            return forward_error(error, self.watch, (), values)
        names_phase = self.doing == "train_step" and self.ledger.phase in ("backward", "optimizer")
        phase = self.ledger.phase if names_phase else self.doing
        node = failed_node(error)
        owner = OUTSIDE if node is None else self.ledger.node_modules.of(node)
        return step_error(error, phase, self.tree, owner, values)

    def _stepping(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
        return not_converging(optimizer, self.ledger, self.kernels.answers)
