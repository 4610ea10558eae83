"""The log of a deep model, extrapolated from the logs of two shallow ones and checked against a third.

Equal layers leave equal tokens in each sweep over them: a forward goes up, a backward goes down, an optimizer's
operator runs along all parameters. One more layer adds one period to each sweep, and every number in a token (a layer,
an age, a size) continues its arithmetic progression.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, count
from operator import add, sub
from typing import Any, NamedTuple

from ..data.memory_records import Doubt, Kernel, MemoryLog, ModuleCall, Moment, StorageSpec
from ..trace.questions import OUTSIDE

LOOKAHEAD = 256
"""Tokens after a period that are compared."""

Proved = set[frozenset[Any]]
"""Periods that a third log has confirmed to repeat."""


class NotRepeatingError(Exception):
    """The logs of shallow models do not continue as those of equal layers would, or no third log confirms it yet."""


@dataclass(frozen=True)
class Stack:
    """A container of layers: its path, and the names of its layers."""

    path: str
    names: tuple[str, ...]

    def place(self, path: str) -> tuple[tuple[str | None, str], int]:
        """Split a module's path into the container's path and the rest after the layer's name, and the layer's number.

        >>> Stack("body", ("0", "1")).place("body.1.mlp")
        (('body', '.mlp'), 1)
        >>> Stack("body", ("0", "1")).place("head")
        ((None, 'head'), -1)
        """
        inside = path.removeprefix(f"{self.path}." if self.path else "")
        name, _, _ = inside.partition(".")
        if (self.path and inside == path) or name not in self.names:
            return (None, path), -1
        return (self.path, inside[len(name) :]), self.names.index(name)

    def path_of(self, rest: str, layer: int) -> str:
        """Return the path of a module inside a layer."""
        return f"{self.path}.{self.names[layer]}{rest}" if self.path else f"{self.names[layer]}{rest}"


class Token(NamedTuple):
    """An event of a step: ``same`` numbers what it has at every depth, and its ``numbers`` may grow with the depth.

    ``size`` is that of its storage, which for few tokens depends on the depth.
    """

    what: str
    same: int
    numbers: tuple[int, ...]
    size: int | None = None


class Sweep(NamedTuple):
    """A period that only the deeper of two token lists has: the tokens ``deeper[place : place + length]``."""

    place: int
    length: int


def grown(
    logs: Sequence[MemoryLog], stacks: Sequence[Stack], paths: Sequence[str], whole: Stack, proved: Proved | None = None
) -> MemoryLog:
    """Extrapolate the log of a model with the layers of ``whole`` from those with a few layers, one more, and two more.

    ``proved`` collects the periods that the third log confirms; if all are known already, two logs are enough. Raises
    :class:`NotRepeatingError` if the third log is not what the first two predict, or is needed.
    """
    few, *_, last = logs
    if any(log.others or log.in_blocks for log in logs) or few.assumptions != last.assumptions:
        raise NotRepeatingError
    if dict(few.unknown).keys() != dict(last.unknown).keys():
        raise NotRepeatingError
    known: dict[Hashable, int] = {}
    lists = [Reader(log, stack, known).read() for log, stack in zip(logs, stacks)]
    values = list(known)
    sweeps = _proved_sweeps(lists, values, set() if proved is None else proved)
    times = len(whole.names) - len(stacks[0].names)

    def counts(name: str) -> tuple[tuple[str, int], ...]:
        """Counts by name for the whole model: each additional layer adds as much as the first one did."""
        first, second = (dict(getattr(log, name) or ()) for log in logs[:2])
        return tuple((key, number + times * (second.get(key, number) - number)) for key, number in first.items())

    return replace(
        written(repeated(lists[0], lists[1], sweeps, times), values, few, paths, whole),
        unknown=counts("unknown"),
        mult_adds=None if few.mult_adds is None else counts("mult_adds"),
        uncounted=counts("uncounted"),
    )


def _proved_sweeps(lists: Sequence[list[Token]], values: Sequence[Hashable], proved: Proved) -> list[Sweep]:
    """Return the sweeps by which the first two lists predict the third. Raises :class:`NotRepeatingError`.

    Without a third list, all their periods must be confirmed already.
    """
    few, more, *most = lists
    sweeps = find_sweeps(few, more)
    periods = (Counter((t.what, values[t.same]) for t in more[at : at + length]) for at, length in sweeps)
    found = {frozenset(period.items()) for period in periods}
    if most and [token[:3] for token in repeated(few, more, sweeps, 2)] == [token[:3] for token in most[0]]:
        proved |= found
    elif most or not proved.issuperset(found):
        raise NotRepeatingError
    return sweeps


def find_sweeps(few: Sequence[Token], more: Sequence[Token]) -> list[Sweep]:
    """Return where the deeper list has an additional period. Raises :class:`NotRepeatingError`.

    It is the middle one of the repeated periods, since the first and the last layer have only one neighbour.
    """
    known: dict[object, int] = {}

    # What tokens of equal layers have in common.
    short, long = ([known.setdefault((t.what, t.same, t.size), len(known)) for t in tokens] for tokens in (few, more))
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
            sweeps.append(Sweep(first + (periods + 1) // 2 * length, length))
            j += length
        elif has_both and few[i][:2] == more[j][:2]:
            i, j = i + 1, j + 1
        else:
            raise NotRepeatingError
    return sweeps


def _period(short: Sequence[int], long: Sequence[int], i: int, j: int) -> int:
    """Return the length of a period that begins at ``long[j]`` and repeats the one before it; 0 if there is none.

    If several lengths are possible, it is the one after which the lists agree longest, to the end or ``LOOKAHEAD``.
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


