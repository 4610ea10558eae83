"""The log of a deep model, grown from those of two shallow ones and checked against that of a third.

Equal layers leave the same tokens in each sweep over them: a forward goes up, a backward down, an optimizer's operator
along all parameters. A model with one layer more has one period more in each sweep, and every number in a token (the
layer, a position, a size) goes on as it did.
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
"""Tokens behind a period that are compared."""


Proved = set[tuple[bool, Any]]
"""Periods of which a third log has confirmed that they repeat."""


@dataclass(frozen=True)
class Sweep:
    """A period that is in the deeper of two token lists alone: its tokens are ``deeper[place : place + length]``."""

    place: int
    length: int


def grown(
    logs: Sequence[MemoryLog], stacks: Sequence[Stack], paths: Sequence[str], whole: Stack, proved: Proved | None = None
) -> MemoryLog:
    """The log of a model with the layers of ``whole``, from those with some, one more, and two more of them.

    ``proved`` takes in the periods that the third confirms; where they are all known already, two logs are enough.
    Raises :class:`NotRepeatingError` where the third is not what follows from the first two, :class:`UnprovedError`
    where it is needed.
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
    unknown = tuple((name, n + times * (counts[1][name] - n)) for name, n in counts[0].items())
    log = Writer(paths, whole).write(repeated(few, more, sweeps, times), logs[0], paths)
    return replace(log, unknown=unknown)


class UnprovedError(Exception):
    """Two logs tell what repeats, but no third has confirmed it yet."""


def _known_sweeps(few: Sequence[Token], more: Sequence[Token], proved: Proved) -> list[Sweep]:
    """The sweeps between two lists, of periods confirmed before. Raises :class:`UnprovedError`."""
    for by_place in (True, False):
        try:
            sweeps = find_sweeps(few, more, by_place)
        except NotRepeatingError:
            continue
        if proved.issuperset(_periods(more, sweeps, by_place)):
            return sweeps
    raise UnprovedError


def _periods(more: Sequence[Token], sweeps: Sequence[Sweep], by_place: bool) -> Proved:
    """What happens in each sweep's period, wherever it begins."""
    return {
        (by_place, frozenset(Counter(token[:2] for token in more[sweep.place : sweep.place + sweep.length]).items()))
        for sweep in sweeps
    }


def _proved_sweeps(few: Sequence[Token], more: Sequence[Token], most: Sequence[Token], proved: Proved) -> list[Sweep]:
    """The sweeps that lead from the first two lists to the third. Raises :class:`NotRepeatingError`.

    Where a layer at an end holds more than those between, only the places of storages tell it from them; elsewhere
    these places may grow with the depth.
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
    """Where the deeper list has a period more. Raises :class:`NotRepeatingError`."""
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
    """What tokens of equal layers have in common."""
    place = token.numbers[1:] if by_place and token.what in ("free", "output") else ()
    return token.what, token.same, token.size, place


def _centred(long: Sequence[int], place: int, length: int) -> Sweep:
    """The period in the middle of those that are there: the first and the last layer have but one neighbour."""
    first = place
    while first >= length and long[first - length : first] == long[place : place + length]:
        first -= length
    periods = (place - first) // length + 1
    return Sweep(first + (periods + 1) // 2 * length, length)


def _period(short: Sequence[int], long: Sequence[int], i: int, j: int) -> int:
    """The length of a period that begins at ``long[j]``, as the one before it did; 0 where there is none.

    Of several lengths it is the one behind which the lists agree the longest.
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
    """For how many tokens two lists agree from there on, up to so many; the end agrees with the end."""
    for count in range(LOOKAHEAD):
        if i + count == len(short) or j + count == len(long):
            return count + (len(short) - i == len(long) - j)
        if short[i + count] != long[j + count]:
            return count
    return LOOKAHEAD


def repeated(few: Sequence[Token], more: Sequence[Token], sweeps: Sequence[Sweep], times: int) -> list[Token]:
    """The tokens with so many periods more in each sweep than there are in the shallower list."""
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
    """A token that both lists have, with its numbers as they go on."""
    if few.numbers == more.numbers:
        return few
    by = _difference(few, more)
    return _moved(few, tuple(times * number for number in by))


def _moved(token: Token, by: tuple[int, ...]) -> Token:
    return Token(token.what, token.same, tuple(map(add, token.numbers, by)), token.size)
