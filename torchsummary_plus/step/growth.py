"""The log of a deep model, extrapolated from the logs of two shallow ones and checked against a third.

Equal layers leave equal tokens in each sweep over them: a forward goes up, a backward goes down, an optimizer's
operator runs along all parameters. One more layer adds one period to each sweep, and every number in a token (a layer,
a position, a size) continues its arithmetic progression.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from operator import add, sub
from typing import Any, NamedTuple

from ..data.memory_records import Doubt, Kernel, MemoryLog, ModuleCall, Moment, StorageSpec
from ..trace.questions import OUTSIDE

LOOKAHEAD = 256
"""Tokens after a period that are compared."""


Proved = set[tuple[bool, Any]]
"""Periods that a third log has confirmed to repeat."""


@dataclass(frozen=True)
class Sweep:
    """A period that only the deeper of two token lists has: the tokens ``deeper[place : place + length]``."""

    place: int
    length: int


def grown(
    logs: Sequence[MemoryLog], stacks: Sequence[Stack], paths: Sequence[str], whole: Stack, proved: Proved | None = None
) -> MemoryLog:
    """Extrapolate the log of a model with the layers of ``whole`` from those with a few layers, one more, and two more.

    ``proved`` collects the periods that the third log confirms; if all are known already, two logs are enough. Raises
    :class:`NotRepeatingError` if the third log is not what the first two predict, and :class:`UnprovedError` if a third
    log is needed.
    """
    if any(log.others or log.in_blocks for log in logs):
        raise NotRepeatingError
    alike: dict[Hashable, Alike] = {}
    few, more, *most = (Reader(log, stack, alike).read() for log, stack in zip(logs, stacks))
    known = set() if proved is None else proved
    sweeps = _proved_sweeps(few, more, most[0] if most else None, known)
    times = len(whole.names) - len(stacks[0].names)
    counts = [dict(log.unknown) for log in logs]
    if counts[0].keys() != counts[-1].keys() or logs[0].assumptions != logs[-1].assumptions:
        raise NotRepeatingError
    unknown = _grown_counts([log.unknown for log in logs], times)
    log = Writer(paths, whole).write(repeated(few, more, sweeps, times), logs[0], paths)
    counted = _grown_counts([log.mult_adds or () for log in logs], times)
    uncounted = _grown_counts([log.uncounted for log in logs], times)
    return replace(log, unknown=unknown, mult_adds=None if logs[0].mult_adds is None else counted, uncounted=uncounted)


def _grown_counts(counts: Sequence[tuple[tuple[str, int], ...]], times: int) -> tuple[tuple[str, int], ...]:
    """Return counts by name for the whole model: each additional layer adds as much as the first one did."""
    few, more = dict(counts[0]), dict(counts[1])
    return tuple((name, number + times * (more.get(name, number) - number)) for name, number in few.items())


class UnprovedError(Exception):
    """Two logs show what repeats, but no third log has confirmed it yet."""


def _proved_sweeps(
    few: Sequence[Token], more: Sequence[Token], most: Sequence[Token] | None, proved: Proved
) -> list[Sweep]:
    """Return the sweeps by which the first two lists predict the third. Raises :class:`NotRepeatingError`.

    Without a third list, all their periods must be confirmed already; else it raises :class:`UnprovedError`. Places of
    storages are compared first: they alone distinguish a first or last layer that keeps more than the others. Elsewhere
    they may grow with the depth, so that the second attempt ignores them.
    """
    wanted = [token[:3] for token in most or ()]
    for by_place in (True, False):
        try:
            sweeps = find_sweeps(few, more, by_place)
            periods = {
                (by_place, frozenset(Counter(token[:2] for token in more[s.place : s.place + s.length]).items()))
                for s in sweeps
            }
            if most is None and proved.issuperset(periods):
                return sweeps
            if most is not None and [token[:3] for token in repeated(few, more, sweeps, 2)] == wanted:
                proved |= periods
                return sweeps
        except NotRepeatingError:
            continue
    raise UnprovedError if most is None else NotRepeatingError


def find_sweeps(few: Sequence[Token], more: Sequence[Token], by_place: bool) -> list[Sweep]:
    """Return where the deeper list has an additional period. Raises :class:`NotRepeatingError`.

    It is the middle one of the repeated periods, since the first and the last layer have only one neighbour.
    """
    known: dict[object, int] = {}
    short: list[int] = []
    long: list[int] = []
    for tokens, numbers in ((few, short), (more, long)):
        for token in tokens:  # What tokens of equal layers have in common.
            place = token.numbers[1:] if by_place and token.what in ("free", "output") else ()
            numbers.append(known.setdefault((token.what, token.same, token.size, place), len(known)))
    sweeps = []
    i = j = 0
    while i < len(short) or j < len(long):
        if i < len(short) and j < len(long) and short[i] == long[j]:
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
        elif i < len(short) and j < len(long) and few[i][:2] == more[j][:2]:
            i, j = i + 1, j + 1
        else:
            raise NotRepeatingError
    return sweeps


def _period(short: Sequence[int], long: Sequence[int], i: int, j: int) -> int:
    """Return the length of a period that begins at ``long[j]`` and repeats the one before it; 0 if there is none.

    If several lengths are possible, it is the one after which the lists agree longest.
    """
    best, longest = 0, 0
    for length in range(1, min(j, len(long) - j) + 1):
        if long[j - length] != long[j] or long[j - length : j] != long[j : j + length]:
            continue
        agreed = _agreed(short, long, i, j + length)
        if agreed > longest:
            best, longest = length, agreed
    return best


def _agreed(short: Sequence[int], long: Sequence[int], i: int, j: int) -> int:
    """Return for how many tokens two lists agree from there on, at most ``LOOKAHEAD``; a common end counts too."""
    for number in range(LOOKAHEAD):
        if i + number == len(short) or j + number == len(long):
            return number + (len(short) - i == len(long) - j)
        if short[i + number] != long[j + number]:
            return number
    return LOOKAHEAD


def repeated(few: Sequence[Token], more: Sequence[Token], sweeps: Sequence[Sweep], times: int) -> list[Token]:
    """Return the shallower list's tokens with ``times`` additional periods in each sweep."""
    tokens: list[Token] = []
    i = j = 0
    for sweep in (*sweeps, Sweep(len(more), 0)):
        while j < sweep.place:  # Tokens that both lists have, with their numbers extrapolated.
            by = _difference(few[i], more[j])
            tokens.append(_moved(few[i], tuple(times * number for number in by)) if any(by) else few[i])
            i, j = i + 1, j + 1
        period = more[j : j + sweep.length]
        changes = [(n, _difference(before, period[n])) for n, before in enumerate(more[j - sweep.length : j])]
        changes = [(n, by) for n, by in changes if any(by)]
        last = tokens[len(tokens) - sweep.length :]
        for _ in range(times):
            following = list(period)
            for n, by in changes:
                following[n] = _moved(last[n], by)
            tokens += following
            last = following
        j += sweep.length
    return tokens


