"""Operators whose results depend on values: what they ask on fakes, and how they are answered.

Sizes and values come from a real forward with the same questions (``rehearsal.py``); questions outside forwards, in a
loss, a backward or a training step, from a real step (``real_steps.py``). Without either, sizes are the operator's
maximum or those on zeros, and values are guessed (``guesses.py``), numbers only outside forwards. Each answer's origin
is recorded for the user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..live.compat import no_dispatch
from ..live.fakes import CPU, DataDependentError, defer_refusal
from ..live.masks import masks_of
from .guesses import Guesses, loads_data
from .kernels import tensors_of
from .result_sizes import INDEX, LARGEST, fakes_of, on_zeros
from .value_dependence import asks_values

OUTSIDE = -1
"""Module number of whatever happens in no module's forward."""


class Question(NamedTuple):
    """A question: the number of the asking module, the operator, and its tensors' shapes."""

    module: int
    operator: str
    shapes: tuple[torch.Size, ...]


REHEARSED = "sizes taken from a real"
MOST = "assumed to return its maximum size"
VALUE = "value taken from a real"
ASSUMED = "value assumed to be"
ZEROS = "sizes computed on zeros"
DRAWN = "drawn at random"
"""Origin of values that other random numbers would change: noted by ``Answers.drew`` alone."""
MADE_UP = "answered as if integer inputs were all zeros; pass real inputs as input_data="

aten = torch.ops.aten


Zeros = Literal["none", "some", "several"]


