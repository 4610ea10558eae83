"""The log of a model with many equal layers, from recordings with only a few of them.

It is extrapolated from the logs of two shallow models and checked against a third. A log is seven tables. Equal layers
leave equal rows in each sweep over them: a forward goes up, a backward goes down, an optimizer's operator runs along
all parameters. One more layer adds one period to each sweep, and every number in a row (a layer, another row's number,
a size) continues its arithmetic progression.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, partial
from operator import add, sub
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..data.errors import SummaryError
from ..data.memory_records import Doubt, Kernel, MemoryLog, ModuleCall, Moment, StorageSpec
from ..data.units import is_integer
from ..live.copying import Copier, content_of
from ..live.isolation import one_pass
from ..live.reachable import names_replaced
from ..live.structures import DEEPEST, INERT, inner_names, is_wrapper
from ..live.structures import parts as parts_of
from ..table.modules import CONTAINERS, ModuleTree
from ..trace.values import OUTSIDE
from .fake_steps import Task, record
from .runner import Step


class NotRepeatingError(Exception):
    """The logs of shallow models do not continue as those of equal layers would, or no third log confirms it yet."""


@dataclass(frozen=True)
class Stack:
    """A container of layers: its path, and their names; those from ``start`` to ``stop`` are equal."""

    path: str
    names: tuple[str, ...]
    start: int = 0
    stop: int = 0

    def keep(self, model: nn.Module, count: int) -> Stack:
        """Keep ``count`` of a model's equal layers; return what remains, renumbered except in a dictionary."""
        container = model.get_submodule(self.path)
        names = [*self.names[: self.start + count], *self.names[self.stop :]]
        remaining = [container._modules[name] for name in names]
        if not isinstance(container, nn.ModuleDict):
            names = list(map(str, range(len(remaining))))
        container._modules.clear()
        container._modules.update(zip(names, remaining))
        return Stack(self.path, tuple(names))

    def place(self, path: str) -> tuple[tuple[str, ...], int]:
        """Split a module's path around its layer's name, and return the layer's number; -1 outside the layers.

        >>> Stack("body", ("0", "1")).place("body.1.mlp")
        (('body.', '.mlp'), 1)
        >>> Stack("body", ("0", "1")).place("head")
        (('head',), -1)
        """
        before = f"{self.path}." if self.path else ""
        name = path.removeprefix(before).partition(".")[0]
        if not path.startswith(before) or name not in self.names:
            return (path,), -1
        return (before, path[len(before) + len(name) :]), self.names.index(name)


def takes_all_layers_alike(step: Step) -> bool:
    """Whether a step treats all layers alike: no code of the user's that may pick out some of them."""
    maker: Any = step.optimizer.func if isinstance(step.optimizer, partial) else step.optimizer
    return (
        step.train_step is None and step.mode in ("train", "eval") and (maker is None or isinstance(maker, (str, type)))
    )


def log_of_few_layers(task: Task) -> MemoryLog | None:
    """Return a step's log, grown from those of models with a few of many equal layers; None if they do not repeat."""
    tree, step = task.tree, task.step
    stack = largest_stack(tree.modules[0], WORTH) if takes_all_layers_alike(step) else None
    if stack is None:
        return None
    logs, stacks = [], []
    with one_pass(), suppress(NotRepeatingError, SummaryError):
        for count in range(FEWEST, FEWEST + 3):
            copier, draws = Copier(lambda tensor: tensor), replace(task.draws)
            shallow = copier.modules(tree.modules)[0]
            stacks.append(stack.keep(shallow, count))
            shallow_step = step.copied(copier)
            with names_replaced(copier):
                logs.append(record(replace(task, tree=ModuleTree(shallow), step=shallow_step, draws=draws)))
            if draws.asks:  # Layers that random numbers may skip stand for no deeper model.
                return None
        return grown(logs, stacks, tree.paths, stack)
    return None


FEWEST = 3
"""Fewest of many equal layers that are recorded: a first, a last, and one between two others."""
WORTH = 5 * FEWEST
"""Number of equal layers from which recording ``FEWEST``, one more and two more is faster than recording all."""


@dataclass
class Cut:
    """Removes all but ``count`` of a model's equal layers, if there are many; ``count`` None removes nothing."""

    count: int | None
    paths: tuple[str, ...] = ()
    whole: Stack | None = None
    """All layers, if some have been removed; ``left`` are those that remain."""
    left: Stack = field(default_factory=partial(Stack, "", ()))

    def make(self, model: nn.Module) -> None:
        """Cut the model permanently."""
        kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
        if self.count is None or "DistributedDataParallel" in kinds:  # Its buckets were laid out for all layers.
            return
        stack = largest_stack(model, WORTH)
        if stack is not None:
            self.paths = tuple(ModuleTree(model).paths)
            self.whole, self.left = stack, stack.keep(model, self.count)


