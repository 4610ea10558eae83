"""Operators whose results depend on values: what they ask on fakes, and how they are answered.

Small tensors keep their values on any device, next to the fakes that stand for them (:class:`ValuedKernels`). Other
sizes and values come from a real step with the same requests (``step/real_steps.py``). Without one, sizes are the
operator's maximum, and values are guessed, numbers only outside forwards. Each answer's origin is recorded.

A guess is that every unknown value is 1. So ``(x < 0).any()`` is False and ``(x >= 0).all()`` True, as checks in
losses, distributions and user code expect. If a step raises nonetheless, the guesses of the last line that asked
before the error are inverted and the step repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import Parameter

from ..live.compat import no_dispatch
from ..live.copying import Copies
from ..live.fakes import (
    CPU,
    META,
    DataDependentError,
    Fake,
    alone,
    defer_refusal,
    fake_like,
    in_kernel,
    is_plain,
    new_fake,
    real_input,
    wrap,
)
from ..live.isolation import draws
from ..ops.scratch.masks import count_true, is_mask, masks_of, note_true
from .kernels import (
    BALANCED,
    CROWDED,
    MASK,
    SETS,
    SMALL,
    FakeKernels,
    Routers,
    asks_values,
    change_tensors,
    moved,
    tensors_of,
    written,
)

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

    def recall(self, request: ValueRequest) -> Any:
        """Count a request, and return the answer that a real step got at the same count; None if it never asked."""
        number = self.times_asked.get(request, 0)
        self.times_asked[request] = number + 1
        answers = (self.recorded or {}).get(request)
        return answers[number % len(answers)] if answers else None

    def answer(
        self, request: ValueRequest, recalled: Any, func: OpOverload, args: Any, kwargs: Any, device: torch.device
    ) -> Any:
        """Return an operator's result on fakes; raises :class:`DataDependentError` if it is unknown.

        ``recalled`` is what :meth:`recall` returned.
        """
        if func in SCALARS and request.module == OPTIMIZER and self.is_search:
            return AssumedValues().value(tensors_of(args), _dtype_asked(func, args))[0]
        if recalled is None:
            return self._guess(request, func, args, kwargs, device)
        self.assume(request.module, request.operator, VALUE if func in SCALARS else FROM_REAL_RUN)
        return recalled if func in SCALARS else fakes_of(func, args, kwargs, recalled, device)

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

    def array(self, request: ValueRequest, recalled: Any, tensor: Tensor) -> Tensor:
        """Return the values of a tensor that is read as an array: a real pass's, else all equal to a guessed one."""
        if recalled is not None:
            self.assume(request.module, request.operator, VALUE)
            with no_dispatch():
                return recalled.clone()  # type: ignore[no-any-return]
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
        recalled = self.recall(request)
        if recalled is None and self.guesses is None:
            self.refuse(func)
        self.assume(request.module, request.operator, MOST if recalled is None else FROM_REAL_RUN)
        return recalled

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

    def __init__(self, inverted: frozenset[str] = frozenset(), least: bool = False, routing: str = BALANCED) -> None:
        self.inverted = inverted
        self.routing = routing
        """``BALANCED``, ``CROWDED``, or "" if routers' choices are not assumed: each expert may get all tokens."""
        self.routers: Routers | None = None
        """The routers with assumed choices."""
        self.least = least
        """Whether sizes that depend on values are assumed empty rather than at their maximum."""
        self.sizes = False
        """Whether any size depended on values."""
        self.times: dict[str, int] = {}
        """How often each site has asked, in the order in which they last asked."""
        self.operators = 0
        """How many operators have run, and requests without an operator been asked."""

    def begin(self) -> None:
        """Reset for a new step."""
        self.times.clear()
        self.sizes = False
        self.operators = 0

    def value(self, tensors: list[Tensor], dtype: torch.dtype) -> tuple[Any, str]:
        """Return a value of a dtype, or whether two tensors are equal, and the site that asks: a line of code."""
        frame = _caller(*_BETWEEN)
        site = f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
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


