"""The log of a deep model, extrapolated from the logs of two shallow ones and checked against a third.

Equal layers leave equal tokens in each sweep over them: a forward goes up, a backward goes down, an optimizer's
operator runs along all parameters. One more layer adds one period to each sweep, and every number in a token (a layer,
a position, a size) continues its arithmetic progression.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from operator import add, sub
from typing import Any

from ...data.memory_records import MemoryLog
from .tokens import Alike, NotRepeatingError, Reader, Stack, Token, Writer

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
    sweeps = _proved_sweeps(few, more, most[0], known) if most else _known_sweeps(few, more, known)
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


def _known_sweeps(few: Sequence[Token], more: Sequence[Token], proved: Proved) -> list[Sweep]:
    """Return the sweeps between two lists if all their periods are confirmed. Raises :class:`UnprovedError`."""
    for by_place in (True, False):
        try:
            sweeps = find_sweeps(few, more, by_place)
        except NotRepeatingError:
            continue
        if proved.issuperset(_periods(more, sweeps, by_place)):
            return sweeps
    raise UnprovedError


def _periods(more: Sequence[Token], sweeps: Sequence[Sweep], by_place: bool) -> Proved:
    """Return the contents of each sweep's period, independent of where the period begins."""
    return {
        (by_place, frozenset(Counter(token[:2] for token in more[sweep.place : sweep.place + sweep.length]).items()))
        for sweep in sweeps
    }


def _proved_sweeps(few: Sequence[Token], more: Sequence[Token], most: Sequence[Token], proved: Proved) -> list[Sweep]:
    """Return the sweeps by which the first two lists predict the third. Raises :class:`NotRepeatingError`.

    Places of storages are compared first: they alone distinguish a first or last layer that keeps more than the others.
    Elsewhere they may grow with the depth, so that the second attempt ignores them.
    """
    wanted = [token[:3] for token in most]
    for by_place in (True, False):
        try:
            sweeps = find_sweeps(few, more, by_place)
            if [token[:3] for token in repeated(few, more, sweeps, 2)] == wanted:
                proved |= _periods(more, sweeps, by_place)
                return sweeps
        except NotRepeatingError:
            continue
    raise NotRepeatingError


def find_sweeps(few: Sequence[Token], more: Sequence[Token], by_place: bool) -> list[Sweep]:
    """Return where the deeper list has an additional period. Raises :class:`NotRepeatingError`."""
    known: dict[object, int] = {}
    short, long = (
        [known.setdefault(_likeness(token, by_place), len(known)) for token in tokens] for tokens in (few, more)
    )
    sweeps = []
    i = j = 0
    while i < len(short) or j < len(long):
        if i < len(short) and j < len(long) and short[i] == long[j]:
            i, j = i + 1, j + 1
            continue
        length = _period(short, long, i, j)
        if length:
            sweeps.append(_centred(long, j, length))
            j += length
        elif i < len(short) and j < len(long) and few[i][:2] == more[j][:2]:
            i, j = i + 1, j + 1
        else:
            raise NotRepeatingError
    return sweeps


def _likeness(token: Token, by_place: bool) -> object:
    """Return what tokens of equal layers have in common."""
    place = token.numbers[1:] if by_place and token.what in ("free", "output") else ()
    return token.what, token.same, token.size, place


def _centred(long: Sequence[int], place: int, length: int) -> Sweep:
    """Return the middle one of the repeated periods, since the first and the last layer have only one neighbour."""
    first = place
    while first >= length and long[first - length : first] == long[place : place + length]:
        first -= length
    periods = (place - first) // length + 1
    return Sweep(first + (periods + 1) // 2 * length, length)


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
    for count in range(LOOKAHEAD):
        if i + count == len(short) or j + count == len(long):
            return count + (len(short) - i == len(long) - j)
        if short[i + count] != long[j + count]:
            return count
    return LOOKAHEAD


def repeated(few: Sequence[Token], more: Sequence[Token], sweeps: Sequence[Sweep], times: int) -> list[Token]:
    """Return the shallower list's tokens with ``times`` additional periods in each sweep."""
    tokens: list[Token] = []
    i = j = 0
    for sweep in (*sweeps, Sweep(len(more), 0)):
        while j < sweep.place:
            tokens.append(_further(few[i], more[j], times))
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


def _further(few: Token, more: Token, times: int) -> Token:
    """Return a token that both lists have, with its numbers extrapolated by ``times`` steps."""
    if few.numbers == more.numbers:
        return few
    by = _difference(few, more)
    return _moved(few, tuple(times * number for number in by))


def _moved(token: Token, by: tuple[int, ...]) -> Token:
    return Token(token.what, token.same, tuple(map(add, token.numbers, by)), token.size)