def _difference(before: Token, after: Token) -> tuple[int, ...]:
    if len(before.numbers) != len(after.numbers):
        raise NotRepeatingError
    return tuple(map(sub, after.numbers, before.numbers))


def _moved(token: Token, by: tuple[int, ...]) -> Token:
    return Token(token.what, token.same, tuple(map(add, token.numbers, by)), token.size)


NUMBERS = 6
"""The length of a kernel's ``numbers``."""


class Alike:
    """The part that tokens of equal layers share. It is compared often, so its hash is cached."""

    __slots__ = ("hashed", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.hashed = hash(value)

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Alike) and self.value == other.value)


NOTHING = Alike(None)


class Token(NamedTuple):
    """An event of a step: ``same`` at every depth, with ``numbers`` that may grow with the depth.

    ``size`` is that of its storage, which for few tokens depends on the depth.
    """

    what: str
    same: Alike
    numbers: tuple[int, ...]
    size: Hashable = None


class Live:
    """Live storages grouped by key; a storage is identified by its position among those of its key, oldest first.

    The position is the same in each of many equal layers, whatever else the first and the last layer do.
    """

    def __init__(self) -> None:
        self.alike: dict[Hashable, list[int]] = {}

    def begin(self, key: Hashable, storage: int) -> None:
        """Add an allocated storage."""
        self.alike.setdefault(key, []).append(storage)

    def place(self, key: Hashable, storage: int) -> int:
        """Return a storage's position, or -1 if it is no longer live."""
        alike = self.alike.get(key, [])
        return alike.index(storage) if storage in alike else -1

    def end(self, key: Hashable, place: int) -> int:
        """Remove and return the storage at a position. Raises :class:`NotRepeatingError`."""
        storage = self.at(key, place)
        del self.alike[key][place]
        return storage

    def at(self, key: Hashable, place: int) -> int:
        """Return the storage at a position. Raises :class:`NotRepeatingError`."""
        alike = self.alike.get(key, [])
        if not 0 <= place < len(alike):
            raise NotRepeatingError
        return alike[place]


class NotRepeatingError(Exception):
    """The logs of shallow models do not continue as those of equal layers would."""