def largest_stack(model: nn.Module, least: int) -> Stack | None:
    """Return the stack with the most modules among those of at least ``least`` equal layers; None if there is none."""
    long = [(path, module) for path, module in model.named_modules() if len(module._modules) >= least]
    if not long:
        return None
    counts = Counter(id(own) for module in model.modules() for own in module._parameters.values() if own is not None)
    shared = {key for key, count in counts.items() if count > 1}
    stacks = [stack for path, module in long for stack in _stacks(path, module, shared)]
    stacks = [stack for stack in stacks if stack.stop - stack.start >= least]
    return max(stacks, key=lambda stack: sum(1 for _ in model.get_submodule(stack.path).modules()), default=None)


def _stacks(path: str, container: nn.Module, shared: set[int]) -> Iterator[Stack]:
    """Yield the runs of equal layers in a container, apart from integers that increase by one per layer."""
    if not isinstance(container, CONTAINERS):
        return
    names, layers = tuple(container._modules), container._modules.items()
    known: dict[int, Any] = {}  # What describes an object that layers share.
    described = [([], []) if layer is None else _described(name, layer, shared, known) for name, layer in layers]
    start = 0
    for stop in range(1, len(names) + 1):
        if stop < len(names):
            (parts, counts), (others, later) = described[start], described[stop]
            grows = all(a == b or b - a == stop - start for a, b in zip(counts, later))
            if parts and parts == others and grows:
                continue
        yield Stack(path, names, start, stop)
        start = stop


def _described(own_name: str, layer: nn.Module, shared: set[int], known: dict[int, Any]) -> tuple[list[Any], list[int]]:
    """Return everything that distinguishes layers, and their integers; a layer's own name is masked in texts."""
    own = re.compile(rf"\b{re.escape(own_name)}\b")
    counts: list[int] = []

    def described(value: Any, depth: int = 0) -> Any:
        """Return a comparable form: plain values themselves, a tensor's shape, a function's code, else its parts."""
        if isinstance(value, nn.Module) or depth > DEEPEST:
            return type(value)
        if isinstance(value, str):
            return own.sub("*", value)
        if isinstance(value, Tensor):
            inner = [described(getattr(value, name)) for name in inner_names(value)] if is_wrapper(value) else []
            of_value = tuple(value.shape), value.dtype, value.requires_grad, str(value.device), type(value), inner
            return of_value, id(value) if id(value) in shared else None
        if isinstance(value, (tuple, list)):
            return type(value), [described(item, depth + 1) for item in value]
        if isinstance(value, dict):
            return [(str(key), described(item, depth + 1)) for key, item in value.items()]
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, partial):
            return described((value.func, value.args, value.keywords), depth)
        if isinstance(value, MethodType):
            return described(value.__func__, depth)
        if isinstance(value, FunctionType):
            return value.__code__, [described(content_of(cell), depth + 1) for cell in value.__closure__ or ()]
        if id(value) not in known:
            known[id(value)] = type(value)  # Which stands for it inside itself.
            known[id(value)] = type(value), [described(part, depth + 1) for part in parts_of(value)]
        return known[id(value)]

    parts: list[Any] = []
    for name, module in layer.named_modules():
        attributes = vars(module)
        hooks = [described(list(attributes[hooks].values()), DEEPEST - 2) for hooks in _HOOKS]  # Not what they hold.
        tensors = described(module._parameters), described(module._buffers)
        parts += [name, type(module), getattr(module, "training", None), hooks, tensors, _sharding(module)]
        for key, value in sorted(attributes.items()):
            is_of_torch = key in _BOOKKEEPING or key.startswith("_" if "_handle" in attributes else "__")
            if isinstance(value, nn.Module) or (is_of_torch and not isinstance(value, _PLAIN)):
                continue
            if is_integer(value):
                counts.append(int(value))
            parts.append((key, int if is_integer(value) else described(value)))
    return parts, counts


_PLAIN = (int, float, frozenset, Enum, BuiltinFunctionType, *INERT)
_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks"
_BOOKKEEPING = frozenset(vars(nn.Module()))
"""Attributes of every module. All private ones of a ``FullyShardedDataParallel``, with a ``_handle``, are torch's."""


def _sharding(module: nn.Module) -> Any:
    """Return how FSDP 2 treats a module's parameters; a prefetch list makes a module unequal to all others."""
    state = getattr(module, "_get_fsdp_state", lambda: None)()
    if any(getattr(state, name, ()) for name in ("_states_to_forward_prefetch", "_states_to_backward_prefetch")):
        return object()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    parts = []
    for group in filter(None, groups):
        meshes = (getattr(group, name, None) for name in ("mesh_info", "post_forward_mesh_info"))
        policies = (getattr(group, name, None) for name in ("mp_policy", "offload_policy"))
        parts.append([str(value) for value in (*(getattr(mesh, "mesh", None) for mesh in meshes), *policies)])
    return parts


