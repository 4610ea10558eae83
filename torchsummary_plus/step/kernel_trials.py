"""Allocations of CPU kernels without an exact rule: each runs once on zeros under the profiler.

These are other libraries' operators, and torch's own where oneDNN or LAPACK blocks the work by a model of the
processor, as for half-precision products with matrix tiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..live import compat
from ..live.autocast import is_cast_inside
from ..live.fakes import CPU, Fake
from ..live.own_random import own_state
from ..live.repacking import repacked
from ..ops.macs import multiply_adds
from ..ops.macs.free import is_free
from ..ops.macs.registry import FORMULAS, base_name
from ..ops.processor import float32_precision
from ..ops.scratch.cpu.convolution import writes_astray
from ..ops.scratch.registry import SCRATCH, UNMODELLED, WITHOUT_SCRATCH, Alloc, Course, Free, Result, Step
from ..trace.kernels import change_tensors, tensors_of
from ..watch.profiled import Change, changes
from ..watch.quiet_profile import QuietProfile

LARGEST = 1 << 25
"""Most elements of an operator's arguments and results for it to run: 128 MiB in float32."""

LARGEST_SHARED = 1 << 30
"""Most bytes of the storages that its arguments and results are parts of, each counted with every part."""

LONGEST = 10**10
"""Most multiply-adds of another library's operator for it to run: less than a second on one core."""

LONGEST_OWN = 10**9
"""Most multiply-adds of one of torch's own operators, whose memory can also be estimated."""

ALLOWANCE = 10**10
"""Most multiply-adds of all of torch's own operators that run for one estimate; later ones are estimated."""

NOT_LIBRARIES = frozenset(
    {"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp"}
)
"""torch's own operators, profiler annotations, and communication between processes."""


def is_foreign(name: str) -> bool:
    """Whether an operator belongs to a library without scratch-memory rules.

    >>> is_foreign("aten::mm"), is_foreign("torchvision::nms")
    (False, True)
    """
    return name.partition("::")[0] not in NOT_LIBRARIES


@cache
def is_unstudied(name: str) -> bool:
    """Whether an operator of torch is one that no table of this package knows, as are those of later releases.

    >>> is_unstudied("aten::mm"), is_unstudied("aten::_pdist_forward"), is_unstudied("aten::of_tomorrow")
    (False, False, True)
    """
    plain = name.partition(".")[0]
    if not name.startswith("aten::") or {plain, name} & WITHOUT_SCRATCH or base_name(plain) in FORMULAS:
        return False
    func = _overload(name)
    if func is not None and is_free(func):
        return False
    devices = UNMODELLED.items()
    return not any(
        (device, known) in SCRATCH or known in others for device, others in devices for known in (plain, name)
    )


@cache
def writes_to_out(name: str) -> bool:
    """Whether an operator writes its result to a tensor given as ``out``.

    Its kernel may compute into a temporary tensor and copy that, or cast numbers that a function's wrapper casts.

    >>> writes_to_out("aten::add.out"), writes_to_out("aten::add.Tensor")
    (True, False)
    """
    func = _overload(name)
    return func is not None and any(argument.is_out for argument in func._schema.arguments)


def unfreed_bytes(course: Course) -> int:
    """Return the bytes that a kernel allocates and does not free.

    QNNPACK's allocator does not report what it frees (c10/core/CPUAllocator.cpp, ``DefaultMobileCPUAllocator``).

    >>> unfreed_bytes((Alloc(8), Alloc(4), Free(0), Alloc(2, lasts=True)))
    4
    """
    freed = {step.buffer for step in course if isinstance(step, Free)}
    buffers = [step for step in course if isinstance(step, Alloc)]
    return sum(buffer.nbytes for number, buffer in enumerate(buffers) if number not in freed and not buffer.lasts)


aten = torch.ops.aten

_Courses = tuple[Course, Course]
"""A kernel's course in the first call with an object of packed weights, and in later calls; equal without objects."""

_COURSES: dict[Any, _Courses | None] = {}
_REMEMBERED = 10_000


