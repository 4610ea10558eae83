"""Allocations of CPU kernels: each runs once on zeros while torch's profiler records what it allocates and frees.

A call that would take long or much memory runs in two smaller sizes instead, with fewer rows along one of the first two
axes, such as the batch's, in every tensor that has as many. If its allocations there are constant or proportional to
the size (three sizes may show another line), those at its own size follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..live import compat
from ..live.fakes import CPU, META, Fake
from ..live.isolation import draws, no_collection, taking_generator
from ..live.structures import INERT
from ..live.weights import repacked
from ..ops.backends import float32_precisions, takes_onednn
from ..ops.macs import multiply_adds
from ..ops.macs.free import is_free
from ..ops.macs.registry import FORMULAS, base_name
from ..ops.scratch.masks import masked_rows, masks_of, written_rows
from ..ops.scratch.registry import (
    SCRATCH,
    UNMODELLED,
    Alloc,
    Free,
    Result,
    Step,
    Timeline,
)
from ..trace.kernels import OF_STORAGES, asks_values, change_tensors, tensors_of

AT_ONCE, AT_ONCE_WORK = 1 << 19, 3 * 10**8
"""Most elements and multiply-adds, per thread, of a call that is tried in its own size first: milliseconds."""

LARGEST = 1 << 29
"""Most bytes of a tried call's arguments and results."""

LONGEST = 10**11
"""Most multiply-adds of a tried call: seconds on one core."""

NOT_LIBRARIES = frozenset(
    {"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp"}
)
"""torch's own operators, profiler annotations, and communication between processes."""

SHORT = 4
"""A first axis of fewer elements is a batch too small to be made smaller."""