LOOKAHEAD = 256
"""Rows after a period that are compared."""


class Row(NamedTuple):
    """What a row has at every depth, as a number, and the numbers that may grow with the depth.

    ``size`` is that of its storage, which for few rows depends on the depth.
    """

    same: int
    numbers: tuple[int, ...]
    size: int = 0


Sweep = tuple[int, int]
"""A period that only the deeper of two tables has: its place there, and its length."""


def grown(logs: Sequence[MemoryLog], stacks: Sequence[Stack], paths: Sequence[str], whole: Stack) -> MemoryLog:
    """Extrapolate the log of a model with the layers of ``whole`` from those with a few layers, one more, and two more.

    Raises :class:`NotRepeatingError` if the third log is not what the first two predict.
    """
    few, _, last = logs
    if any(log.others or log.in_blocks for log in logs) or few.assumptions != last.assumptions:
        raise NotRepeatingError
    if dict(few.unknown).keys() != dict(last.unknown).keys():
        raise NotRepeatingError
    known: dict[Hashable, int] = {}
    tables = list(zip(*(_tables(log, stack, known) for log, stack in zip(logs, stacks))))
    sweeps = [find_sweeps(first, second) for first, second, _ in tables]
    for (first, second, third), found in zip(tables, sweeps):
        if [row[:2] for row in repeated(first, second, found, 2)] != [row[:2] for row in third]:
            raise NotRepeatingError
    times = len(whole.names) - len(stacks[0].names)

    def counts(name: str) -> tuple[tuple[str, int], ...]:
        """Counts by name for the whole model: each additional layer adds as much as the first one did."""
        first, second = (dict(getattr(log, name) or ()) for log in logs[:2])
        return tuple((key, number + times * (second.get(key, number) - number)) for key, number in first.items())

    rows = [repeated(depths[0], depths[1], found, times) for depths, found in zip(tables, sweeps)]
    log = replace(
        _of_tables(rows, list(known), few, paths, whole),
        unknown=counts("unknown"),
        mult_adds=None if few.mult_adds is None else counts("mult_adds"),
        uncounted=counts("uncounted"),
    )
    if not log.is_consistent:
        raise NotRepeatingError
    return log


def _tables(log: MemoryLog, stack: Stack, known: dict[Hashable, int]) -> list[list[Row]]:
    """Return a log's tables; ``known`` numbers what rows have at every depth, for all logs that are compared."""
    places: list[tuple[Any, int]] = [*map(stack.place, log.module_paths), (None, -1)]  # The last is OUTSIDE's.

    def row(same: Hashable, numbers: tuple[int, ...], size: int = 0) -> Row:
        return Row(known.setdefault(same, len(known)), numbers, size)

    moments = []
    for moment in log.moments:
        template, layer = places[moment.module]
        moments.append(row((moment.operator, template, moment.phase, moment.step), (layer,)))
    storages, events, order = list[Row](), list[Row](), dict[int, int]()  # Storages in the order of their events.
    for at, of, nbytes in log.events:
        if of not in order:
            order[of] = len(storages)
            spec = log.storages[of]
            template, layer = places[spec.owner]
            same = moments[at].same, template, replace(spec, owner=0, nbytes=0), log.stream(of)
            storages.append(row(same, (layer, spec.nbytes), spec.nbytes))
        storage = storages[order[of]]
        events.append(row((moments[at].same, storage.same, not nbytes), (at, order[of], nbytes), storage.size))
    calls, outputs = [], []
    for number, call in enumerate(log.calls):
        template, layer = places[call.module]
        calls.append(row((template, call.step), (layer, call.outer, call.start, call.stop)))
        for place in (order[of] for of in call.outputs if of in order):
            outputs.append(row((calls[-1].same, storages[place].same), (number, place), storages[place].size))
    doubts = [row(moments[d.moment].same, (d.event, d.moment, d.nbytes, d.lasting)) for d in log.doubts]
    kernels = [row((moments[k.moment].same, k.kind, k.dtype), (k.moment, *k.numbers)) for k in log.kernels]
    return [moments, storages, events, calls, outputs, doubts, kernels]


