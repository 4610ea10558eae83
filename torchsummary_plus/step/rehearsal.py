"""One real forward on the CPU, for the sizes and scalars that depend on values."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..live.fakes import CPU
from ..live.free_memory import free_bytes
from ..live.masks import masks_of
from ..live.offloading import is_complete
from ..live.own_random import own_random, rng_state
from ..live.packed import repack
from ..live.remaking import remade
from ..ops.macs import multiply_adds
from ..table.environments import RealEnvironment
from ..table.forward import Frame, Listener, Pass, deep_stack, module_of
from ..table.inputs import Example, realise
from ..table.mode_setting import set_mode
from ..table.modules import ModuleTree
from ..trace.global_state import global_state_kept
from ..trace.names import names_replaced
from ..trace.questions import (
    ARRAY,
    OUTSIDE,
    PACK,
    PUTS,
    SCALARS,
    Question,
    array_question,
    asks,
    put_question,
    question,
    record,
)
from ..trace.real_kernels import run_really
from ..trace.result_sizes import LARGEST
from .operator_limit import MOST_OPERATORS

LONGEST = 10**12
"""Multiply-adds at which a rehearsal is abandoned: about half a minute of float32 products on one core."""


LONGEST_STEP = 10**11
"""The same for a whole step, which runs to answer questions outside forwards."""

MOST_ANSWERS = 20_000
"""Most values that a pass may read, as a loop over pixels does; beyond, a step is measured instead of recorded."""

SURELY_MEASURED = 200_000
"""Most operators of a step that is measured even if no one knows how much memory is free."""

MOST_MEASURED = 2_000_000
"""Most operators of a step that is measured at all: about two minutes."""

PROFILE_BYTES = 10_000
"""Upper bound of what torch's profile of a step takes per operator (5,200 measured on torch 2.13)."""

MOST_INPUT_BYTES = 1 << 30
"""Most bytes of real inputs for a rehearsal."""

TOO_MANY_VALUES = f"it reads more than {MOST_ANSWERS:,} values of tensors"

WITHOUT_VALUES = "the model is on the meta device and has no values"


def asking_module(frame: Frame | None) -> int:
    """Return the number of the module whose forward is active, or ``OUTSIDE``."""
    module = module_of(frame)
    return OUTSIDE if module is None else module


class TooLongError(Exception):
    """A real forward or step exceeds its limit of multiply-adds, operators or values."""