@dataclass(frozen=True)
class Stack:
    """A container of layers: its path, and the names of its layers."""

    path: str
    names: tuple[str, ...]

    def place(self, path: str) -> tuple[str | None, str, int]:
        """Split a module's path into the container's path, the rest after the layer's name, and the layer's number.

        >>> Stack("body", ("0", "1")).place("body.1.mlp")
        ('body', '.mlp', 1)
        >>> Stack("body", ("0", "1")).place("head")
        (None, 'head', -1)
        """
        inside = path.removeprefix(f"{self.path}." if self.path else "")
        name, _, _ = inside.partition(".")
        if (self.path and inside == path) or name not in self.names:
            return None, path, -1
        return self.path, inside[len(name) :], self.names.index(name)

    def path_of(self, rest: str, layer: int) -> str:
        """Return the path of a module inside a layer."""
        return f"{self.path}.{self.names[layer]}{rest}" if self.path else f"{self.names[layer]}{rest}"


class Reader:
    """Converts a log to tokens in order: moments, allocations, frees, calls and doubts."""

    def __init__(self, log: MemoryLog, stack: Stack, known: dict[Hashable, Alike]) -> None:
        self.log = log
        self.known = known
        """The single :class:`Alike` of each value; readers of logs that are compared share this mapping."""
        self.specs: dict[tuple[StorageSpec, int], tuple[Alike, int]] = {}
        self.moment_tokens: dict[Hashable, Token] = {}
        self.kernels: dict[int, list[Kernel]] = {}
        for kernel in log.kernels:
            self.kernels.setdefault(kernel.moment, []).append(kernel)
        self.places: list[tuple[Any, int]] = []
        for path in log.module_paths:
            container, rest, layer = stack.place(path)
            self.places.append(((container, rest), layer))
        self.tokens: list[Token] = []
        self.born: dict[int, int] = {}
        self.live = Live()
        self.moments_read = 0
        self.doubts = iter(log.doubts)
        self.doubt = next(self.doubts, None)

    def read(self) -> list[Token]:
        """Return the tokens; frees and call outputs identify a storage by its position in :class:`Live`."""
        inner: dict[int, list[int]] = {}
        for number, call in enumerate(self.log.calls):
            inner.setdefault(call.outer, []).append(number)
        self._events(0, len(self.log.events), inner.get(-1, []), inner)
        self._moments(len(self.log.moments) - 1)
        return self.tokens

    def _events(self, start: int, stop: int, calls: Sequence[int], inner: dict[int, list[int]]) -> None:
        at = start
        for number in calls:
            call = self.log.calls[number]
            self._plain(at, call.start)
            template, layer = self.places[call.module]
            self.tokens.append(Token("call", self._alike((template, call.step)), (layer,)))
            self._events(call.start, call.stop, inner.get(number, []), inner)
            self.tokens.append(Token("return", NOTHING, ()))
            self.tokens += [self._named("output", number) for number in call.outputs if number in self.born]
            at = call.stop
        self._plain(at, stop)

    def _plain(self, start: int, stop: int) -> None:
        for number in range(start, stop):
            self._doubts(number)
            moment, storage, nbytes = self.log.events[number]
            self._moments(moment)
            if nbytes:
                spec = self.log.storages[storage]
                same, layer = self._spec(spec, self.log.stream(storage))
                self.born[storage] = len(self.tokens)
                self.live.begin((same, layer, nbytes), storage)
                self.tokens.append(Token("allocate", same, (layer, spec.nbytes, nbytes), nbytes))
            else:
                token = self._named("free", storage)
                self.live.end((token.same, token.numbers[0], token.size), token.numbers[1])
                self.tokens.append(token)

    def _named(self, what: str, storage: int) -> Token:
        """Return a token about a storage; a storage that is free already is identified by its allocation's token."""
        born = self.tokens[self.born[storage]]
        layer = born.numbers[0]
        place = self.live.place((born.same, layer, born.size), storage)
        return Token(what, born.same, (layer, place) if place >= 0 else (self.born[storage],), born.size)

    def _doubts(self, event: int) -> None:
        while self.doubt is not None and self.doubt.event <= event:
            self._moments(self.doubt.moment)
            self.tokens.append(Token("doubt", NOTHING, (self.doubt.nbytes,)))
            self.doubt = next(self.doubts, None)

    def _moments(self, last: int) -> None:
        for number in range(self.moments_read, last + 1):
            moment, kernels = self.log.moments[number], self.kernels.get(number, ())
            kinds = tuple([(kernel.kind, kernel.dtype) for kernel in kernels])
            work = tuple(chain.from_iterable([kernel.numbers for kernel in kernels]))
            token = self.moment_tokens.get((moment, kinds, work))
            if token is None:
                template, layer = self._place(moment.module)
                same = self._alike((moment.operator, template, moment.phase, moment.step, kinds))
                token = self.moment_tokens[moment, kinds, work] = Token("moment", same, (layer, *work))
            self.tokens.append(token)
        self.moments_read = max(self.moments_read, last + 1)

    def _alike(self, value: Hashable) -> Alike:
        return self.known.setdefault(value, Alike(value))

    def _spec(self, spec: StorageSpec, stream: int) -> tuple[Alike, int]:
        """Return what a storage has in common with those of other layers, and its layer."""
        key = spec, stream
        if key not in self.specs:
            template, layer = self._place(spec.owner)
            self.specs[key] = self._alike((template, replace(spec, owner=0, nbytes=0), stream)), layer
        return self.specs[key]

    def _place(self, module: int) -> tuple[Any, int]:
        return (None, -1) if module == OUTSIDE else self.places[module]