def find_sweeps(few: Sequence[Row], more: Sequence[Row]) -> list[Sweep]:
    """Return where the deeper table has an additional period. Raises :class:`NotRepeatingError`.

    It is the middle one of the repeated periods, since the first and the last layer have only one neighbour.
    """
    short, long = ([(row.same, row.size) for row in rows] for rows in (few, more))  # What equal layers have in common.
    sweeps = []
    i = j = 0
    while i < len(short) or j < len(long):
        has_both = i < len(short) and j < len(long)
        if has_both and short[i] == long[j]:
            i, j = i + 1, j + 1
            continue
        length = _period(short, long, i, j)
        if length:
            first = j
            while first >= length and long[first - length : first] == long[j : j + length]:
                first -= length
            periods = (j - first) // length + 1
            sweeps.append((first + (periods + 1) // 2 * length, length))
            j += length
        elif has_both and few[i].same == more[j].same:
            i, j = i + 1, j + 1
        else:
            raise NotRepeatingError
    return sweeps


def _period(short: Sequence[object], long: Sequence[object], i: int, j: int) -> int:
    """Return the length of a period that begins at ``long[j]`` and repeats the one before it; 0 if there is none.

    If several lengths are possible, it is the one after which the tables agree longest, to the end or ``LOOKAHEAD``.
    """
    best, longest = 0, 0
    for length in range(1, min(j, len(long) - j) + 1):
        if long[j - length] != long[j] or long[j - length : j] != long[j : j + length]:
            continue
        rest, after = short[i : i + LOOKAHEAD], long[j + length : j + length + LOOKAHEAD]
        agreed = next((number for number, (a, b) in enumerate(zip(rest, after)) if a != b), min(len(rest), len(after)))
        if agreed < LOOKAHEAD and agreed == len(rest) == len(after):  # A common end counts too.
            agreed += 1
        if agreed > longest:
            best, longest = length, agreed
    return best


def repeated(few: Sequence[Row], more: Sequence[Row], sweeps: Sequence[Sweep], times: int) -> list[Row]:
    """Return the shallower table's rows with ``times`` additional periods in each sweep."""
    rows: list[Row] = []
    i = j = 0
    for place, length in (*sweeps, (len(more), 0)):
        while j < place:  # Rows that both tables have, with their numbers extrapolated.
            rows.append(_moved(few[i], [times * number for number in _difference(few[i], more[j])]))
            i, j = i + 1, j + 1
        period, last = more[j : j + length], rows[len(rows) - length :]
        changes = list(map(_difference, more[j - length : j], period))
        for _ in range(times):
            last = [row if not any(by) else _moved(row, by) for row, by in zip(last, changes)]
            rows += last
        j += length
    return rows


def _difference(before: Row, after: Row) -> tuple[int, ...]:
    return tuple(map(sub, after.numbers, before.numbers))


def _moved(row: Row, by: Sequence[int]) -> Row:
    return Row(row.same, tuple(map(add, row.numbers, by)), row.size)


def _of_tables(
    tables: Sequence[Sequence[Row]], values: Sequence[Any], like: MemoryLog, paths: Sequence[str], stack: Stack
) -> MemoryLog:
    """Return the log of a model with these module paths; what tables do not hold is copied from ``like``."""
    index = {path: number for number, path in enumerate(paths)}
    moments, storages, events, calls, outputs, doubts, kernels = tables

    def module(template: Any, layer: int) -> int:
        return OUTSIDE if template is None else index[stack.names[layer].join(template)]

    @cache
    def moment_of(same: int, layer: int) -> Moment:
        operator, template, phase, step = values[same]
        return Moment(operator, module(template, layer), phase, step)

    @cache
    def storage_of(same: int, layer: int, nbytes: int) -> StorageSpec:
        _, template, spec, _ = values[same]
        of_layer: StorageSpec = replace(spec, owner=module(template, layer), nbytes=nbytes)
        return of_layer

    returned = defaultdict[int, list[int]](list)
    for row in outputs:
        number, storage = row.numbers
        returned[number].append(storage)
    module_calls = []
    for number, row in enumerate(calls):
        template, step = values[row.same]
        layer, outer, start, stop = row.numbers
        module_calls.append(ModuleCall(module(template, layer), step, outer, start, stop, tuple(returned[number])))
    streams = tuple(values[row.same][3] for row in storages)
    return replace(
        like,
        moments=tuple([moment_of(row.same, *row.numbers) for row in moments]),
        events=tuple([(at, of, nbytes) for _, (at, of, nbytes), _ in events]),
        storages=tuple([storage_of(row.same, *row.numbers) for row in storages]),
        module_paths=tuple(paths),
        calls=tuple(module_calls),
        doubts=tuple([Doubt(*row.numbers) for row in doubts]),
        streams=streams if any(streams) else (),
        kernels=tuple([Kernel(row.numbers[0], *values[row.same][1:], *row.numbers[1:]) for row in kernels]),
    )
