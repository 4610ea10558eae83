"""A tracker's records: real memory between calls, as plain immutable data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holding:
    """A storage, described by the first tensor on it: shape, dtype, class, the storage's bytes, and its owner."""

    shape: tuple[int, ...]
    dtype: str
    class_name: str
    nbytes: int
    device: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Storages of one shape, dtype and class: their number, total bytes, and owners where known."""

    shape: tuple[int, ...]
    dtype: str
    class_name: str
    count: int
    nbytes: int
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of the device and the process in bytes; None if unknown.

    ``allocated_bytes`` and ``reserved_bytes`` are the caching allocator's, ``peak_bytes`` the most allocated since the
    last point, ``used_bytes`` what all processes use on the device, ``process_bytes`` this process's resident memory.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    used_bytes: int | None = None
    process_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TrackPoint:
    """A call of ``track``: where and when, what appeared and disappeared since the last call, and what is live now."""

    label: str
    file: str
    line: int
    function: str
    time: str
    appeared: tuple[TensorGroup, ...]
    gone: tuple[TensorGroup, ...]
    storages: int
    tensor_bytes: int
    memory: DeviceMemory


@dataclass(frozen=True, slots=True)
class WatchedModule:
    """A watched module: the number of its calls, and the growth of live tensors over them in bytes.

    ``own_bytes`` excludes its submodules. ``highest_bytes`` is the most that was live at the end of a call.
    """

    path: str
    class_name: str
    calls: int
    added_bytes: int
    own_bytes: int
    highest_bytes: int


def grouped(holdings: Iterable[Holding]) -> tuple[TensorGroup, ...]:
    """Group holdings by shape, dtype and class, largest group first; empty storages are left out."""
    alike: dict[tuple[tuple[int, ...], str, str], list[Holding]] = defaultdict(list)
    for holding in holdings:
        if holding.nbytes:
            alike[holding.shape, holding.dtype, holding.class_name].append(holding)
    groups = [
        TensorGroup(
            *key,
            count=len(members),
            nbytes=sum(each.nbytes for each in members),
            owners=tuple(dict.fromkeys(each.owner for each in members if each.owner)),
        )
        for key, members in alike.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.nbytes, group.shape, group.dtype)))