class Writer:
    """Converts tokens to the log of a model with these module paths."""

    def __init__(self, paths: Sequence[str], stack: Stack) -> None:
        self.stack = stack
        self.index = {path: number for number, path in enumerate(paths)}
        self.moments: list[Moment] = []
        self.kernels: list[Kernel] = []
        self.events: list[tuple[int, int, int]] = []
        self.storages: list[StorageSpec] = []
        self.streams: list[int] = []
        self.calls: list[ModuleCall] = []
        self.doubts: list[Doubt] = []
        self.specs: dict[tuple[Alike, int, int], StorageSpec] = {}
        self.known_moments: dict[tuple[Alike, int], Moment] = {}

    def write(self, tokens: Sequence[Token], like: MemoryLog, paths: Sequence[str]) -> MemoryLog:
        """Return the log; what tokens do not carry, such as assumptions, is copied from ``like``."""
        storage_at: dict[int, int] = {}
        live = Live()
        under_way: list[int] = []
        returned = -1
        for place, (what, same, numbers, size) in enumerate(tokens):
            if what == "moment":
                self.moments.append(self._moment(same, numbers[0]))
                for first, (kind, dtype) in zip(count(1, NUMBERS), same.value[-1]):
                    work = numbers[first : first + NUMBERS]
                    self.kernels.append(Kernel(len(self.moments) - 1, kind, dtype, *work))
            elif what == "allocate":
                storage_at[place] = len(self.storages)
                live.begin((same, numbers[0], size), len(self.storages))
                self.events.append((len(self.moments) - 1, len(self.storages), numbers[2]))
                self.storages.append(self._spec(same, numbers[0], numbers[1]))
                self.streams.append(same.value[2])
            elif what == "free":
                self.events.append((len(self.moments) - 1, live.end((same, numbers[0], size), numbers[1]), 0))
            elif what == "call":
                outer = under_way[-1] if under_way else -1
                under_way.append(len(self.calls))
                template, step = same.value
                self.calls.append(ModuleCall(self._module(template, numbers[0]), step, outer, len(self.events), -1, ()))
            elif what == "return":
                returned = under_way.pop()
                self.calls[returned] = replace(self.calls[returned], stop=len(self.events))
            elif what == "output":
                is_live = len(numbers) > 1
                token = live.at((same, numbers[0], size), numbers[1]) if is_live else storage_at[numbers[0]]
                self.calls[returned] = replace(self.calls[returned], outputs=(*self.calls[returned].outputs, token))
            else:
                self.doubts.append(Doubt(len(self.events), len(self.moments) - 1, numbers[0]))
        return replace(
            like,
            moments=tuple(self.moments),
            events=tuple(self.events),
            storages=tuple(self.storages),
            module_paths=tuple(paths),
            calls=tuple(self.calls),
            doubts=tuple(self.doubts),
            streams=tuple(self.streams) if any(self.streams) else (),
            kernels=tuple(self.kernels),
        )

    def _moment(self, same: Alike, layer: int) -> Moment:
        key = same, layer
        if key not in self.known_moments:
            operator, template, *when, _ = same.value
            self.known_moments[key] = Moment(operator, self._module(template, layer), *when)
        return self.known_moments[key]

    def _spec(self, same: Alike, layer: int, nbytes: int) -> StorageSpec:
        key = same, layer, nbytes
        if key not in self.specs:
            template, like, _ = same.value
            self.specs[key] = replace(like, owner=self._module(template, layer), nbytes=nbytes)
        return self.specs[key]

    def _module(self, template: Any, layer: int) -> int:
        if template is None:
            return OUTSIDE
        container, rest = template
        return self.index[rest if container is None else self.stack.path_of(rest, layer)]