class Answers:
    """Answers to operators that ask for values.

    ``recorded`` holds the answers of a real forward, or with ``of_step`` of a whole real step, in order by question;
    None before there was one. A repeated forward, in the next step or for a checkpoint, asks the same questions again,
    so the answers rotate. Other questions are answered by ``guesses``, if given.
    """

    def __init__(
        self,
        recorded: dict[Question, list[Any]] | None = None,
        of_step: bool = False,
        guesses: Guesses | None = None,
    ) -> None:
        self.recorded = recorded
        self.of_step = of_step
        self.guesses = guesses
        self.times_asked: dict[Question, int] = {}
        self.notes: dict[tuple[int, str, str], int] = {}
        self.refused: int | None = None
        """Number of the module that was first refused an answer."""
        self.is_over = False
        """Whether the pass has ended, after which numbers that the program kept may be used as they are."""
        self.drew = self.loaded = False
        """Whether code asked for a random value, and whether torch's code for loading data did."""
        self.zeros: Zeros = "none"
        """How many zeros the products of elements contain that are differentiated."""
        self.is_search: Callable[[], bool] = lambda: False
        """Tells whether the asker is an optimizer assumed to run to its limits, whatever a real one does."""

    def count(self, question: Question) -> int:
        """Return how often this question was asked before, and count it."""
        number = self.times_asked.get(question, 0)
        self.times_asked[question] = number + 1
        return number

    def recall(self, question: Question, number: int) -> Any:
        """Return the answer that a real forward or step got the ``number``-th time; None if it never asked."""
        answers = (self.recorded or {}).get(question)
        return answers[number % len(answers)] if answers else None

    def answer(
        self, question: Question, number: int, func: OpOverload, args: Any, kwargs: Any, device: torch.device
    ) -> Any:
        """Return an operator's result on fakes; raises :class:`DataDependentError` if it is unknown.

        ``number`` is the question's count from :meth:`count`.
        """
        if func in SCALARS and question.module == OUTSIDE and self.is_search():
            return Guesses().value(tensors_of(args), _dtype_asked(func, args))[0]
        answer = self.recall(question, number)
        if answer is None:
            return self._guess(question, func, args, kwargs, device)
        self.assume_recalled(question, VALUE if func in SCALARS else REHEARSED)
        return answer if func in SCALARS else fakes_of(func, args, kwargs, answer, device)

    def assume_recalled(self, question: Question, how: str) -> None:
        """Record that an answer is a real pass's."""
        self.assume(question.module, question.operator, f"{how} {'step' if self.of_step else 'forward'}")

    def _guess(self, question: Question, func: OpOverload, args: Any, kwargs: Any, device: torch.device) -> Any:
        """Answer a question that no real forward or step answers."""
        outside = question.module == OUTSIDE
        dtype = _dtype_asked(func, args)
        if self.guesses is None:
            deferred = outside and func in SCALARS and dtype.is_floating_point
            if not (deferred and defer_refusal(lambda: self._refuse_before_end(question.module, func))):
                self.refuse(question.module, func)
            self.assume(question.module, question.operator, f"{ASSUMED} 1")
            return 1.0
        if func in SCALARS:
            if not outside and dtype is not torch.bool:
                self.refuse(question.module, func)
            value, site = self.guesses.value(tensors_of(args), dtype)
            self.assume(question.module, question.operator, f"{ASSUMED} {value} in {site}")
            return value
        self.guesses.sizes = True
        result, how = fakes_of(func, args, kwargs, None, device, self.guesses.least), MOST
        if result is None and outside:
            result, how = on_zeros(func, args, kwargs, device), ZEROS
        if result is None:
            self.refuse(question.module, func)
        self.assume(question.module, question.operator, how)
        return result

    def array(self, question: Question, number: int, tensor: Tensor) -> Tensor:
        """Return the values of a tensor that is read as an array: a real pass's, else all equal to a guessed one."""
        values = self.recall(question, number)
        if values is not None:
            self.assume_recalled(question, VALUE)
            with no_dispatch():
                return values.clone()  # type: ignore[no-any-return]
        is_guessed = self.guesses is not None and (question.module == OUTSIDE or tensor.dtype is torch.bool)
        if self.guesses is None or not is_guessed or tensor.numel() > LARGEST:
            self.refuse(question.module, question.operator)
        value, site = self.guesses.value([tensor], tensor.dtype)
        self.assume(question.module, question.operator, f"{ASSUMED} {value} in {site}")
        with no_dispatch():
            return torch.full(tensor.shape, value, dtype=tensor.dtype, device=CPU)

    def follows_real_step(self) -> bool:
        """Whether a real step says how often an optimizer iterates, rather than the optimizer's limits.

        Raises :class:`DataDependentError` if no real step has been tried yet.
        """
        if self.guesses is None and not self.of_step:
            self.refuse(OUTSIDE, aten._local_scalar_dense.default)
        if self.guesses is not None:
            self.guesses.iterates = self.of_step
        return self.of_step and (self.guesses is None or not self.guesses.to_limits)

    def lengths(self, question: Question, func: OpOverload) -> Any:
        """Return the lengths of packed sequences; None if they are assumed to be the longest possible."""
        answer = self.recall(question, self.count(question))
        if answer is None and self.guesses is None:
            self.refuse(question.module, func)
        if answer is None:
            self.assume(question.module, question.operator, MOST)
        else:
            self.assume_recalled(question, REHEARSED)
        return answer

    def refuse(self, module: int, func: OpOverload | str) -> NoReturn:
        """Raise :class:`DataDependentError` and remember it, since the caller may catch it."""
        self.refused = module if self.refused is None else self.refused
        raise DataDependentError(f"{func} needs the values of a tensor")

    def _refuse_before_end(self, module: int, func: OpOverload) -> None:
        if not self.is_over:
            self.refuse(module, func)

    def close(self) -> None:
        """Note that the pass has ended."""
        self.is_over = True

    def assume(self, module: int, operator: str, how: str) -> None:
        """Record what was assumed for an operator."""
        if how is DRAWN:
            if loads_data():
                self.loaded = True
            else:
                self.drew = True
            return
        self.notes[module, operator, how] = self.notes.get((module, operator, how), 0) + 1

    def assumptions(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return how each question was answered, in words."""
        return tuple(
            f"{operator.removeprefix('aten::')} in {_place(module, paths)}, {count} times: {how}"
            for (module, operator, how), count in self.notes.items()
        )


def _place(module: int, paths: Sequence[str]) -> str:
    return "the step" if module == OUTSIDE else paths[module] or "the model itself"


SCALARS = frozenset({aten._local_scalar_dense.default, aten.equal.default, aten.allclose.default})
"""Operators that return a Python value instead of a tensor."""

ARRAY = "numpy"
"""Stands for an operator where a tensor is read as an array, for which none runs."""
PUTS = {id(aten.index_put.default), id(aten.index_put_.default)}
"""By identity: writes to masked positions, whose scratch memory depends on how many there are."""
PACK = aten._pack_padded_sequence.default


def _dtype_asked(func: OpOverload, args: Any) -> torch.dtype:
    """Return the dtype of the single value asked for."""
    dtype: torch.dtype = args[0].dtype if func is aten._local_scalar_dense.default else torch.bool
    return dtype


def question(module: int, func: OpOverload, args: Any) -> Question:
    """Return an operator's question. One that asks for a single value asks the same at any shape."""
    return Question(module, func.name(), () if func in SCALARS else tuple(tensor.shape for tensor in tensors_of(args)))


def array_question(module: int, tensor: Tensor) -> Question:
    """Return the question of a tensor's values, which become an array."""
    return Question(module, ARRAY, (tensor.shape,))


def put_question(module: int, args: Any) -> Question:
    """Return the question of how many elements of a write's masks are true."""
    return Question(module, "aten::index_put", tuple(tensor.shape for tensor in tensors_of(args)))


def asks(func: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether this call's result depends on values."""
    if not _may_ask(func):
        return False
    if func is INDEX:
        return bool(masks_of(args[1]))
    if func is PACK:
        return True
    return kwargs.get("output_size") is None


def _may_ask(func: OpOverload) -> bool:
    may_ask = _MAY_ASK.get(id(func))
    if may_ask is None:
        may_ask = _MAY_ASK[id(func)] = is_from_library(func) or func is PACK or asks_values(func)
    return may_ask


def is_from_library(func: OpOverload) -> bool:
    """Whether an operator belongs to another library, so that its fake kernel may be missing or fail."""
    return func.namespace not in ("aten", "prim", "prims")


_MAY_ASK: dict[int, bool] = {}
"""Keyed by id: operators are slow to hash, and every operator of a pass is looked up."""


def record(func: OpOverload, args: Any, out: Any) -> Any:
    """Return a real operator's answer in the form that :class:`Answers` replays."""
    if func is INDEX:
        return [int(mask.sum()) for mask in masks_of(args[1])]
    if func is PACK:
        return args[1].tolist()
    if isinstance(out, Tensor):
        return tuple(out.shape), out.dtype
    return [record(func, args, item) for item in out] if isinstance(out, (list, tuple)) else out