def repeated(few: Sequence[Token], more: Sequence[Token], sweeps: Sequence[Sweep], times: int) -> list[Token]:
    """Return the shallower list's tokens with ``times`` additional periods in each sweep."""
    tokens: list[Token] = []
    i = j = 0
    for place, length in (*sweeps, Sweep(len(more), 0)):
        while j < place:  # Tokens that both lists have, with their numbers extrapolated.
            by = _difference(few[i], more[j])
            tokens.append(_moved(few[i], tuple(times * number for number in by)) if any(by) else few[i])
            i, j = i + 1, j + 1
        period = more[j : j + length]
        changes = [(n, _difference(before, period[n])) for n, before in enumerate(more[j - length : j])]
        changes = [(n, by) for n, by in changes if any(by)]
        last = tokens[len(tokens) - length :]
        for _ in range(times):
            following = list(period)
            for n, by in changes:
                following[n] = _moved(last[n], by)
            tokens += following
            last = following
        j += length
    return tokens


def _difference(before: Token, after: Token) -> tuple[int, ...]:
    if len(before.numbers) != len(after.numbers):
        raise NotRepeatingError
    return tuple(map(sub, after.numbers, before.numbers))


def _moved(token: Token, by: tuple[int, ...]) -> Token:
    return token._replace(numbers=tuple(map(add, token.numbers, by)))


NUMBERS = 6
"""The length of a kernel's ``numbers``."""


class Reader:
    """Converts a log to tokens in order: moments, allocations, frees, calls and doubts.

    Frees and outputs name a storage by its age: how many of its kind, layer and size have been allocated
    since. It is the same in each of many equal layers, whatever else the first and the last layer do.
    """

    def __init__(self, log: MemoryLog, stack: Stack, known: dict[Hashable, int]) -> None:
        self.log = log
        self.known = known
        """The number of each value; readers of logs that are compared share this mapping."""
        self.places = list(map(stack.place, log.module_paths))
        self.specs: dict[tuple[StorageSpec, int], tuple[int, int]] = {}
        self.moment_tokens: dict[Hashable, Token] = {}
        self.kernels: dict[int, list[Kernel]] = {}
        for kernel in log.kernels:
            self.kernels.setdefault(kernel.moment, []).append(kernel)
        self.doubts: dict[int, list[Doubt]] = {}
        for doubt in log.doubts:
            self.doubts.setdefault(doubt.event, []).append(doubt)
        self.tokens: list[Token] = []
        self.alike: Counter[Hashable] = Counter()
        """How many storages of a kind, a layer and a size have been allocated."""
        self.storages: dict[int, tuple[tuple[int, int, int], int]] = {}
        """Of each allocated storage: its kind, layer and size, and its number among those alike."""
        self.moments_read = self.events_read = 0

    def read(self) -> list[Token]:
        """Return the tokens."""
        under_way: list[ModuleCall] = []
        for call in self.log.calls:
            outer = None if call.outer < 0 else self.log.calls[call.outer]
            while under_way and under_way[-1] is not outer:
                self._return(under_way.pop())
            self._events(call.start)
            template, layer = self.places[call.module]
            self._add("call", (template, call.step), (layer,))
            under_way.append(call)
        while under_way:
            self._return(under_way.pop())
        self._events(len(self.log.events))
        self._moments(len(self.log.moments) - 1)
        return self.tokens

    def _add(self, what: str, value: Hashable, numbers: tuple[int, ...]) -> None:
        self.tokens.append(Token(what, self._number(value), numbers))

    def _number(self, value: Hashable) -> int:
        return self.known.setdefault(value, len(self.known))

    def _return(self, call: ModuleCall) -> None:
        self._events(call.stop)
        for storage in call.outputs:
            if storage in self.storages:
                self._about("output", storage)
        self._add("return", None, ())

    def _about(self, what: str, storage: int) -> None:
        """Add a token about a storage, named by its kind, layer and size, and its age."""
        (same, layer, size), number = self.storages[storage]
        self.tokens.append(Token(what, same, (layer, self.alike[same, layer, size] - 1 - number), size))

    def _events(self, stop: int) -> None:
        for event in range(self.events_read, stop):
            for doubt in self.doubts.get(event, ()):
                self._moments(doubt.moment)
                self._add("doubt", None, (doubt.nbytes,))
            moment, storage, nbytes = self.log.events[event]
            self._moments(moment)
            if nbytes:
                spec = self.log.storages[storage]
                same, layer = self._spec(spec, self.log.stream(storage))
                key = same, layer, nbytes
                self.storages[storage] = key, self.alike[key]
                self.alike[key] += 1
                self.tokens.append(Token("allocate", same, (layer, spec.nbytes, nbytes), nbytes))
            else:
                self._about("free", storage)
        self.events_read = max(self.events_read, stop)

    def _moments(self, last: int) -> None:
        for number in range(self.moments_read, last + 1):
            moment, kernels = self.log.moments[number], self.kernels.get(number, ())
            kinds = tuple([(kernel.kind, kernel.dtype) for kernel in kernels])
            work = tuple(chain.from_iterable([kernel.numbers for kernel in kernels]))
            token = self.moment_tokens.get((moment, kinds, work))
            if token is None:
                template, layer = self._place(moment.module)
                same = self._number((moment.operator, template, moment.phase, moment.step, kinds))
                token = self.moment_tokens[moment, kinds, work] = Token("moment", same, (layer, *work))
            self.tokens.append(token)
        self.moments_read = max(self.moments_read, last + 1)

    def _spec(self, spec: StorageSpec, stream: int) -> tuple[int, int]:
        """Return the number of what a storage has in common with those of other layers, and its layer."""
        key = spec, stream
        if key not in self.specs:
            template, layer = self._place(spec.owner)
            self.specs[key] = self._number((template, replace(spec, owner=0, nbytes=0), stream)), layer
        return self.specs[key]

    def _place(self, module: int) -> tuple[Any, int]:
        return (None, -1) if module == OUTSIDE else self.places[module]


