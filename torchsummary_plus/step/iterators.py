"""Copies of the iterators that steps take items from, so that their own items are all there afterwards."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_VARARGS, CO_VARKEYWORDS, GEN_CREATED, getgeneratorstate
from types import FunctionType, GeneratorType
from typing import Any

from ..live.reach import Reached
from ..trace.generator_variables import variables_of
from .rebindable_tensors import Entry, entries_on_the_way, put, value_of

_SHARING = frozenset({"_tee", "_tee_dataobject", "groupby", "_grouper"})
"""Iterators that share what they have read with others."""
_COPIED = frozenset(
    {zip, enumerate, map, filter, reversed, *map(type, ([].__iter__(), ().__iter__(), iter(range(0)), reversed([])))}
    | {kind for name, kind in vars(itertools).items() if isinstance(kind, type) and name not in _SHARING}
)

_KINDS = _COPIED | {GeneratorType}


class _NoCopyError(Exception):
    """An iterator cannot be copied, such as a generator that has started."""


@contextmanager
def iterators_copied(reach: Reached) -> Iterator[None]:
    """Put copies in the places of Python's own iterators and of generators that have not started."""
    places = [place for place in entries_on_the_way(reach) if type(value_of(place)) in _KINDS]
    copies: dict[int, tuple[Any, Any]] = {}
    changed: list[tuple[Entry, Any, Any]] = []
    for place in places:
        original = value_of(place)
        try:
            copy = _copy(original, copies)
        except _NoCopyError:
            continue
        put(place, copy)
        changed.append((place, original, copy))
    copies.clear()
    try:
        yield
    finally:
        for place, original, copy in changed:
            if value_of(place) is copy:
                put(place, original)
        changed.clear()


def _copy(iterator: Any, copies: dict[int, tuple[Any, Any]]) -> Any:
    """Return an iterator that returns the same items; the iterators inside it are copied too, each once."""
    if id(iterator) not in copies:
        copy = _unstarted(iterator, copies) if type(iterator) is GeneratorType else _rebuilt(iterator, copies)
        copies[id(iterator)] = iterator, copy
    return copies[id(iterator)][1]


def _rebuilt(iterator: Any, copies: dict[int, tuple[Any, Any]]) -> Any:
    """Return an iterator from the parts that pickle would use; those of itertools have none since Python 3.14."""
    if type(iterator) not in _COPIED:
        raise _NoCopyError
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            make, arguments, *states = iterator.__reduce__()
        except TypeError as error:
            raise _NoCopyError from error
        copy = make(*(_part(part, copies) for part in arguments))
        for state in states:
            if state is not None:
                copy.__setstate__(_state(state, copies))
    return copy


def _state(state: Any, copies: dict[int, tuple[Any, Any]]) -> Any:
    """Return a copy of an iterator's state; a cycle's has a list that the iterator itself extends."""
    if isinstance(state, tuple):
        return tuple(_state(part, copies) for part in state)
    return list(state) if isinstance(state, list) else _part(state, copies)


def _part(part: Any, copies: dict[int, tuple[Any, Any]]) -> Any:
    return _copy(part, copies) if issubclass(type(part), Iterator) else part


def _unstarted(generator: GeneratorType[Any, Any, Any], copies: dict[int, tuple[Any, Any]]) -> Any:
    """Return a generator of the same function and arguments; raises :class:`_NoCopyError` if it has started."""
    frame, code = generator.gi_frame, generator.gi_code
    if frame is None or getgeneratorstate(generator) != GEN_CREATED:
        raise _NoCopyError
    functions = (held for held in gc.get_referents(generator) if isinstance(held, FunctionType))
    function = next((function for function in functions if function.__code__ is code), None)
    if function is None and code.co_freevars:
        raise _NoCopyError
    function = function or FunctionType(code, frame.f_globals)
    values = {name: _part(value, copies) for name, value in variables_of(frame).items()}
    counts = code.co_argcount, code.co_kwonlyargcount
    names = list(code.co_varnames)
    given = [values[name] for name in names[: counts[0]]]
    by_name = {name: values[name] for name in names[counts[0] : sum(counts)]}
    others = names[sum(counts) :]
    if code.co_flags & CO_VARARGS:
        given += values[others.pop(0)]
    if code.co_flags & CO_VARKEYWORDS:
        by_name.update(values[others.pop(0)])
    return function(*given, **by_name)
