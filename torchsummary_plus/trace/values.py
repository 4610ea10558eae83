"""Operators whose results depend on values: what they ask on fakes, and how they are answered.

Sizes and values come from a real step with the same requests (``step/real_steps.py``). Without one, sizes are the
operator's maximum, and values are guessed, numbers only outside forwards. Each answer's origin is recorded.

A guess is that every unknown value is 1. So ``(x < 0).any()`` is False and ``(x >= 0).all()`` True, as checks in
losses, distributions and user code expect. If a step raises nonetheless, the guesses of the last line that asked
before the error are inverted and the step repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..live.compat import no_dispatch
from ..live.fakes import CPU, META, DataDependentError, Fake, defer_refusal, in_kernel, wrap
from ..live.isolation import draws
from ..ops.scratch.masks import count_true, is_mask, masks_of, note_true
from .assumed_routing import BALANCED, CROWDED, Routers
from .kernels import asks_values, change_tensors, tensors_of

OUTSIDE, OPTIMIZER = -1, -2
"""Module numbers of what happens in no module's forward; the second is an optimizer's step."""


class ValueRequest(NamedTuple):
    """A request: the asking module's number, the operator, and its tensors' shapes.

    A real optimizer on the CPU reads other numbers than one on CUDA, so it is not taken for the step's other code.
    """

    module: int
    operator: str
    shapes: tuple[torch.Size, ...]


FROM_REAL_RUN = "sizes taken from a real run"
MOST = "assumed to return its maximum size"
VALUE = "value taken from a real run"
ASSUMED = "value assumed to be"
DRAWN = "drawn at random"
"""Origin of values that other random numbers would change: noted by ``ValueSource.drew`` alone."""
MADE_UP = "answered as if integer inputs were all zeros; pass real inputs as input_data="

aten = torch.ops.aten


class ValueSource:
    """Answers to operators that ask for values.

    ``recorded`` holds the answers of a real step, in order by request; None before there was one. A repeated forward,
    in the next step or for a checkpoint, asks the same requests again, so the answers rotate. Other requests are
    answered by ``guesses``, if given.
    """

    def __init__(
        self,
        recorded: dict[ValueRequest, list[Any]] | None = None,
        guesses: AssumedValues | None = None,
    ) -> None:
        self.recorded = recorded
        self.guesses = guesses
        self.times_asked: dict[ValueRequest, int] = {}
        self.notes: dict[tuple[int, str, str], int] = {}
        self.refused = False
        """Whether any answer was refused."""
        self.is_over = False
        """Whether the pass has ended, after which numbers that the program kept may be used as they are."""
        self.drew = self.loaded = False
        """Whether code asked for a random value, and whether torch's code for loading data did."""
        self.is_search = False
        """Whether the optimizer is assumed to run to its limits, whatever a real one does."""

    def count(self, request: ValueRequest) -> int:
        """Return how often this request was asked before, and count it."""
        number = self.times_asked.get(request, 0)
        self.times_asked[request] = number + 1
        return number

    def recall(self, request: ValueRequest, number: int, how: str = "") -> Any:
        """Return the answer that a real step got the ``number``-th time; None if it never asked.

        With ``how``, it is recorded for the user.
        """
        answers = (self.recorded or {}).get(request)
        if answers and how:
            self.assume(request.module, request.operator, how)
        return answers[number % len(answers)] if answers else None

    def answer(
        self, request: ValueRequest, number: int, func: OpOverload, args: Any, kwargs: Any, device: torch.device
    ) -> Any:
        """Return an operator's result on fakes; raises :class:`DataDependentError` if it is unknown.

        ``number`` is the request's count from :meth:`count`.
        """
        if func in SCALARS and request.module == OPTIMIZER and self.is_search:
            return AssumedValues().value(tensors_of(args), _dtype_asked(func, args))[0]
        answer = self.recall(request, number, VALUE if func in SCALARS else FROM_REAL_RUN)
        if answer is None:
            return self._guess(request, func, args, kwargs, device)
        return answer if func in SCALARS else fakes_of(func, args, kwargs, answer, device)

    def _guess(self, request: ValueRequest, func: OpOverload, args: Any, kwargs: Any, device: torch.device) -> Any:
        """Answer a request that no real step answers."""
        outside = request.module < 0
        dtype = _dtype_asked(func, args)

        def refuse_before_end() -> None:
            if not self.is_over:
                self.refuse(func)

        if self.guesses is None:
            deferred = outside and func in SCALARS and dtype.is_floating_point
            if not (deferred and defer_refusal(refuse_before_end)):
                self.refuse(func)
            self.assume(request.module, request.operator, f"{ASSUMED} 1")
            return 1.0
        if func in SCALARS:
            return self._guessed(request, func, tensors_of(args), dtype)
        self.guesses.sizes = True
        result = fakes_of(func, args, kwargs, None, device, self.guesses.least)
        if result is None:
            self.refuse(func)
        self.assume(request.module, request.operator, MOST)
        return result

    def array(self, request: ValueRequest, number: int, tensor: Tensor) -> Tensor:
        """Return the values of a tensor that is read as an array: a real pass's, else all equal to a guessed one."""
        values = self.recall(request, number, VALUE)
        if values is not None:
            with no_dispatch():
                return values.clone()  # type: ignore[no-any-return]
        if tensor.numel() > LARGEST:
            self.refuse(request.operator)
        value = self._guessed(request, request.operator, [tensor], tensor.dtype)
        with no_dispatch():
            return torch.full(tensor.shape, value, dtype=tensor.dtype, device=CPU)

    def _guessed(self, request: ValueRequest, func: Any, tensors: list[Tensor], dtype: torch.dtype) -> Any:
        """Return a guessed value; a forward's numbers are not guessed."""
        if self.guesses is None or (request.module >= 0 and dtype is not torch.bool):
            self.refuse(func)
        value, site = self.guesses.value(tensors, dtype)
        self.assume(request.module, request.operator, f"{ASSUMED} {value} in {site}")
        return value

    def lengths(self, request: ValueRequest, func: OpOverload) -> Any:
        """Return the lengths of packed sequences; None if they are assumed to be the longest possible."""
        answer = self.recall(request, self.count(request), FROM_REAL_RUN)
        if answer is None and self.guesses is None:
            self.refuse(func)
        if answer is None:
            self.assume(request.module, request.operator, MOST)
        return answer

    def refuse(self, func: OpOverload | str) -> NoReturn:
        """Raise :class:`DataDependentError` and remember it, since the caller may catch it."""
        self.refused = True
        raise DataDependentError(f"{func} needs the values of a tensor")

    def close(self) -> None:
        """Note that the pass has ended."""
        self.is_over = True

    def assume(self, module: int, operator: str, how: str) -> None:
        """Record what was assumed for an operator."""
        if how is DRAWN:  # torch's own code for loading data draws seeds of generators and the order of items.
            loads = _caller(*_CALLED).f_code.co_filename.startswith(_LOADING)
            self.loaded, self.drew = self.loaded or loads, self.drew or not loads
            return
        self.notes[module, operator, how] = self.notes.get((module, operator, how), 0) + 1

    def assumptions(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return how each request was answered, in words."""
        return tuple(
            f"{operator.removeprefix('aten::')} in {_place(module, paths)}, {count} times: {how}"
            for (module, operator, how), count in self.notes.items()
        )


def _place(module: int, paths: Sequence[str]) -> str:
    if module < 0:
        return "the optimizer" if module == OPTIMIZER else "the step"
    return paths[module] or "the model itself"


SCALARS = frozenset({aten._local_scalar_dense.default, aten.equal.default, aten.allclose.default})
"""Operators that return a Python value instead of a tensor."""

ARRAY, PUT = "numpy", "aten::index_put"
"""The requests of a tensor's values, which become an array, and of how many elements of a write's masks are true."""
PUTS = {id(aten.index_put.default), id(aten.index_put_.default)}
"""By identity: writes to masked positions, whose scratch memory depends on how many there are."""
PACK = aten._pack_padded_sequence.default


def _dtype_asked(func: OpOverload, args: Any) -> torch.dtype:
    """Return the dtype of the single value asked for."""
    dtype: torch.dtype = args[0].dtype if func is aten._local_scalar_dense.default else torch.bool
    return dtype


def request(module: int, func: OpOverload | str, operands: Any) -> ValueRequest:
    """Return an operator's request, ``ARRAY`` or ``PUT``. One for a single value asks the same at any shape."""
    shapes = () if func in SCALARS else tuple(tensor.shape for tensor in tensors_of(operands))
    return ValueRequest(module, func if isinstance(func, str) else func.name(), shapes)


def asks(func: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether this call's result depends on values."""
    may_ask = _MAY_ASK.get(id(func))
    if may_ask is None:
        may_ask = _MAY_ASK[id(func)] = is_from_library(func) or func is PACK or asks_values(func)
    if not may_ask or func is PACK:
        return may_ask
    return bool(masks_of(args[1])) if func is INDEX else kwargs.get("output_size") is None


def is_from_library(func: OpOverload) -> bool:
    """Whether an operator belongs to another library, so that its fake kernel may be missing or fail."""
    return func.namespace not in ("aten", "prim", "prims")


_MAY_ASK: dict[int, bool] = {}
"""Keyed by id: operators are slow to hash, and every operator of a pass is looked up."""


def record(func: OpOverload, args: Any, out: Any) -> Any:
    """Return a real operator's answer in the form that :class:`ValueSource` replays."""
    if func is INDEX:
        return [int(mask.sum()) for mask in masks_of(args[1])]
    if func is PACK:
        return args[1].tolist()
    return change_tensors(out, lambda tensor: _sized(tensor.shape, tensor.dtype))


def _sized(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a meta tensor, which stands for any of its size."""
    with in_kernel():
        return torch.empty(shape, dtype=dtype, device=META)


OFTEN = 100
"""Equal answers in a row at one site after which the opposite is returned, since a loop may be waiting for it."""

LONGEST_LOOP = 20_000
"""Most operators of a step in which a site asks without end; shorter loops may just read a list of tensors."""

MOST_TURNS = 8
"""Most sites whose answers are inverted, one after the other, while the step raises."""

MOST_ALTERNATIVES = 4
"""Sites whose opposite answer is also tried, for the step's least and greatest peak."""


def note_at_one(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Attach to a boolean fake its value for inputs of 1: computed on single elements, else the first operand's."""
    if not isinstance(out, Fake) or out.dtype is not torch.bool:
        return
    operands = [tensor for tensor in tensors_of((args, kwargs)) if isinstance(tensor, Fake)]
    out.at_one = operands[0].at_one if operands and operands[0].dtype is torch.bool else None
    if operands and isinstance(func, OpOverload) and not is_from_library(func) and not draws(func):
        with suppress(Exception), torch.no_grad():
            out.at_one = bool(func(*change_tensors(args, _one), **change_tensors(kwargs, _one)))


def _one(tensor: Tensor) -> Tensor:
    """Return a single element in place of a tensor: a real one's value, a boolean fake's at 1, or 1."""
    if isinstance(tensor, Fake):
        return torch.full((), tensor.at_one is not False, dtype=tensor.dtype)
    return tensor.flatten()[0].clone() if tensor.numel() == 1 else torch.ones((), dtype=tensor.dtype)


class Site(NamedTuple):
    """A line of user or library code that asks for a value."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({Path(self.file).name}:{self.line})"


_OURS = str(Path(__file__).parents[1])
_TORCH = Path(torch.__file__).parent
_CALLED = tuple(str(_TORCH / name) for name in ("_tensor.py", "_ops.py", "overrides.py"))
_BETWEEN = (*_CALLED, str(_TORCH / "utils"))
_LOADING = str(_TORCH / "utils" / "data")


def _caller(*between: str) -> FrameType:
    """Return the innermost frame of code outside this package and the files of torch that lie ``between``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_OURS, *between)):
        frame = frame.f_back
    return frame


class AssumedValues:
    """Guessed values for a step that no real one can supply; those of the sites in ``inverted`` are inverted."""

    def __init__(self, inverted: frozenset[Site] = frozenset(), least: bool = False, routing: str = BALANCED) -> None:
        self.inverted = inverted
        self.routing = routing
        """``BALANCED``, ``CROWDED``, or "" if routers' choices are not assumed: each expert may get all tokens."""
        self.routers: Routers | None = None
        """The routers with assumed choices."""
        self.least = least
        """Whether sizes that depend on values are assumed empty rather than at their maximum."""
        self.sizes = False
        """Whether any size depended on values."""
        self.times: dict[Site, int] = {}
        """How often each site has asked, in the order in which they last asked."""
        self.operators = 0
        """How many operators have run, and requests without an operator been asked."""

    def begin(self) -> None:
        """Reset for a new step."""
        self.times.clear()
        self.sizes = False
        self.operators = 0

    def value(self, tensors: list[Tensor], dtype: torch.dtype) -> tuple[Any, Site]:
        """Return a value of a dtype, or whether two tensors are equal, and the site that asks."""
        frame = _caller(*_BETWEEN)
        site = Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        number = self.times.pop(site, 0)
        self.times[site] = number + 1
        self.operators += 1
        if number >= 10 * OFTEN and self.operators > LONGEST_LOOP:
            raise DataDependentError(f"{site} keeps reading a value: no assumed value ends its loop")
        value = len(tensors) > 1 or getattr(tensors[0], "at_one", None) is not False
        if (site in self.inverted) != bool(number // OFTEN % 2):
            value = not value
        return torch.full((), value, dtype=dtype).item(), site

    def after_failure(self) -> AssumedValues | None:
        """Return guesses with the last site not yet inverted inverted as well; None after ``MOST_TURNS``."""
        last = next((site for site in reversed(self.times) if site not in self.inverted), None)
        if last is None or len(self.inverted) == MOST_TURNS:
            return None
        return AssumedValues(self.inverted | {last}, routing=self.routing)

    def alternatives(self) -> list[AssumedValues]:
        """Return other possible guesses: each of a few sites inverted, the smallest sizes, other routing."""
        how = self.routing
        guesses = [AssumedValues(self.inverted ^ {site}, routing=how) for site in list(self.times)[:MOST_ALTERNATIVES]]
        guesses += [AssumedValues(self.inverted, least=True, routing=how)] if self.sizes else []
        if self.routers and self.routers.were_asked:
            guesses += [AssumedValues(self.inverted, routing=CROWDED)]
            guesses += [AssumedValues(self.inverted, routing="", least=least) for least in (False, True)]
        return guesses


INDEX = aten.index.Tensor

LARGEST = 1 << 27
"""Most elements that a pass may read as arrays: half a GiB in float32."""


def size_from_masks(func: OpOverload, args: Any, read: Callable[[Tensor], Tensor | None]) -> Any:
    """Return the size of a selection as known from its masks' values; None if unknown."""
    if func is INDEX:
        return mask_counts(masks_of(args[1]), read)
    if func is aten.masked_select.default:
        value = read(args[1])
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return None if value is None else _sized((int(value.expand(shape).sum()),), args[0].dtype)
    if func is aten.nonzero.default:
        count = count_true(args[0])
        return None if count is None else _sized((count, args[0].dim()), torch.int64)
    return None


def mask_counts(masks: Sequence[Tensor], read: Callable[[Tensor], Tensor | None]) -> list[int] | None:
    """Return how many elements of each mask are true; None if one has no values."""
    values = [read(mask) for mask in masks]
    counts = [int(value.sum()) for value in values if value is not None]
    return counts if len(counts) == len(values) else None


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
        if least:  # Of several results, only the first is the selection.
            answer = answer[:0] if isinstance(answer, Tensor) else (answer[0][:0], *answer[1:])
    with in_kernel():
        if answer is not None and func is aten.nonzero.default:
            # It stores positions by columns: all of the first axis, then all of the second.
            answer = torch.empty_strided(answer.shape, (1, max(1, len(answer))), dtype=torch.long, device=META)
        return change_tensors(answer, lambda tensor: wrap(torch.empty_like(tensor), device))


def _indexed(x: Tensor, indices: Sequence[Tensor | None], counts: list[int] | None) -> Tensor:
    """Index ``x`` with each mask's count of rows, by default all of them."""
    left = iter(counts if counts is not None else [mask.numel() for mask in masks_of(indices)])
    plain: list[Tensor | None] = []
    with in_kernel():
        for index in indices:
            rank = index.dim() if index is not None and is_mask(index) else 0
            if rank:
                rows = next(left)
                plain += [torch.empty(rows, dtype=torch.long, device=META) for _ in range(rank)]
            else:
                plain.append(index)
        device = x.fake_device if isinstance(x, Fake) else x.device
        meta = x if isinstance(x, Fake) else torch.empty_like(x, device=META)
        return wrap(INDEX(meta, plain), device)


def _largest_unique(x: Tensor, *flags: Any, **_: Any) -> Any:
    return _sized((x.numel(),), x.dtype), _sized(x.shape, torch.long), _sized((x.numel(),), torch.long)


def _largest_unique_rows(x: Tensor, dim: int, *flags: Any, **_: Any) -> Any:
    return _sized(x.shape, x.dtype), *(_sized((x.shape[dim],), torch.long) for _ in range(2))


_MOST: dict[str, Callable[..., Any]] = {
    "aten::nonzero": lambda x: _sized((x.numel(), x.dim()), torch.long),
    "aten::masked_select": lambda x, mask: _sized((prod(torch.broadcast_shapes(x.shape, mask.shape)),), x.dtype),
    "aten::_unique2": _largest_unique,
    "aten::unique_consecutive": _largest_unique,
    "aten::unique_dim": _largest_unique_rows,
    "aten::unique_dim_consecutive": _largest_unique_rows,
    "torchvision::nms": lambda boxes, scores, threshold: _sized((len(boxes),), torch.long),
}
"""The largest possible result of an operator, on meta."""
