"""Complete a pipeline's log: micro-batches that did not run are copied from those that did."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from ..data.memory_records import Doubt, MemoryLog, ModuleCall, Moment, in_order
from ..trace.questions import OUTSIDE
from .micro_batches import MARK, Part, UnlikeError

LogEvent = tuple[int, int, int]


@dataclass
class _Template:
    """A part that ran, with its events and the later ones that free storages of its micro-batch."""

    part: Part
    events: Sequence[LogEvent]
    trailing: Sequence[LogEvent]
    first: int
    """The index of its first event in the log."""
    born: set[int] = field(default_factory=set)


def filled(log: MemoryLog, parts: Sequence[Part]) -> MemoryLog:
    """Return the log of all micro-batches, without marks. Raises :class:`UnlikeError` if those that ran differ."""
    return _Filling(log, parts).run()


def _is_name(moment: Moment) -> bool:
    """Whether a moment only names what follows, such as ``fully_shard``'s prefetches."""
    return moment.operator.startswith("profiler::")


class _Filling:
    def __init__(self, log: MemoryLog, parts: Sequence[Part]) -> None:
        self.log = log
        self.parts = parts
        self.ordered = list(accumulate((event[0] for event in log.events), max))
        self.born: dict[int, Part] = {}
        self.order: dict[int, int] = {}
        """By storage: the number of storages that its part allocated before it."""
        self.outs = {storage for part in parts for storage in part.outs}
        self.templates = {self._key(part): self._template(part) for part in parts if part.is_run}
        self.copies: dict[tuple[Any, ...], dict[int, int]] = {}
        """By part: its storages by those of its template."""
        self.siblings: dict[int, list[int]] = {}
        """By storage of a template: its live copies."""
        self.freed: set[int] = set()
        """Copies that have been freed."""
        self.usual: dict[Any, _Template] = {}
        """By kind of part and step: the part of a micro-batch other than the step's first."""
        for template in self.templates.values():
            if template.part.batch > 0:
                self.usual.setdefault((template.part.what, template.part.step), template)
        self.ends = {part.end: part for part in parts if part.is_run}
        self.storages = list(log.storages)
        self.streams = [log.stream(storage) for storage in range(len(log.storages))]
        self.moments: list[Moment] = []
        self.at: dict[int, int] = {}
        self.events: list[LogEvent] = []
        self.calls: list[ModuleCall] = []
        self.call_at: dict[int, int] = {-1: -1}
        self.doubts: list[Doubt] = []
        self.unknown = Counter(dict(log.unknown))

    def place(self, moment: int) -> int:
        """Return the index of the first event at or after a moment."""
        return bisect_left(self.ordered, moment)

    @staticmethod
    def _key(part: Part, batch: int | None = None) -> tuple[Any, ...]:
        return part.what, part.step, part.batch if batch is None else batch

    def _template(self, part: Part) -> _Template:
        first, end = self.place(part.begin), self.place(part.end)
        template = _Template(part, self.log.events[first:end], (), first)
        for _, storage, nbytes in template.events:
            if nbytes:
                self.born[storage], self.order[storage] = part, len(template.born)
                template.born.add(storage)
        behind = self.log.events[end : self.place(part.end + 1)]
        template.trailing = [event for event in behind if not event[2] and self._is_of(event[1], part)]
        return template

    def _is_of(self, storage: int, part: Part) -> bool:
        """Whether a storage belongs to a part's micro-batch and is not returned by one of its parts."""
        born = self.born.get(storage)
        return born is not None and storage not in self.outs and self._is_same(born, part)

    @staticmethod
    def _is_same(part: Part, other: Part) -> bool:
        """Whether two parts belong to the same micro-batch."""
        return (part.stage, part.step, part.batch) == (other.stage, other.step, other.batch)

    def run(self) -> MemoryLog:
        """Return the log, with storages numbered in the order of their allocations."""
        self._check()
        at = calls = doubts = 0
        for part in self.parts:
            self._outside(at, part.begin, slice(calls, part.calls.start), slice(doubts, part.doubts.start))
            if part.is_run:
                self._outside(part.begin, part.end, part.calls, part.doubts, part)
            else:
                self._copied(part)
            at, calls, doubts = part.end, part.calls.stop, part.doubts.stop
        self._outside(at, len(self.log.moments), slice(calls, None), slice(doubts, None))
        return self._numbered()

    def _check(self) -> None:
        """Compare each template with the previous one of its kind. Raises :class:`UnlikeError` if they differ."""
        like: dict[Any, Any] = {}
        for template in self.templates.values():
            if template.part.batch == 0:
                continue
            looks = self._looks(template)
            if like.setdefault(template.part.what, looks) != looks:
                raise UnlikeError

    def _looks(self, template: _Template) -> Any:
        """Return everything that happens in a part, with storages described by their properties and origin."""
        part = template.part
        numbers = [moment for moment in range(part.begin + 1, part.end) if not self._is_aside(moment)]
        moments = [replace(self.log.moments[m], step=0) for m in numbers]
        events = []
        for moment, storage, nbytes in (*template.events, *template.trailing):
            spec = self.log.storages[storage]
            origin = self.born.get(storage)
            from_where = None if origin is None else (origin.what, origin.batch - part.batch)
            number = self.order.get(storage) if origin is not None and self._is_same(origin, part) else None
            events.append((bisect_left(numbers, moment), spec, nbytes, from_where, number))
        return moments, events, len(part.outs), part.unknown

    def _is_aside(self, moment: int) -> bool:
        """Whether a moment allocates nothing and need not occur in every micro-batch."""
        return self._is_entry(moment) or _is_name(self.log.moments[moment])

    def _is_entry(self, moment: int) -> bool:
        """Whether a moment only begins the forward phase, as it does after a backward but not after a forward."""
        current = self.log.moments[moment]
        return current.operator == "" and current.phase == "forward"

    def _outside(self, begin: int, end: int, calls: slice, doubts: slice, part: Part | None = None) -> None:
        """Copy a stretch of the log that ran: a part, or what lies between two parts."""
        for moment in range(begin, end):
            self._take_over(moment)
            self.at[moment] = len(self.moments) - 1
        first = self.place(begin)
        places = []
        for moment, storage, nbytes in self.log.events[first : self.place(end)]:
            places.append(len(self.events))
            self.events.append((self.at[moment], storage, nbytes))
            if not nbytes and storage in self.siblings and not self._frees_its_own(moment, storage, part):
                if part is not None:
                    raise UnlikeError
                self.events += [
                    (self.at[moment], number, 0) for number in self.siblings.pop(storage) if self._let_go(number)
                ]
        places.append(len(self.events))
        self._calls(calls, first, places, {})
        for doubt in self.log.doubts[doubts]:
            self.doubts.append(replace(doubt, event=places[doubt.event - first], moment=self.at[doubt.moment]))

    def _take_over(self, moment: int) -> None:
        """Copy a moment, unless it is a mark, or a name within a phase, which only some micro-batches have."""
        current = self.log.moments[moment]
        before = self.moments[-1] if self.moments else None
        is_within = before is not None and (before.phase, before.step) == (current.phase, current.step)
        if current.operator != MARK and not (is_within and _is_name(current)):
            self.moments.append(current)

    def _frees_its_own(self, moment: int, storage: int, part: Part | None) -> bool:
        """Whether a storage is freed in its own micro-batch's part, or right after it."""
        part = part or self.ends.get(moment)
        return part is not None and self._is_of(storage, part)

    def _let_go(self, storage: int) -> bool:
        """Mark a copy as freed; return whether it was live."""
        live = storage not in self.freed
        self.freed.add(storage)
        return live

    def _copied(self, part: Part) -> None:
        """Insert the template's events for a part that did not run."""
        template = self.usual[part.what, part.step]
        own = self.log.events[self.place(part.begin) : self.place(part.end)]
        outs = dict(zip(template.part.outs, part.outs))
        sizes = [(self.log.storages[storage].nbytes, storage in template.born) for storage in outs]
        if [(nbytes, True) for _, _, nbytes in own] != sizes or [number for _, number, _ in own] != list(part.outs):
            raise UnlikeError
        for storage, copied in outs.items():
            self.storages[copied] = self.log.storages[storage]
        for moment in range(part.begin, part.end + 1):
            self.at[moment] = len(self.moments) - 1
        at = self._moments(template.part)
        copies = self.copies[self._key(part)] = outs
        first, places = template.first, []
        for moment, storage, nbytes in template.events:
            places.append(len(self.events))
            self.events.append((at[moment], self._copy(storage, nbytes, template, part, copies), nbytes))
        places.append(len(self.events))
        self.events += [
            (len(self.moments) - 1, self._copy(storage, 0, template, part, copies), 0)
            for _, storage, _ in template.trailing
        ]
        self._calls(template.part.calls, first, places, copies)
        for doubt in self.log.doubts[template.part.doubts]:
            self.doubts.append(replace(doubt, event=places[doubt.event - first], moment=at[doubt.moment]))
        self.unknown.update(dict(template.part.unknown))
        self.at[part.end] = len(self.moments) - 1

    def _moments(self, part: Part) -> dict[int, int]:
        """Copy a part's moments, beginning the forward phase first if necessary."""
        needs_entry = part.what[0] == "forward" and self.moments[-1].phase != "forward"
        entries = [moment for moment in range(part.begin, part.end) if self._is_entry(moment)]
        if needs_entry and not entries:
            self.moments.append(Moment("", OUTSIDE, "forward", part.step))
        at = {part.begin: len(self.moments) - 1}
        for moment in range(part.begin + 1, part.end):
            if needs_entry or moment not in entries:
                self._take_over(moment)
            at[moment] = len(self.moments) - 1
        return at

    def _copy(self, storage: int, nbytes: int, template: _Template, part: Part, copies: dict[int, int]) -> int:
        """Return the counterpart of a template's storage: a new one for an allocation, an existing one for a free."""
        if nbytes:
            if storage not in copies:
                copies[storage] = len(self.storages)
                self.siblings.setdefault(storage, []).append(len(self.storages))
                self.storages.append(self.log.storages[storage])
                self.streams.append(self.log.stream(storage))
            return copies[storage]
        born = self.born.get(storage)
        if born is None or not self._is_of(storage, template.part):
            raise UnlikeError
        new = self.copies[self._key(born, part.batch)].get(storage)
        if new is None or not self._let_go(new):
            raise UnlikeError
        return new

    def _calls(self, calls: slice, first: int, places: Sequence[int], copies: Mapping[int, int]) -> None:
        """Copy calls; ``places`` maps their events, from ``first`` on, to the positions of the copies."""
        for number in range(*calls.indices(len(self.log.calls))):
            call = self.log.calls[number]
            outer, self.call_at[number] = self.call_at[call.outer], len(self.calls)
            stop = places[call.stop - first - 1] + 1 if call.stop > call.start else places[call.start - first]
            outputs = tuple(copies.get(number, number) for number in call.outputs)
            self.calls.append(replace(call, outer=outer, start=places[call.start - first], stop=stop, outputs=outputs))

    def _numbered(self) -> MemoryLog:
        """Return the log with its storages renumbered in the order of their allocations."""
        order = dict.fromkeys(storage for _, storage, nbytes in self.events if nbytes)
        order |= dict.fromkeys(range(len(self.storages)))
        number = {storage: place for place, storage in enumerate(order)}
        edges = [edge for call in self.calls for edge in (call.start, call.stop)]
        events = [(moment, number[storage], nbytes) for moment, storage, nbytes in self.events]
        return replace(
            self.log,
            moments=tuple(self.moments),
            events=tuple(in_order(events, [*edges, *(doubt.event for doubt in self.doubts)])),
            storages=tuple(self.storages[storage] for storage in order),
            streams=tuple(self.streams[storage] for storage in order) if self.log.streams else (),
            calls=tuple(replace(call, outputs=tuple(number[output] for output in call.outputs)) for call in self.calls),
            doubts=tuple(self.doubts),
            unknown=tuple(sorted(self.unknown.items())),
        )
