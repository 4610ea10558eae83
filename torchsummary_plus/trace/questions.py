"""Operators whose results depend on values: what they ask on fakes, and how they are answered.

Sizes and values come from a real forward with the same questions (``rehearsal.py``); questions outside forwards, in a
loss, a backward or a training step, from a real step (``real_steps.py``). Without either, sizes are the operator's
maximum or those on zeros, and values are guessed (``at_one.py``), numbers only outside forwards. Each answer's origin
is recorded for the user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..live.compat import no_dispatch
from ..live.fakes import CPU, META, DataDependentError, Fake, defer_refusal, in_kernel, wrap
from ..live.masks import note_true
from .at_one import Guesses
from .kernels import tensors_of
from .on_zeros import LARGEST, on_zeros
from .passes import Frame, module_of

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
TAKEN = "value assumed to be"
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
        self.asked: dict[Question, int] = {}
        self.notes: dict[tuple[int, str, str], int] = {}
        self.refused: int | None = None
        """Number of the module that was first refused an answer."""
        self.drew = False
        """Whether a random value was asked for."""
        self.zeros: Zeros = "none"
        """How many zeros the products of elements contain that are differentiated."""
        self.is_search: Callable[[], bool] = lambda: False
        """Tells whether the asker is an optimizer assumed to run to its limits, whatever a real one does."""

    def turn(self, question: Question) -> int:
        """Return how often this question was asked before, and count it."""
        number = self.asked.get(question, 0)
        self.asked[question] = number + 1
        return number

    def recall(self, question: Question, number: int) -> Any:
        """Return the answer that a real forward or step got the ``number``-th time; None if it never asked."""
        answers = (self.recorded or {}).get(question)
        return answers[number % len(answers)] if answers else None

    def answer(
        self, question: Question, number: int, func: OpOverload, args: Any, kwargs: Any, device: torch.device
    ) -> Any:
        """Return an operator's result on fakes; raises :class:`DataDependentError` if it is unknown.

        ``number`` is the question's count from :meth:`turn`.
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
            if not (deferred and defer_refusal(lambda: self.refuse(question.module, func))):
                self.refuse(question.module, func)
            self.assume(question.module, question.operator, f"{TAKEN} 1")
            return 1.0
        if func in SCALARS:
            if not outside and dtype is not torch.bool:
                self.refuse(question.module, func)
            value, site = self.guesses.value(tensors_of(args), dtype)
            self.assume(question.module, question.operator, f"{TAKEN} {value} in {site}")
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
        self.assume(question.module, question.operator, f"{TAKEN} {value} in {site}")
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
        answer = self.recall(question, self.turn(question))
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

    def assume(self, module: int, operator: str, how: str) -> None:
        """Record what was assumed for an operator."""
        if how is DRAWN:
            self.drew = True
            return
        self.notes[module, operator, how] = self.notes.get((module, operator, how), 0) + 1

    def assumptions(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return how each question was answered, in words."""
        return tuple(
            f"{operator.removeprefix('aten::')} in {_place(module, paths)}, {count} times: {how}"
            for (module, operator, how), count in self.notes.items()
        )


def asking_module(frame: Frame | None) -> int:
    """Return the number of the module whose forward is active, or ``OUTSIDE``."""
    module = module_of(frame)
    return OUTSIDE if module is None else module


def _place(module: int, paths: Sequence[str]) -> str:
    return "the step" if module == OUTSIDE else paths[module] or "the model itself"


SCALARS = frozenset({aten._local_scalar_dense.default, aten.equal.default, aten.allclose.default})
"""Operators that return a Python value instead of a tensor."""

ARRAY = "numpy"
"""Stands for an operator where a tensor is read as an array, for which none runs."""
INDEX = aten.index.Tensor
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
        unclear = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
        may_ask = _MAY_ASK[id(func)] = is_from_library(func) or func is PACK or any(t in func.tags for t in unclear)
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


def size_from_masks(func: OpOverload, args: Any, read: Callable[[Tensor], Tensor | None]) -> Any:
    """Return the size of a selection as known from its masks' values; None if unknown."""
    if func is INDEX:
        return counted(masks_of(args[1]), read)
    if func is aten.masked_select.default:
        value = read(args[1])
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return None if value is None else ((int(value.expand(shape).sum()),), args[0].dtype)
    return None


def counted(masks: Sequence[Tensor], read: Callable[[Tensor], Tensor | None]) -> list[int] | None:
    """Return how many elements of each mask are true; None if one has no values."""
    values = [read(mask) for mask in masks]
    counts = [int(value.sum()) for value in values if value is not None]
    return counts if len(counts) == len(values) else None


def masks_of(indices: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the masks among some indices."""
    return [index for index in indices if index is not None and index.dtype in (torch.bool, torch.uint8)]


def fakes_of(func: OpOverload, args: Any, kwargs: Any, answer: Any, device: torch.device, least: bool = False) -> Any:
    """Return fakes of the given sizes, else of the largest or ``least`` possible; None if those are unknown."""
    if func is INDEX:
        masks = masks_of(args[1])
        for mask, count in zip(masks, answer or ()):
            note_true(mask, count)
        return _indexed(args[0], args[1], [0] * len(masks) if least else answer)
    most = _MOST.get(func.name())
    if answer is None and most is not None:
        answer = most(*args, **kwargs)
        answer = _least(answer) if least else answer
    with in_kernel():
        if answer is not None and func is aten.nonzero.default:
            shape, dtype = answer
            return _by_columns(shape, dtype, device)
        return None if answer is None else _fakes(answer, device)


def _by_columns(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Any:
    """Return positions as ``nonzero`` stores them: all of the first axis, then all of the second, and so on."""
    return wrap(torch.empty_strided(shape, (1, max(1, shape[0])), dtype=dtype, device=META), device)


def _least(specs: Any) -> Any:
    """Return the sizes of an empty selection; of several results, only the first is the selection."""
    if isinstance(specs, list):
        return [_least(specs[0]), *specs[1:]]
    shape, dtype = specs
    return (0, *shape[1:]), dtype


def _fakes(specs: Any, device: torch.device) -> Any:
    if isinstance(specs, list):
        return tuple(_fakes(item, device) for item in specs)
    shape, dtype = specs
    return wrap(torch.empty(shape, dtype=dtype, device=META), device)


def _indexed(x: Tensor, indices: Sequence[Tensor | None], counts: list[int] | None) -> Tensor:
    """Index ``x`` with each mask's count of rows, by default all of them."""
    left = iter(counts if counts is not None else [mask.numel() for mask in masks_of(indices)])
    plain: list[Tensor | None] = []
    with in_kernel():
        for index in indices:
            rank = index.dim() if index is not None and masks_of([index]) else 0
            if rank:
                rows = next(left)
                plain += [torch.empty(rows, dtype=torch.long, device=META) for _ in range(rank)]
            else:
                plain.append(index)
        device = x.fake_device if isinstance(x, Fake) else x.device
        meta = x if isinstance(x, Fake) else torch.empty_like(x, device=META)
        return wrap(INDEX(meta, plain), device)


Most = Callable[..., Any]
_MOST: dict[str, Most] = {}


def most(*operators: str) -> Callable[[Most], Most]:
    """Register the largest possible result of some operators: (shape, dtype), or a list of these."""

    def register(function: Most) -> Most:
        for operator in operators:
            if operator in _MOST:
                raise ValueError(f"{operator} already has a largest result")
            _MOST[operator] = function
        return function

    return register


@most("aten::nonzero")
def _nonzero(x: Tensor) -> Any:
    return (x.numel(), x.dim()), torch.long


@most("aten::masked_select")
def _masked_select(x: Tensor, mask: Tensor) -> Any:
    return (prod(torch.broadcast_shapes(x.shape, mask.shape)),), x.dtype


@most("aten::_unique2", "aten::unique_consecutive")
def _unique(x: Tensor, *flags: Any, **_: Any) -> Any:
    return [((x.numel(),), x.dtype), (tuple(x.shape), torch.long), ((x.numel(),), torch.long)]


@most("aten::unique_dim", "aten::unique_dim_consecutive")
def _unique_dim(x: Tensor, dim: int, *flags: Any, **_: Any) -> Any:
    rows = x.shape[dim]
    return [(tuple(x.shape), x.dtype), ((rows,), torch.long), ((rows,), torch.long)]


@most("torchvision::nms")
def _nms(boxes: Tensor, scores: Tensor, threshold: float) -> Any:
    return (len(boxes),), torch.long
