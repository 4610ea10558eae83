"""A memory log as a flat list of tokens, in which layers are counted, and back."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...data.memory_records import Doubt, MemoryLog, ModuleCall, Moment, StorageSpec
from ...trace.questions import OUTSIDE


class Token(NamedTuple):
    """Something that happens in a step: ``same`` at every depth, with ``numbers`` that may grow with the depth.

    ``size`` is that of the storages it is about, which few tokens have otherwise at another depth.
    """

    what: str
    same: Hashable
    numbers: tuple[int, ...]
    size: Hashable = None


@dataclass(frozen=True)
class Stack:
    """A container of layers by its path, and the names of its layers."""

    path: str
    names: tuple[str, ...]

    def place(self, path: str) -> tuple[str | None, str, int]:
        """Split the path of a module into the container's, what follows the layer's name, and the layer's number.

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
        """The path of a module inside a layer."""
        return f"{self.path}.{self.names[layer]}{rest}" if self.path else f"{self.names[layer]}{rest}"


class Reader:
    """The tokens of a log, in their order: moments, allocations, frees, calls, doubts."""

    def __init__(self, log: MemoryLog, stack: Stack) -> None:
        self.log = log
        self.places: list[tuple[Any, int]] = []
        for path in log.module_paths:
            container, rest, layer = stack.place(path)
            self.places.append(((container, rest), layer))
        self.tokens: list[Token] = []
        self.born: dict[int, int] = {}
        self.told = 0
        self.doubts = iter(log.doubts)
        self.doubt = next(self.doubts, None)

    def read(self) -> list[Token]:
        """The tokens; a free and what a call returns point to where an allocation stands among them."""
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
            self.tokens.append(Token("call", (template, call.step), (layer,)))
            self._events(call.start, call.stop, inner.get(number, []), inner)
            outputs = [self.born[one] for one in call.outputs if one in self.born]
            made = [self.tokens[place] for place in outputs]
            same, sizes = (tuple(getattr(token, name) for token in made) for name in ("same", "size"))
            self.tokens.append(Token("return", same, tuple(outputs), sizes))
            at = call.stop
        self._plain(at, stop)

    def _plain(self, start: int, stop: int) -> None:
        for number in range(start, stop):
            self._doubts(number)
            moment, storage, nbytes = self.log.events[number]
            self._moments(moment)
            if nbytes:
                spec = self.log.storages[storage]
                template, layer = self._place(spec.owner)
                same = (template, replace(spec, owner=0, nbytes=0), self.log.stream(storage))
                self.born[storage] = len(self.tokens)
                self.tokens.append(Token("allocate", same, (layer, spec.nbytes, nbytes), nbytes))
            else:
                place = self.born[storage]
                self.tokens.append(Token("free", self.tokens[place].same, (place,), self.tokens[place].size))

    def _doubts(self, event: int) -> None:
        while self.doubt is not None and self.doubt.event <= event:
            self._moments(self.doubt.moment)
            self.tokens.append(Token("doubt", None, (self.doubt.nbytes,)))
            self.doubt = next(self.doubts, None)

    def _moments(self, last: int) -> None:
        for moment in self.log.moments[self.told : last + 1]:
            template, layer = self._place(moment.module)
            self.tokens.append(Token("moment", (moment.operator, template, moment.phase, moment.step), (layer,)))
        self.told = max(self.told, last + 1)

    def _place(self, module: int) -> tuple[Any, int]:
        return (None, -1) if module == OUTSIDE else self.places[module]


class Writer:
    """The log of tokens, of a model with these modules."""

    def __init__(self, paths: Sequence[str], stack: Stack) -> None:
        self.stack = stack
        self.index = {path: number for number, path in enumerate(paths)}
        self.moments: list[Moment] = []
        self.events: list[tuple[int, int, int]] = []
        self.storages: list[StorageSpec] = []
        self.streams: list[int] = []
        self.calls: list[ModuleCall] = []
        self.doubts: list[Doubt] = []
        self.specs: dict[tuple[StorageSpec, int, int], StorageSpec] = {}

    def write(self, tokens: Sequence[Token], like: MemoryLog, paths: Sequence[str]) -> MemoryLog:
        """The log; what is no token (assumptions and the like) is that of another one."""
        storage_at: dict[int, int] = {}
        under_way: list[int] = []
        for place, (what, same, numbers, _) in enumerate(tokens):
            known: Any = same
            if what == "moment":
                self.moments.append(Moment(known[0], self._module(known[1], numbers[0]), *known[2:]))
            elif what == "allocate":
                storage_at[place] = len(self.storages)
                spec = self._spec(known[1], self._module(known[0], numbers[0]), numbers[1])
                self.events.append((len(self.moments) - 1, len(self.storages), numbers[2]))
                self.storages.append(spec)
                self.streams.append(known[2])
            elif what == "free":
                self.events.append((len(self.moments) - 1, storage_at[numbers[0]], 0))
            elif what == "call":
                outer = under_way[-1] if under_way else -1
                under_way.append(len(self.calls))
                module = self._module(known[0], numbers[0])
                self.calls.append(ModuleCall(module, known[1], outer, len(self.events), -1, ()))
            elif what == "return":
                number = under_way.pop()
                outputs = tuple(storage_at[one] for one in numbers)
                self.calls[number] = replace(self.calls[number], stop=len(self.events), outputs=outputs)
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
        )

    def _spec(self, like: StorageSpec, owner: int, nbytes: int) -> StorageSpec:
        key = like, owner, nbytes
        if key not in self.specs:
            self.specs[key] = replace(like, owner=owner, nbytes=nbytes)
        return self.specs[key]

    def _module(self, template: Any, layer: int) -> int:
        if template is None:
            return OUTSIDE
        container, rest = template
        return self.index[rest if container is None else self.stack.path_of(rest, layer)]