class ValuedKernels(FakeKernels):
    """Fake kernels that also know small tensors' values on a GPU, and answer operators that depend on values.

    A small tensor on the CPU is real as long as it has values. On a GPU it is a fake with a CPU tensor of its values
    next to it, and operators run on both, so ``mask.all()`` steers a forward alike on every device.
    """

    def __init__(self, device: torch.device, answers: ValueSource) -> None:
        super().__init__(device)
        self.answers = answers
        self.keeps_places = False
        """Whether a model's tensors and inputs on the CPU stay there, beside others on the GPU."""
        self.others_stay = False
        """Whether tensors on the CPU besides the model stay there, since the model is on the GPU already."""
        self.outdated: MutableMapping[int, torch.UntypedStorage] = WeakValueDictionary()
        self.made_up: dict[str, MutableMapping[int, torch.UntypedStorage]] = {
            how: WeakValueDictionary() for how in (MADE_UP, BALANCED, DRAWN)
        }
        """Storages of values that another run may not have, by why."""
        self._copies = Copies(CPU)

    def again(self, tensor: Tensor) -> Tensor:
        """Return the replacement of a buffer that another module has as well."""
        return self._alone(tensor, self._place(tensor), 0 if _is_measure(tensor) else SMALL)

    def offloaded(self, tensor: Tensor) -> Tensor:
        """Return the replacement of an offloaded weight in CPU memory."""
        return self._without_values(tensor, CPU)

    def parameter(self, tensor: Tensor, place: torch.device | None = None) -> Tensor:
        """Return the replacement of a parameter."""
        fake = self._moved(tensor, place or self._place(tensor), 0)
        fake._is_param = True
        return fake

    def buffer(self, tensor: Tensor, is_registered: bool = True) -> Tensor:
        """Return the replacement of a model's buffer, or of its other tensor, which lies where what it views does."""
        stays = self.others_stay and tensor.device.type == "cpu"  # The model moved, and an attribute did not.
        make = self._moved if is_registered else self._stand_in
        return make(tensor, CPU if stays else self._place(tensor), 0 if _is_measure(tensor) else SMALL)

    def of_input(self, tensor: Tensor) -> Tensor:
        """Return the replacement of an input."""
        return self._moved(tensor, self._place(tensor), 0 if _is_measure(tensor) else MASK)

    def _place(self, tensor: Tensor) -> torch.device:
        return CPU if self.keeps_places and tensor.device.type == "cpu" else self.device

    def other(self, tensor: Tensor, is_of_module: bool) -> Tensor:
        """Return the replacement of a tensor the steps hold besides the model, with its values if it is small.

        It moves to the device with the model, except a single number, which operators accept from the CPU; if it is
        another module's, a number moves too.
        """
        is_on_cpu = tensor.device.type == "cpu"
        stays = is_on_cpu and self.others_stay
        if isinstance(tensor, Parameter):
            return self.parameter(tensor, CPU if stays else None)
        stays |= is_on_cpu and not (is_of_module or tensor.dim())
        make = self._moved if is_of_module else self._stand_in
        return make(tensor, CPU if stays else self.device, 0 if tensor.requires_grad else SMALL)

    def of_package(self, tensor: Tensor) -> Tensor:
        """Return the replacement of a tensor that an installed package keeps, which does not move with the model."""
        place = CPU if tensor.device.type == "cpu" else self.device
        return self._stand_in(tensor, place, 0 if tensor.requires_grad else SMALL)

    def _moved(self, tensor: Tensor, device: torch.device, most: int) -> Tensor:
        """Return :meth:`_stand_in`; a tensor moves to another kind of device without the rest of its storage."""
        moves = device.type not in ("cpu", tensor.device.type) and is_plain(tensor)
        if moves and not self.meta_storages.moves_storage(tensor):
            return self._alone(tensor, device, most)
        return self._stand_in(tensor, device, most)

    def _alone(self, tensor: Tensor, device: torch.device, most: int) -> Fake:
        fake = alone(tensor, device)
        if tensor.device.type != "meta" and tensor.numel() <= most:
            fake.known = tensor.detach().clone()
        return fake

    def _stand_in(self, tensor: Tensor, device: torch.device, most: int) -> Tensor:
        """Return a fake, or a real copy of at most ``most`` elements; on a GPU a fake that knows its values.

        A view of a tensor that is already a fake is a fake too; a view of a copied one is on the copy.
        """
        if not is_plain(tensor) or tensor.device.type == "meta" or tensor.numel() > most or tensor.requires_grad:
            return self._without_values(tensor, device)
        storage = tensor.untyped_storage()
        is_large = storage.nbytes() > (SMALL if _is_measure(tensor) else MASK) * tensor.element_size()
        if is_large or (tensor not in self._copies and self.meta_storages.of(storage) is not storage):
            return self._without_values(tensor, device)
        values = self._copies.of(tensor.detach())
        if device.type == "cpu":
            self.note_created(values)
            return values
        fake = self.meta_storages.fake(tensor, device)
        fake.known = values
        return fake

    def _without_values(self, tensor: Tensor, device: torch.device) -> Fake:
        is_copied = device.type == "cpu" and is_plain(tensor) and tensor in self._copies
        shared = self._copies.of(tensor.detach()) if is_copied else tensor
        return self.meta_storages.fake(shared, device, tensor.requires_grad)

    def finish(self) -> None:
        """Replace everything that exists before the steps; from then on replacements live as the program decides."""
        self.meta_storages.release(self.created)
        self._copies.finish()

    def input_of(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an input known only by its size."""
        is_whole = not dtype.is_floating_point and not dtype.is_complex
        has_values = is_whole and torch.Size(shape).numel() <= MASK
        stand_in = self._stand_in(real_input(shape, dtype, CPU if has_values else META), self.device, MASK)
        values = self._value_of(stand_in)
        if values is not None:
            self.note_made_up(values, MADE_UP)
        return stand_in

    def choice_of(self, indices: Tensor) -> Tensor:
        """Return a router's assumed choice as a tensor of this pass."""
        self.note_made_up(indices, BALANCED)
        return self._on_device(super().choice_of(indices))

    def note_made_up(self, values: Tensor, how: str) -> None:
        """Remember that values are assumed."""
        storage = values.untyped_storage()
        self.made_up[how][storage._cdata] = storage

    def made_up_by(self, operands: Sequence[Tensor]) -> list[str]:
        """Return the assumptions behind the values of some tensors."""
        if not any(self.made_up.values()):
            return []
        values = [self._value_of(tensor) for tensor in operands]
        keys = {value.untyped_storage()._cdata for value in values if value is not None}
        return [how for how, storages in self.made_up.items() if not keys.isdisjoint(storages)]

    def say_if_made_up(self, operator: str, operands: Sequence[Tensor]) -> None:
        """Record the assumptions behind the values that an operator reads."""
        for how in self.made_up_by(operands):
            self.answers.assume(self.module(), operator, how)

    def module(self) -> int:
        """Return the number of the module that the current operator runs for."""
        raise NotImplementedError

    def with_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on fakes, and on known values beside them; one that asks for values is answered."""
        if not isinstance(func, OpOverload):
            return self.on_fakes(func, args, kwargs)
        if func is FIND_OVERFLOW:
            self.answers.assume(self.module(), func.name(), NO_OVERFLOW)
            return None
        masks = masks_of(args[1]) if id(func) in PUTS else ()
        if masks:  # How many of their elements are true, if values or a real pass tell.
            recalled = self.answers.recall(request(self.module(), PUT, args))
            for mask, count in zip(masks, mask_counts(masks, self._value_of) or recalled or ()):
                note_true(mask, count)
        reads = _READING.get(func._schema.name)
        if reads is not None:
            return self.note_created(reads(partial(self.read_lengths, func, args), *args, **kwargs))
        asking = asks(func, args, kwargs)
        if self.device.type == "cpu" and not asking:
            return self.on_fakes(func, args, kwargs)
        operands = tensors_of((*args, *kwargs.values()))
        fakes = [tensor for tensor in operands if isinstance(tensor, Fake)]
        if asking:
            return self._answered(func, args, kwargs, operands, fakes)
        if not operands:  # On a GPU, a small result has values.
            out = self.on_fakes(func, args, kwargs)
            on_card = isinstance(out, Fake) and out.fake_device.type != "cpu"
            if on_card and out.numel() <= self.most_known([out]) and kwargs.get("generator") is None:
                out.known = self._really(func, args, moved(kwargs, CPU))
            return out
        changed = written(func, args, kwargs) if func._schema.is_mutable else []
        if (
            (id(func) in SETS and fakes)  # The tensor's old values are gone, and a storage has no known ones.
            or not (fakes or self.leaves_cpu(kwargs))
            or any(self._value_of(t, any(t is other for other in changed)) is None for t in operands)
            or kwargs.get("generator") is not None
            or not self.is_small(func, args, kwargs, operands)
        ):
            return self._run_without_values(func, args, kwargs)
        try:
            values = self._on_values(func, args, kwargs)
        except NotImplementedError:  # An operator that only GPUs have, such as cuDNN's attention.
            return self._run_without_values(func, args, kwargs)
        device = kwargs.get("device")
        if not tensors_of(values) or (device is not None and torch.device(device).type == "cpu"):
            return values
        out = self.on_fakes(func, args, kwargs)
        for tensor in changed:
            # The operator has also written to the known values.
            self.outdated.pop(tensor.untyped_storage()._cdata, None)
        for fake, known in zip(tensors_of(out), tensors_of(values)):
            if isinstance(fake, Fake):
                fake.known = known
        return out

    __call__ = with_values

    def _answered(self, func: OpOverload, args: Any, kwargs: Any, operands: list[Tensor], fakes: list[Fake]) -> Any:
        """Return the result of an operator that asks for values: from its arguments, else from the answers."""
        query = request(self.module(), func, args)
        recalled = self.answers.recall(query)
        if all(self._value_of(tensor) is not None for tensor in operands):
            self.say_if_made_up(func.name(), operands)
            values = self._on_values(func, args, kwargs)
            return values if not fakes else change_tensors(values, self._on_device)
        device = fakes[0].fake_device if fakes else self.device
        size = size_from_masks(func, args, self._value_of)
        if size is not None:
            self.say_if_made_up(func.name(), operands)
            return fakes_of(func, args, kwargs, size, device)
        if is_from_library(func):
            with suppress(RuntimeError, NotImplementedError):
                return self.on_fakes(func, args, kwargs)
        return self.answers.answer(query, recalled, func, args, kwargs, device)

    def _on_device(self, values: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return values
        fake = fake_like(values, self.device)
        fake.known = values
        return fake

    def _value_of(self, tensor: Tensor, is_written: bool = False) -> Tensor | None:
        """Return a tensor's values; None if unknown."""
        if not isinstance(tensor, Fake):
            return tensor if self._is_known(tensor, is_written) else None
        outdated = tensor.known is None or tensor.untyped_storage()._cdata in self.outdated
        return None if outdated else tensor.known

    def values_of(self, fake: Tensor) -> Tensor:
        """Return the values that a step reads as an array; raises :class:`DataDependentError` if they are unknown."""
        query = request(self.module(), ARRAY, (fake,))
        recalled = self.answers.recall(query)
        values = self._value_of(fake)
        if values is None:
            return self.answers.array(query, recalled, fake)
        self.say_if_made_up(ARRAY, [fake])
        return values

    def read_lengths(self, func: OpOverload, args: Any, tensor: Tensor) -> list[int] | None:
        """Return the content of a tensor of lengths; None if they are assumed to be the longest."""
        content = self._value_of(tensor)
        values = None if content is None else content.tolist()
        self.say_if_made_up(func.name(), [tensor])
        if values is None and func is PACK:
            values = self.answers.lengths(request(self.module(), func, args), func)
        return values

    def _on_values(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an operator on its arguments' values."""

        def value(tensor: Tensor) -> Tensor:
            values = self._value_of(tensor)
            return tensor if values is None else values

        return self._really(func, change_tensors(args, value), moved(change_tensors(kwargs, value), CPU))

    def _really(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on values, and note results that come from made-up ones or are drawn at random."""
        hows = self.made_up_by(tensors_of((*args, *kwargs.values()))) if any(self.made_up.values()) else []
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            hows = [*hows, DRAWN]
        out = super()._really(func, args, kwargs)
        for tensor in tensors_of((out,)) if hows else ():
            for how in hows:
                self.note_made_up(tensor, how)
        return out

    def _run_without_values(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run an operator, and forget the values of the tensors that it writes to."""
        out = self.on_fakes(func, args, kwargs)
        for tensor in written(func, args, kwargs) if func._schema.is_mutable else ():
            if isinstance(tensor, Fake):
                storage = tensor.untyped_storage()
                self.outdated[storage._cdata] = storage
        return out


def _is_measure(tensor: Tensor) -> bool:
    """Whether a tensor holds measurements, which rarely steer a program, rather than counts."""
    return tensor.is_floating_point() or tensor.is_complex()


FIND_OVERFLOW = aten._amp_foreach_non_finite_check_and_unscale_.default
"""The operator by which a gradient scaler decides whether to skip a step. It allocates nothing; here it finds no
overflow."""
NO_OVERFLOW = "the gradient scaler is assumed to find no overflow; if it did, it would skip the optimizer's step"


Read = Callable[[Tensor], "list[int] | None"]
"""Returns a tensor's content; None if unknown."""


def _pack(read: Read, x: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    """The concatenated rows of each step and their counts; unknown lengths are assumed the longest."""
    steps = x.shape[1 if batch_first else 0]
    known = read(lengths) or [steps] * lengths.numel()
    sizes = torch.tensor([sum(length > step for length in known) for step in range(max(known))])
    return new_fake((sum(known), *x.shape[2:]), x.dtype, x.device), sizes


def _ctc(read: Read, scores: Tensor, targets: Tensor, inputs: Any, lengths: Any, *_: Any, **__: Any) -> Any:
    """Each sequence's loss, and the table for the backward: two columns per label, and one."""
    steps, batch = scores.shape[:2]
    known = read(lengths) if isinstance(lengths, Tensor) else list(lengths)
    longest = max(known) if known else longest_target(scores, targets)
    table = new_fake((batch, steps, 2 * longest + 1), scores.dtype, scores.device)
    return new_fake((batch,), scores.dtype, scores.device), table


def longest_target(scores: Tensor, targets: Tensor) -> int:
    """Return the most labels that a CTC sequence can have."""
    return targets.shape[1] if targets.dim() == 2 else scores.shape[0]


_READING: dict[str, Callable[..., Any]] = {
    "aten::_pack_padded_sequence": _pack,
    "aten::_pack_padded_sequence_backward": lambda _, grad, size, *__: new_fake(size, grad.dtype, grad.device),
    "aten::_ctc_loss": _ctc,
    "aten::_ctc_loss_backward": lambda _, grad, x, *__, **___: new_fake(x.shape, x.dtype, x.device),
    # cuDNN's CTC needs concatenated int32 targets on the CPU, so torch's own kernel is assumed.
    **dict.fromkeys(("aten::_use_cudnn_ctc_loss", "aten::_use_miopen_ctc_loss"), lambda *_, **__: False),
}
"""Fake kernels of operators that read lengths; they take a :data:`Read` before the arguments."""