def most_measured(free: int | None) -> int:
    """Return how many operators a measured step may have, given the bytes of free memory: its profile takes half.

    >>> most_measured(None), most_measured(8 << 30), most_measured(1 << 40)
    (200000, 429496, 2000000)
    """
    if free is None:
        return SURELY_MEASURED
    return min(MOST_MEASURED, free // 2 // PROFILE_BYTES)


class AnswerRecorder(Listener):
    """Records the answer of each operator that asks for values.

    A pass that reads too many has no answers. It is abandoned, unless ``goes_on`` says that a step is to be measured.
    """

    def __init__(self, longest: int, goes_on: bool) -> None:
        self.longest = longest
        self.goes_on = goes_on
        self.answers: dict[Question, list[Any]] = {}
        self.questions = 0
        self.operators = 0
        self.multiply_adds = 0
        self.rng_state = rng_state()
        self.most_measured = most_measured(free_bytes())
        self.elements = 0
        """How many elements were read as arrays."""
        self.is_aside = False
        """Whether the current operator would need no values on fakes."""

    def read(self, watch: Pass, tensor: Tensor) -> None:
        """Record the values of a tensor that is read as an array, as long as all arrays together are not too large."""
        self.elements += tensor.numel()
        if self.elements <= LARGEST:
            with watch.muted(), torch.no_grad():
                values = tensor.detach().resolve_conj().resolve_neg().clone()
            self._answer(array_question(asking_module(watch.frame), tensor), values)

    @property
    def is_loop(self) -> bool:
        """Whether the pass has read too many values to record them."""
        return self.questions > MOST_ANSWERS

    def rehearsal(self) -> Rehearsal:
        """Return the answers, once the pass is over."""
        drew = not torch.equal(self.rng_state, rng_state())
        return Rehearsal(self.answers, "", self.is_loop, drew)

    def _answer(self, question: Question, answer: Any) -> None:
        self.questions += 1
        if not self.is_loop:
            self.answers.setdefault(question, []).append(answer)
        else:
            self.answers.clear()
            if not self.goes_on:
                raise TooLongError(TOO_MANY_VALUES)

    def operator(self, frame: Frame | None, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count multiply-adds up to the limit, and record the answer if the operator asks for values."""
        self.multiply_adds += multiply_adds(func, args, kwargs, out) or 0
        if self.multiply_adds > self.longest:
            raise TooLongError(f"it takes more than {self.longest:,} multiply-adds")
        self.operators += 1
        most = self.most_measured if self.is_loop else MOST_OPERATORS
        if self.operators > most:
            room = ", whose profile would take half of the free memory" if most < MOST_MEASURED and self.is_loop else ""
            raise TooLongError(f"it calls more than {most:,} operators{room}")
        if self.is_loop:
            return
        if id(func) in PUTS and masks_of(args[1]):
            counts = [int(mask.sum()) for mask in masks_of(args[1])]
            self._answer(put_question(asking_module(frame), args), counts)
        if isinstance(func, OpOverload) and not self.is_aside and asks(func, args, kwargs):
            self._answer(question(asking_module(frame), func, args), record(func, args, out))


READS: Collection[Any] = (Tensor.numpy, Tensor.__array__, Tensor.tolist)
"""Functions that read all values of a tensor."""


MAKERS: Collection[Any] = (torch.tensor, torch.as_tensor)
"""Functions that make a tensor of lists, and read the numbers among them unseen by a pass."""


def read_out(make: Callable[..., Tensor], data: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Make a tensor of lists whose single-element tensors have been replaced by their values."""
    return make(_numbers(data) if isinstance(data, (list, tuple)) else data, *args, **kwargs)


def _numbers(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return [_numbers(item) for item in data]
    return Tensor.item(data) if isinstance(data, Tensor) and not data.dim() else data


class ReadsRecorded(TorchFunctionMode):
    """Records the values of tensors that are read as arrays or lists; ``one_hot`` reads none, as on fakes.

    ``one_hot`` checks its values on real tensors alone (aten/src/ATen/native/Onehot.cpp).
    """

    def __init__(self, watch: Pass, recorder: AnswerRecorder) -> None:
        super().__init__()
        self.watch = watch
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist and not args[0].dim():
            return args[0].item()
        if func in READS:
            out = func(*args, **(kwargs or {}))
            self.recorder.read(self.watch, args[0])
            return out
        if func in MAKERS:
            return read_out(func, *args, **(kwargs or {}))
        if func is not functional.one_hot:
            return func(*args, **(kwargs or {}))
        outer, self.recorder.is_aside = self.recorder.is_aside, _has_number(*args, **(kwargs or {}))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.recorder.is_aside = outer


def _has_number(_: Tensor, num_classes: int = -1) -> bool:
    """Whether ``one_hot`` is given the number of classes, which otherwise depends on values."""
    return num_classes >= 0


@dataclass(frozen=True)
class Rehearsal:
    """A real forward's or step's answers, in order by question, or the reason for having none."""

    answers: dict[Question, list[Any]]
    failure: str = ""
    is_loop: bool = False
    """Whether there are no answers because the pass read too many values."""
    drew: bool = False
    """Whether the pass drew random numbers, on which its answers may depend."""

    def without_sizes(self) -> Rehearsal:
        """Return only the values and the lengths of packed sequences, which do not depend on weights."""
        answers = {query: answer for query, answer in self.answers.items() if query.operator in _NO_SIZES}
        return replace(self, answers=answers)


_NO_SIZES = {ARRAY, *(func.name() for func in (*SCALARS, PACK))}


def rehearse(tree: ModuleTree, example: Example, training: bool, autocast: torch.dtype | None) -> Rehearsal:
    """Run one forward without gradients on the CPU, on a copy of the model.

    The rehearsal is empty, with a reason, if the model has no weights, fails, or takes too long.
    """
    if not is_complete(tree.modules):
        return Rehearsal({}, WITHOUT_VALUES)
    if example.nbytes(tree.dtype()) > MOST_INPUT_BYTES:
        return Rehearsal(
            {}, f"no real forward was tried, because its inputs take more than {MOST_INPUT_BYTES >> 20:,} MiB"
        )
    recorder = AnswerRecorder(LONGEST, goes_on=False)
    environment = RealEnvironment(CPU)
    with ExitStack() as stack:
        stack.enter_context(global_state_kept())
        stack.enter_context(own_random())
        stack.enter_context(deep_stack())
        stack.enter_context(environment)
        tree, copier = environment.copied(tree)
        stack.enter_context(names_replaced(copier))
        repack(tree.modules)
        set_mode(tree, training, environment.kernel)
        watch = Pass(tree, run_really, [*environment.listeners, recorder])
        convert = partial(remade, change=environment.convert)
        try:
            args, kwargs, _ = realise(example, example.batch_size or 1, tree, environment.make, convert)
            watch.install()
            stack.enter_context(torch.no_grad())
            stack.enter_context(nullcontext() if autocast is None else torch.autocast("cpu", autocast))
            with watch, ReadsRecorded(watch, recorder):
                tree.modules[0](*args, **kwargs)
        except TooLongError as error:
            return Rehearsal({}, f"a real forward was abandoned: {error}", recorder.is_loop)
        except Exception as error:
            return Rehearsal({}, f"a real forward on the CPU failed: {type(error).__name__}: {error}")
        return recorder.rehearsal()