class Call(NamedTuple):
    """An operator's arguments and its result; those of a smaller call are on meta."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any


@cache
def is_foreign(name: str) -> bool:
    """Whether an operator belongs to a library without scratch-memory rules.

    >>> is_foreign("aten::mm"), is_foreign("torchvision::nms")
    (False, True)
    """
    return name.partition("::")[0] not in NOT_LIBRARIES


@cache
def is_unstudied(name: str) -> bool:
    """Whether an operator of torch is one that no table of this package knows, as are those of later releases.

    >>> is_unstudied("aten::mm"), is_unstudied("aten::relu"), is_unstudied("aten::of_tomorrow")
    (False, False, True)
    """
    plain, func = name.partition(".")[0], overload_of(name)
    if not name.startswith("aten::") or base_name(plain) in FORMULAS or (func is not None and is_free(func)):
        return False
    return {plain, name}.isdisjoint({known for _, known in SCRATCH}.union(*UNMODELLED.values()))


def unfreed_bytes(timeline: Timeline) -> int:
    """Return the bytes that a kernel allocates and does not free.

    QNNPACK's allocator does not report what it frees (c10/core/CPUAllocator.cpp, ``DefaultMobileCPUAllocator``).

    >>> unfreed_bytes((Alloc(8), Alloc(4), Free(0)))
    4
    """
    freed = {step.buffer for step in timeline if isinstance(step, Free)}
    buffers = [step for step in timeline if isinstance(step, Alloc)]
    return sum(buffer.nbytes for number, buffer in enumerate(buffers) if number not in freed)


aten = torch.ops.aten

Fill = Callable[[Tensor], object]

Timelines = dict[Any, "Timeline | None"]
"""Timelines of calls by all that they depend on; None if a call cannot be tried."""

_COURSES: Timelines = {}
_REMEMBERED = 10_000


def tried(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, of_libraries: Timelines
) -> Timeline | None:
    """Return a CPU kernel's allocations in order; None if it cannot be tried.

    It runs on zeros in the fakes' shapes and on copies of tensors with values, so nothing else is written to; with
    gradients if the step has them, as a recurrent layer then allocates otherwise (mkldnn/RNN.cpp), and under the
    autocast that reaches it. Timelines of torch's kernels are remembered for all estimates; ``of_libraries`` remembers
    for one those of other libraries' operators, which may be defined anew, and of objects of packed weights.
    """
    func = _operator(name) if name.startswith("aten::") else overload_of(name)
    if func is None or name in UNMODELLED["cpu"] or compat.profiler_enabled():
        return None
    if _only_views(func) or func._schema.name in OF_STORAGES or name.startswith("profiler::"):
        return ()  # At most a result, in the size of its fake.
    casts = is_foreign(name) and compat.is_cast_inside("cpu")
    surroundings = (
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.backends.mkldnn.enabled,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        float32_precisions(),
        casts and torch.get_autocast_dtype("cpu"),
    )
    read: list[Any] = [id(func), surroundings]
    operands: list[Tensor] = []
    _read((*args, *kwargs, *kwargs.values()), read, operands)
    if any(tensor.layout is not torch.strided for tensor in (*operands, *tensors_of(out))):
        return None
    ids = list(map(id, operands))
    read += (_selected(func, args, out), tuple(map(ids.index, ids)))  # Which are one tensor.
    read += [] if torch.Tag.pointwise in func.tags else _contents(operands)
    known = of_libraries if is_foreign(name) or _has_packed(args) else _COURSES
    key, call = tuple(read), Call(args, kwargs, out)
    try:
        return known[key]
    except KeyError:
        if len(known) >= _REMEMBERED:
            known.clear()
        known[key] = timeline = _afresh(func, call, casts)
        return timeline
    except TypeError:  # An argument cannot be a key.
        return _afresh(func, call, casts)


def _has_packed(args: tuple[Any, ...]) -> bool:
    """Whether arguments have an object of packed weights."""
    return any(isinstance(value, torch.ScriptObject) for value in args)


@cache
def _only_views(func: OpOverload) -> bool:
    """Whether an operator only makes a view, or changes how a tensor views its storage, as ``transpose_`` does."""
    return func.is_view or func is aten._unsafe_view.default or torch.Tag.inplace_view in func.tags


def _contents(tensors: Iterable[Tensor]) -> Iterator[int]:
    """Yield a number for what each tensor of known integers or booleans holds, such as a mask or lengths."""
    real = (each for each in tensors if not (isinstance(each, Fake) or each.is_meta or each.is_quantized))
    for each in real:
        if not (each.is_floating_point() or each.is_complex()):
            with compat.no_modes(), compat.no_function():
                weights = torch.randint(1 << 62, (each.numel(),), generator=torch.Generator().manual_seed(0))
                yield int((each.detach().reshape(-1).to(torch.int64) * weights).sum())


def _afresh(func: OpOverload, call: Call, casts: bool) -> Timeline | None:
    """Return a call's timeline, from smaller calls if it is large and those agree."""
    work, threads = multiply_adds(func, *call) or 0, torch.get_num_threads()
    elements = sum(tensor.numel() for tensor in tensors_of(call))
    share = min(AT_ONCE * threads / max(1, elements), AT_ONCE_WORK * threads / max(1, work))
    if share < 1 and not is_foreign(func.name()):
        timeline = _of_lists(func, call)
        timeline = _from_smaller(func, call, share) if timeline is None else timeline
        if timeline is not None:
            return timeline
    return _trial(func, call, casts) if work <= LONGEST and _fits(func, call) else None


def _fits(func: OpOverload, call: Call) -> bool:
    """Whether a call is within the limit of memory, and does not abort the process."""
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(call))
    return nbytes <= LARGEST and not _may_abort(func, call.args)


def _from_smaller(func: OpOverload, call: Call, share: float) -> Timeline | None:
    """Return a call's timeline from smaller calls; None if they do not agree."""

    def timeline_of(smaller: Call) -> Timeline | None:
        if (multiply_adds(func, *smaller) or 0) > LONGEST // 10 or not _fits(func, smaller):
            return None
        return _trial(func, smaller)

    is_convolution, threads = func in _CONVOLUTIONS, torch.get_num_threads()
    for least, way in product((2, 16) if is_convolution else (2,), shortened(call, torch.Tag.pointwise in func.tags)):
        sizes = way.sizes(share, threads, least)
        if sizes is None or (is_convolution and way.axis != 0):
            continue
        calls = (call, way.at(sizes[0])) if is_convolution else ()
        if len({takes_onednn(*_convolution(func, args)) for args, *_ in calls}) > 1:  # The same library must run it.
            continue
        timeline = extrapolated(way, sizes, timeline_of)
        if timeline is not None:
            return _with_threads(func, call, timeline)
    return None