class Trials:
    """Runs kernels on zeros for one estimate."""

    def __init__(self) -> None:
        self._allowance: dict[Any, int] = {}
        """Multiply-adds of torch's own operators that have run, by call."""
        self._packed: dict[int, torch.ScriptObject] = {}
        """Objects of packed weights that kernels were called with, by hash: each call wraps them anew for Python."""
        self._of_libraries: dict[Any, _Courses | None] = {}
        """Courses of other libraries' operators, which may be defined anew, and of objects of packed weights."""

    def course(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Course | None:
        """Return a CPU kernel's allocations in order; None if it cannot be tried.

        It runs on zeros in the fakes' shapes and on copies of tensors with values, so nothing else is written to; with
        gradients if the step has them, as a recurrent layer then allocates otherwise (mkldnn/RNN.cpp), and under the
        autocast that reaches it.
        """
        func = _overload(name)
        operands = tensors_of((*args, *kwargs.values(), out))
        if func is None or compat.profiler_enabled():
            return None
        if torch.Tag.dynamic_output_shape in func.tags and not is_foreign(name):
            return None  # Its own temporary tensors may be as large as the result.
        if sum(tensor.numel() for tensor in operands) > LARGEST:
            return None
        if not all(tensor.layout is torch.strided for tensor in operands) or _may_abort(func, args, out):
            return None
        if sum(tensor.untyped_storage().nbytes() for tensor in operands) > LARGEST_SHARED:
            return None
        same = _sharing(tensors_of((*args, *kwargs.values())))
        casts = is_foreign(name) and is_cast_inside("cpu")
        how = torch.get_num_threads(), torch.is_grad_enabled(), casts and torch.get_autocast_dtype("cpu")
        key = func, *how, float32_precision(), tuple(_key((args, kwargs))), same
        work = multiply_adds(func, args, kwargs, out) or 0
        try:
            if not self._allows(name, key, work):
                return None
            hash(key)
        except TypeError:
            return _first(_trial(func, args, kwargs, casts))
        objects = {hash(value): value for value in args if isinstance(value, torch.ScriptObject)}
        known = self._of_libraries if is_foreign(name) or objects else _COURSES
        if key not in known:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[key] = _trial(func, args, kwargs, casts)
        courses = known[key]
        is_later = objects.keys() <= self._packed.keys()
        self._packed.update(objects)
        return courses[1] if courses and is_later else _first(courses)

    def _allows(self, name: str, key: Any, work: int) -> bool:
        """Whether a kernel may run, independently of what earlier estimates have run."""
        if is_foreign(name):
            return work <= LONGEST
        if key not in self._allowance:
            if work > LONGEST_OWN or sum(self._allowance.values()) + work > ALLOWANCE:
                return False
            self._allowance[key] = work
        return True


def _may_abort(func: OpOverload, args: tuple[Any, ...], out: Any) -> bool:
    """Whether a kernel may abort the process."""
    if func is aten.convolution_backward.default:
        grad, x, weight, _, stride, padding, dilation, transposed, _, groups, _ = args
        return writes_astray(False, grad, x, weight, stride, padding, dilation, transposed, groups)
    if func in (aten.convolution.default, aten._convolution.default):
        x, weight, _, stride, padding, dilation, transposed, _, groups = args[:9]
        return writes_astray(True, out, x, weight, stride, padding, dilation, transposed, groups)
    return False


def _real_once(values: Any) -> Callable[[Tensor], Tensor]:
    """Return a function that replaces each tensor by a copy, always the same: kernels may check for shared memory."""
    known: dict[int, Tensor] = {}
    shared = _shared(tensors_of(values))
    storages: dict[int, torch.UntypedStorage] = {}

    def real(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = _part(tensor, storages) if _place(tensor) in shared else _real(tensor)
        return known[id(tensor)]

    return real


def _sharing(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return which tensors are identical, which share a storage, and their positions in it."""
    ids, places, shared = list(map(id, tensors)), list(map(_place, tensors)), _shared(tensors)
    offsets = (tensor.storage_offset() if _place(tensor) in shared else 0 for tensor in tensors)
    return tuple(zip(map(ids.index, ids), map(places.index, places), offsets))


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _shared(tensors: Iterable[Tensor]) -> set[int]:
    """Return the storages of which several tensors are parts."""
    places = Counter(_place(tensor) for tensor in {id(tensor): tensor for tensor in tensors}.values())
    return {place for place, number in places.items() if number > 1}


def _part(tensor: Tensor, storages: dict[int, torch.UntypedStorage]) -> Tensor:
    """Return a part of the copy of a storage that several tensors share."""
    storage = tensor.untyped_storage()
    if _place(tensor) not in storages:
        storages[_place(tensor)] = (
            torch.zeros(storage.nbytes(), dtype=torch.uint8, device=CPU).untyped_storage()
            if isinstance(tensor, Fake)
            else storage.clone()
        )
    whole = torch.empty(0, dtype=tensor.dtype, device=CPU)
    return whole.set_(storages[_place(tensor)], tensor.storage_offset(), tensor.shape, tensor.stride())


def _first(courses: _Courses | None) -> Course | None:
    return None if courses is None else courses[0]


def _trial(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], casts: bool) -> _Courses | None:
    values = *args, *kwargs.values()

    def fresh_arguments() -> tuple[Any, dict[str, Any]]:
        own, named = change_tensors((args, kwargs), _real_once(values))
        prepare = _PREPARED.get(func)
        return repacked(own if prepare is None else prepare(*own)), named

    has_packed = any(isinstance(value, torch.ScriptObject) for value in args)
    with compat.no_modes(), compat.no_function(), own_state(), _autocast(casts):
        try:
            own, named = fresh_arguments()
            func(*own, **named)  # Allocates what the library creates once and keeps.
            own, named = fresh_arguments() if has_packed or casts else (own, named)
            first = _course(func, own, named)
            return _with_lasting(first, _course(func, own, named)) if has_packed else (first, first)
        except Exception:
            return None


@contextmanager
def _autocast(casts: bool) -> Iterator[None]:
    """Turn autocast on or off; with it, a kernel below autograd still has the weights that it casts cached."""
    with torch.autocast("cpu", enabled=casts), torch.set_grad_enabled(torch.is_grad_enabled() and not casts):
        yield


def _course(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Course:
    with QuietProfile() as profile:
        result = func(*args, **kwargs)
    places = {tensor.untyped_storage().data_ptr(): place for place, tensor in enumerate(tensors_of(result))}
    return tuple(_steps(changes(profile, "cpu"), places))


def _with_lasting(first: Course, later: Course) -> _Courses:
    """Let what only the first call of an object keeps last, if later calls free all they allocate."""
    if unfreed_bytes(later):
        return first, later
    freed = {step.buffer for step in first if isinstance(step, Free)}
    number = count()
    lasting = (step._replace(lasts=next(number) not in freed) if isinstance(step, Alloc) else step for step in first)
    return tuple(lasting), later


def _with_workspace(x: Tensor, *args: Any) -> tuple[Any, ...]:
    """Replace a recurrent layer's workspace, the last argument, by that of a real training forward."""
    *weights, hx, cx = args[:6]
    reverse, mode, width, layers, biases, train, both, sizes, batch_first = args[12:21]
    with torch.enable_grad():
        key = reverse, sizes, mode, width, layers, biases, both, batch_first, train
        workspace = aten.mkldnn_rnn_layer.default(x, *weights, hx, cx, *key)[3]
    return x, *args[:-1], workspace


_PREPARED = {aten.mkldnn_rnn_layer_backward.default: _with_workspace}
"""For operators that read an earlier kernel's opaque workspace: their arguments with a real one."""


def _steps(changes: Iterable[Change], places: Mapping[int, int]) -> Iterator[Step]:
    """Convert a profile's changes; ``places`` are the results' numbers by address.

    A result is the last allocation at its address.
    """
    changed = list(changes)
    last = {change.address: number for number, change in enumerate(changed) if change.nbytes > 0}
    buffers: dict[int, int] = {}
    count = 0
    for number, change in enumerate(changed):
        if change.nbytes <= 0:
            buffer = buffers.pop(change.address, None)
            if buffer is not None:
                yield Free(buffer)
        elif change.address in places and last[change.address] == number:
            yield Result(places[change.address], change.nbytes)
        else:
            buffers[change.address] = count
            count += 1
            yield Alloc(change.nbytes)


def _real(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides; zeros for a fake, or for the meta tensor of one that the kernel resized."""
    if not isinstance(tensor, Fake) and not tensor.is_meta:
        copy = tensor.detach().clone()
        return copy if copy.stride() == tensor.stride() else _part(tensor, {})
    zeros = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CPU).zero_()
    return zeros.requires_grad_(tensor.requires_grad and tensor.is_leaf)


def _key(values: Any) -> Iterator[Any]:
    """Yield everything that an operator's memory may depend on, except tensors' contents."""
    for value in values.items() if isinstance(values, dict) else values:
        if isinstance(value, Tensor):
            yield value.shape, value.stride() if value.layout is torch.strided else value.layout, value.dtype
        elif isinstance(value, (list, tuple, dict)):
            yield len(value)
            yield from _key(value)
        else:
            yield value.__class__, hash(value) if isinstance(value, torch.ScriptObject) else value


def _overload(name: str) -> OpOverload | None:
    """Return the operator overload of a full name, such as ``torchvision::nms`` or ``aten::add.Tensor``.

    It is looked up each time: if a library is redefined, as by a notebook's cell, its old operators crash.
    """
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    known: Any = getattr(getattr(getattr(torch.ops, namespace), operator, None), overload or "default", None)
    return known if isinstance(known, OpOverload) else None