def written(
    tokens: Sequence[Token], values: Sequence[Any], like: MemoryLog, paths: Sequence[str], stack: Stack
) -> MemoryLog:
    """Return the log of a model with these module paths; what tokens do not carry is copied from ``like``.

    ``values`` are what the tokens' ``same`` numbers.
    """
    index = {path: number for number, path in enumerate(paths)}
    moments, kernels, storages, streams = list[Moment](), list[Kernel](), list[StorageSpec](), list[int]()
    events, calls, doubts, under_way = list[tuple[int, int, int]](), list[ModuleCall](), list[Doubt](), list[int]()
    allocated: dict[Hashable, list[int]] = {}
    outputs: list[int] = []
    live: set[int] = set()

    def module(template: Any, layer: int) -> int:
        if template is None:
            return OUTSIDE
        container, rest = template
        return index[rest if container is None else stack.path_of(rest, layer)]

    @cache
    def moment_of(same: int, layer: int) -> Moment:
        operator, template, phase, step, _ = values[same]
        return Moment(operator, module(template, layer), phase, step)

    @cache
    def spec_of(same: int, layer: int, nbytes: int) -> StorageSpec:
        template, spec, _ = values[same]
        of_layer: StorageSpec = replace(spec, owner=module(template, layer), nbytes=nbytes)
        return of_layer

    def named(same: int, layer: int, age: int, size: int | None) -> int:
        alike = allocated.get((same, layer, size), [])
        if not 0 <= age < len(alike):
            raise NotRepeatingError
        return alike[-1 - age]

    for what, same, numbers, size in tokens:
        if what == "moment":
            moments.append(moment_of(same, numbers[0]))
            for first, (kind, dtype) in zip(count(1, NUMBERS), values[same][-1]):
                kernels.append(Kernel(len(moments) - 1, kind, dtype, *numbers[first : first + NUMBERS]))
        elif what == "allocate":
            layer, nbytes, taken = numbers
            allocated.setdefault((same, layer, size), []).append(len(storages))
            live.add(len(storages))
            events.append((len(moments) - 1, len(storages), taken))
            storages.append(spec_of(same, layer, nbytes))
            streams.append(values[same][2])
        elif what == "free":
            storage = named(same, numbers[0], numbers[1], size)
            if storage not in live:
                raise NotRepeatingError
            live.remove(storage)
            events.append((len(moments) - 1, storage, 0))
        elif what == "call":
            template, step = values[same]
            outer = under_way[-1] if under_way else -1
            under_way.append(len(calls))
            calls.append(ModuleCall(module(template, numbers[0]), step, outer, len(events), -1, ()))
        elif what == "return":
            number = under_way.pop()
            calls[number] = replace(calls[number], stop=len(events), outputs=tuple(outputs))
            outputs.clear()
        elif what == "output":
            outputs.append(named(same, numbers[0], numbers[1], size))
        else:
            doubts.append(Doubt(len(events), len(moments) - 1, numbers[0]))
    return replace(
        like,
        moments=tuple(moments),
        events=tuple(events),
        storages=tuple(storages),
        module_paths=tuple(paths),
        calls=tuple(calls),
        doubts=tuple(doubts),
        streams=tuple(streams) if any(streams) else (),
        kernels=tuple(kernels),
    )