def _with_threads(func: OpOverload, call: Call, timeline: Timeline) -> Timeline:
    """Leave a range for the sums that threads may keep of a convolution's weights in larger batches only.

    Each is the weights' size with the bias and oneDNN's padding: twice that is enough.
    """
    sums = torch.get_num_threads() - 1 if func is aten.convolution_backward.default else 0
    sizes = [step.nbytes if isinstance(step, Alloc) else 0 for step in timeline]
    largest = max(sizes, default=0)
    if not sums or not largest:
        return timeline
    band = 2 * sums * call.args[2].numel() * call.args[2].element_size() / largest
    place = sizes.index(largest)
    return (*timeline[:place], Alloc(largest, band=band), *timeline[place + 1 :])


_CONVOLUTIONS = {aten.convolution.default, aten._convolution.default, aten.convolution_backward.default}


def _convolution(func: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a convolution's input, weight, stride, dilation, output padding, groups and whether it is transposed."""
    if func is aten.convolution_backward.default:
        args = args[1:]
    x, weight, _, stride, _, dilation, transposed, output_padding, groups = args[:9]
    return x, weight, stride, dilation, transposed, output_padding, groups


def _of_lists(func: OpOverload, call: Call) -> Timeline | None:
    """Return the timeline of an operator on lists of tensors: that of small ones, if it is the same in two sizes.

    The CPU runs it tensor by tensor (ForeachOpsKernels.cpp).
    """
    if not func._opname.startswith(("_foreach_", "_fused_")):
        return None

    def of_size(size: int) -> Timeline | None:
        small = change_tensors(tuple(call), lambda x: torch.empty((size,) * x.dim(), dtype=x.dtype, device=META))
        steps = _trial(func, Call(*small))
        if steps is None:
            return None
        return tuple(step._replace(nbytes=None) if isinstance(step, Result) else step for step in steps)

    timeline = of_size(2)
    return timeline if timeline == of_size(3) else None


def _trial(func: OpOverload, call: Call, casts: bool = False) -> Timeline | None:
    """Return the timeline of one call; None if the kernel fails, or its results have other shapes than expected."""
    args, _, out = call
    selected = _selected(func, args, out)
    if selected == -1:
        return None
    drawing = taking_generator(func) if draws(func) else None
    if drawing is not None:  # From a generator of its own: another thread may draw from the CPU's meanwhile.
        func, call = drawing, call._replace(kwargs={**call.kwargs, "generator": torch.default_generator})
    for fill in _fills(selected):
        with compat.no_modes(), compat.no_function(), _surroundings(func, casts):
            try:
                own, named = _fresh(func, call, fill)
                first, result = _course(func, own, named)
                results = zip(tensors_of(result), tensors_of(out))  # Others of one axis may be opaque.
                unlike = [real for real, fake in results if real.shape != fake.shape]
                if any(selected is not None or (real.numel() and real.dim() > 1) for real in unlike):
                    continue
                if is_foreign(func.name()) or unfreed_bytes(first):
                    # The first run created what the library keeps; an object of packed weights keeps its own.
                    own, named = _fresh(func, call, fill) if casts or _has_packed(args) else (own, named)
                    first, _ = _course(func, own, named)
            except Exception:
                continue
            return first
    return None


def _fresh(func: OpOverload, call: Call, fill: Fill | None) -> tuple[Any, dict[str, Any]]:
    """Return a call's arguments as real tensors, with generators and packed weights of its own.

    Each tensor becomes a copy, always the same.
    """
    known: dict[int, Tensor] = {}

    def real(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = copy = _real(tensor)
            if fill is not None and (isinstance(tensor, Fake) or tensor.is_meta):
                with torch.no_grad():
                    fill(copy)
        return known[id(tensor)]

    own, named = change_tensors(call.args, real), change_tensors(call.kwargs, real)
    prepare = _PREPARED.get(func)
    named = {name: torch.Generator() if isinstance(value, torch.Generator) else value for name, value in named.items()}
    return repacked(own if prepare is None else prepare(*own)), named


def _fills(selected: int | None) -> Iterator[Fill | None]:
    """Yield what fills a kernel's zeros, in the order in which it is tried, if its values select so many elements."""

    def first(tensor: Tensor) -> None:
        part = _unexpanded(tensor)
        number = (selected or 0) * part.numel() // max(1, tensor.numel())
        part.copy_((torch.arange(part.numel()) < number).view(part.shape))

    def unlike(tensor: Tensor) -> None:
        part = _unexpanded(tensor)
        part.copy_(torch.arange(part.numel()).clamp_(max=max(0, (selected or 0) - 1)).view(part.shape))

    def one(tensor: Tensor) -> None:
        if tensor.numel():
            tensor[(0,) * tensor.dim()] = selected or 0

    if selected is not None:
        yield from (first, unlike, one)
    yield None
    yield lambda tensor: tensor.fill_(1)  # Such as weights of a draw, or a matrix with an inverse.


def _unexpanded(tensor: Tensor) -> Tensor:
    """Return a tensor's elements without the axes along which it repeats them."""
    return tensor[tuple(slice(None) if stride else slice(1) for stride in tensor.stride())]


def _selected(func: OpOverload, args: tuple[Any, ...], out: Any) -> int | None:
    """Return how many elements a call's values select; None if it does not depend on them, -1 if unknown."""
    if func in _INDEXING:
        if not masks_of(args[1]):
            return None
        rows = masked_rows(out, *args[:2]) if func is aten.index.Tensor else written_rows(*args[:3])
        return -1 if rows is None else rows
    results = tensors_of(out) if asks_values(func) and torch.Tag.dynamic_output_shape in func.tags else []
    return int(results[0].shape[0]) if results and results[0].dim() else None


_INDEXING = {
    aten.index.Tensor,
    *(getattr(aten, name).default for name in ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")),
}


@contextmanager
def _surroundings(func: OpOverload, casts: bool) -> Iterator[None]:
    """Turn autocast on or off, and leave the CPU's generator as it was after an operator that may draw from it.

    With autocast, a kernel below autograd still has the weights that it casts cached.
    """
    may_draw = is_foreign(func.name()) or (draws(func) and taking_generator(func) is None)
    state = torch.default_generator.get_state() if may_draw else None
    try:
        with torch.autocast("cpu", enabled=casts), torch.set_grad_enabled(torch.is_grad_enabled() and not casts):
            yield
    finally:
        if state is not None:
            torch.default_generator.set_state(state)


def _may_abort(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether oneDNN may write past its scratch memory, which aborts the process.

    Seen in oneDNN 3.12 on AVX-512 where it reorders the rows of a single channel and the stride skips some of them.
    """
    if func not in _CONVOLUTIONS:
        return False
    x, weight, stride, dilation, transposed, *_ = _convolution(func, args)
    is_reordered = (func is aten.convolution_backward.default) is bool(transposed)
    skips = any(step > (size - 1) * gap + 1 for size, step, gap in zip(weight.shape[2:], stride, dilation))
    return is_reordered and skips and 1 in (x.shape[1], weight.shape[0], weight.shape[1])


def _real(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides; zeros for a fake, or for the meta tensor of one that the kernel resized."""
    is_known = not isinstance(tensor, Fake) and not tensor.is_meta
    if is_known and (copy := tensor.detach().clone()).stride() == tensor.stride():
        return copy
    if tensor._is_zerotensor():
        zeros: Tensor = aten._efficientzerotensor.default(tensor.shape, dtype=tensor.dtype, device=CPU)
        return zeros
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1
    zeros = torch.zeros(extent if tensor.numel() else 0, dtype=tensor.dtype, device=CPU)
    zeros = torch.as_strided(zeros, tensor.shape, tensor.stride()).detach()
    if is_known:
        _unexpanded(zeros).copy_(_unexpanded(tensor.detach()))
    zeros = aten._conj.default(zeros) if tensor.is_conj() else zeros
    zeros = aten._neg_view.default(zeros) if tensor.is_neg() else zeros
    return zeros.requires_grad_(tensor.requires_grad and tensor.is_leaf)


def _course(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Timeline, Any]:
    """Return a call's timeline, and its result."""
    operands = {(storage := tensor.untyped_storage())._cdata: storage for tensor in tensors_of((args, kwargs))}
    before = {place: storage.nbytes() for place, storage in operands.items()}
    with no_collection(), compat.block_sizes() as sizes:
        result = func(*args, **kwargs)
    resized = {place: storage.nbytes() for place, storage in operands.items() if storage.nbytes() != before[place]}
    new: dict[int, int] = {}
    for number, tensor in enumerate(tensors_of(result)):
        place = tensor.untyped_storage()._cdata
        if place not in before or resized.pop(place, None) is not None:
            new[number] = tensor.untyped_storage().nbytes()
    return tuple(_steps(sizes, new, resized.values())), result


def _with_workspace(x: Tensor, *args: Any) -> tuple[Any, ...]:
    """Replace a recurrent layer's workspace, the last argument, by that of a real training forward."""
    *weights, hx, cx = args[:6]
    reverse, mode, width, layers, biases, train, both, sizes, batch_first = args[12:21]
    with torch.enable_grad():
        key = reverse, sizes, mode, width, layers, biases, both, batch_first, train
        workspace = aten.mkldnn_rnn_layer.default(x, *weights, hx, cx, *key)[3]
    return x, *args[:-1], workspace


_PREPARED: dict[OpOverload, Callable[..., tuple[Any, ...]]] = {
    aten.mkldnn_rnn_layer_backward.default: _with_workspace,
    # Each bag gets an index: the gradients of maxima skip bags without one (EmbeddingBag.cpp).
    aten._embedding_bag_backward.default: lambda *args: (*args[:4], args[4].clamp(min=1), *args[5:]),
}
"""For operators whose allocations depend on what an earlier kernel returned: their arguments with that."""


def _steps(sizes: Sequence[int], results: dict[int, int], resized: Iterable[int]) -> Iterator[Step]:
    """Convert allocations and frees in order, by size, with the bytes of new results by place.

    A free is of the last live block of its size, and a result the last one of its size that is never freed. Results
    that the kernel does not allocate count 0, and new blocks of ``resized`` arguments are none of its own.
    """
    live: list[int] = []
    ends: dict[int, int] = {}

    def take(nbytes: int) -> int | None:
        """Remove the last live block of a size, and return its number."""
        block = next((block for block in reversed(live) if sizes[block] == nbytes), None)
        if block is not None:
            live.remove(block)
        return block

    for number, nbytes in enumerate(sizes):
        if nbytes > 0:
            live.append(number)
        elif nbytes < 0 and (block := take(-nbytes)) is not None:
            ends[number] = block
    places = {block: place for place, nbytes in reversed(results.items()) if (block := take(nbytes)) is not None}
    others = set(map(take, resized))
    buffers: dict[int, int] = {}
    for number, nbytes in enumerate(sizes):
        if number in places:
            yield Result(places[number], nbytes)
        elif number in ends:
            yield Free(buffers[ends[number]])
        elif nbytes > 0 and number not in others:
            buffers[number] = len(buffers)
            yield Alloc(nbytes)
    yield from (Result(place, 0) for place in results.keys() - places.values())


def _read(values: Iterable[Any], key: list[Any], operands: list[Tensor]) -> None:
    """Append to ``key`` what an operator's memory may depend on, except contents, and to ``operands`` the tensors."""
    for value in values:
        kind = type(value)
        if kind is float and value * 2 % 1:  # Of numbers, only halves and infinities may be special.
            key.append(float)
        elif kind in INERT:
            key += (kind, value)
        elif isinstance(value, Tensor):
            operands.append(value)
            if value.layout is torch.strided:
                key += (value.shape, value.stride(), value.dtype, value.requires_grad, value.is_conj(), value.is_neg())
        elif isinstance(value, (list, tuple, dict)):
            key.append(len(value))
            _read(value if not isinstance(value, dict) else (*value, *value.values()), key, operands)
        else:
            key += (kind, hash(value) if kind is torch.ScriptObject else kind is torch.Generator or value)


def overload_of(name: str) -> OpOverload | None:
    """Return the operator overload of a full name, such as ``torchvision::nms`` or ``aten::add.Tensor``.

    A library's is looked up each time: if it is redefined, as by a notebook's cell, its old operators crash.
    """
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    known: Any = getattr(getattr(getattr(torch.ops, namespace), operator, None), overload or "default", None)
    return known if isinstance(known, OpOverload) else None


_operator = cache(overload_of)


@dataclass(frozen=True)
class Shortened:
    """A call with another ``size`` of an axis: in all tensors that have it there, or anywhere if ``axis`` is None."""

    call: Call
    size: int
    axis: int | None

    def at(self, size: int) -> Call:
        """Return the call with another size."""
        return Call(*(self._changed(value, size) for value in self.call))

    def sizes(self, share: float, threads: int, least: int) -> tuple[int, int, int] | None:
        """Return three sizes, up to about a ``share`` of the call's own; None if they are not much smaller.

        They leave the same remainder when they are divided among threads.
        """
        step = max(2, threads)
        rest = self.size % step
        most = max(2, -(-least // step) + 1, (int(self.size * share) - rest) // step)
        low = max((most + 1) // 2, -(-least // step))
        between = (low + most) // 2
        numbers = low, most, between if low < between < most else most + 1
        return cast("Any", tuple(rest + step * number for number in numbers)) if most * step * 2 <= self.size else None

    def _shape(self, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
        return tuple(
            size if length == self.size and self.axis in (None, axis) else length for axis, length in enumerate(shape)
        )

    def _changed(self, value: Any, size: int) -> Any:
        """Return arguments with tensors on meta and lists of sizes in another size."""
        if isinstance(value, (list, tuple)):
            if value and all(type(item) is int for item in value):
                return type(value)(self._shape(tuple(value), size))
            return type(value)([self._changed(item, size) for item in value])
        if isinstance(value, dict):
            return {name: self._changed(item, size) for name, item in value.items()}
        if not isinstance(value, Tensor):
            return value
        shape = self._shape(tuple(value.shape), size)
        strides = list(value.stride())
        for before, after, step in zip(value.shape, shape, value.stride()):
            if before != after:  # Steps over all of this axis become shorter.
                strides = [
                    stride // before * after if stride >= step * before and stride % before == 0 else stride
                    for stride in strides
                ]
        smaller = torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
        smaller = torch.ops.aten._neg_view.default(smaller) if value.is_neg() else smaller
        smaller = torch.ops.aten._conj.default(smaller) if value.is_conj() else smaller
        return smaller.requires_grad_(value.requires_grad and value.is_leaf)


def shortened(call: Call, is_pointwise: bool) -> Iterator[Shortened]:
    """Yield ways to shorten a call: by the first axis, or the second if that one is short, and wherever its size is.

    A size must be that of no other axis, as if a batch is as large as the channels, and not a number's: kernels such as
    batch norm's and group norm's do not check that their arguments agree, and would read beyond them.
    """
    given, found = ([tensor for tensor in tensors_of(part) if tensor.dim()] for part in (call[:2], call.out))
    sizes: dict[tuple[int, int | None], None] = {}
    for tensor in (*given[:1], *found[:1]):
        axis = 1 if tensor.dim() > 1 and tensor.shape[0] < SHORT else 0
        sizes[tensor.shape[axis], axis] = None
    sizes.update(dict.fromkeys((size, None) for size, _ in list(sizes)))
    if is_pointwise:
        sizes.update(dict.fromkeys((size, None) for size in sorted(set((found or given)[0].shape), reverse=True)))
    numbers = {value for value in (*call.args, *call.kwargs.values()) if type(value) is int}
    others = {(length, place) for tensor in tensors_of(call) for place, length in enumerate(tensor.shape)}
    is_of_one = len(tensors_of(call[:2])) < 2
    for size, only in sizes:
        is_one_axis = is_of_one or only is None or not {place for length, place in others if length == size} - {only}
        if is_pointwise or (size not in numbers and is_one_axis):
            yield Shortened(call, size, only)


def extrapolated(way: Shortened, sizes: tuple[int, ...], run: Callable[[Call], Timeline | None]) -> Timeline | None:
    """Return a call's timeline from those of smaller ones; None if these are unlike or on no line."""
    known: list[Timeline] = []
    for size in sizes:
        timeline = run(way.at(size))
        if timeline is None or (known and list(map(_kind, timeline)) != list(map(_kind, known[0]))):
            return None
        known.append(timeline)
        steps = [_on_line(way.size, sizes, steps) for steps in zip(*known)] if len(known) > 1 else [None]
        if None not in steps:
            return cast("Timeline", tuple(steps))
    return None


def _kind(step: Step) -> Step:
    return step._replace(nbytes=0) if isinstance(step, (Alloc, Result)) else step


def _on_line(size: int, sizes: Sequence[int], steps: Sequence[Any]) -> Step | None:
    """Return a step in another size: constant or proportional by two points, on any line by three; None if on none."""
    (a, b, *_), (x, y, *_) = sizes, [0 if isinstance(step, Free) else step.nbytes for step in steps]
    if x == y and all(step == steps[0] for step in steps):
        return cast("Step", steps[0])
    if len(steps) < 3 and x * b != y * a:
        return None
    if any((step.nbytes - x) * (b - a) != (y - x) * (c - a) for c, step in zip(sizes, steps)):
        return None
    nbytes, remainder = divmod((y - x) * (size - a), b - a)
    return None if remainder else cast("Step", steps[0]._replace(nbytes=x + nbytes))
