"""What a tracker saw: real memory between calls, as plain frozen data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holding:
    """A storage as the first tensor on it was: shape, dtype, class, the storage's own bytes, and whose it is."""

    shape: tuple[int, ...]
    dtype: str
    class_name: str
    nbytes: int
    device: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Storages of one shape, dtype and class: how many, the bytes of all of them, and whose they are where known."""

    shape: tuple[int, ...]
    dtype: str
    class_name: str
    count: int
    nbytes: int
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What the device and the process say, in bytes; None where nobody can tell.

    ``allocated_bytes`` and ``reserved_bytes`` are the caching allocator's, ``peak_bytes`` the most allocated since the
    last point, ``used_bytes`` what is taken on the device by anyone, ``process_bytes`` this process's resident memory.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    used_bytes: int | None = None
    process_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TrackPoint:
    """A call of ``track``: where and when it was made, what came and went since the last one, what is there now."""

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
    """A module's calls while it was watched: how many, and by how many bytes live tensors grew over them.

    ``own_bytes`` is without the modules inside it. ``highest_bytes`` is the most that was live at the end of one.
    """

    path: str
    class_name: str
    calls: int
    added_bytes: int
    own_bytes: int
    highest_bytes: int


@dataclass(frozen=True)
class Tracking:
    """All points of a tracker, and the modules that it watched, on one device."""

    device: str
    points: tuple[TrackPoint, ...]
    modules: tuple[WatchedModule, ...] = ()


def grouped(holdings: Iterable[Holding]) -> tuple[TensorGroup, ...]:
    """Holdings by shape, dtype and class, the largest group first; empty ones take nothing and are left out.

    >>> a = Holding((2, 3), "float32", "torch.Tensor", 24, "cpu", "weight")
    >>> grouped([a, a])
    (TensorGroup(shape=(2, 3), dtype='float32', class_name='torch.Tensor', count=2, nbytes=48, owners=('weight',)),)
    """
    groups: dict[tuple[tuple[int, ...], str, str], list[Holding]] = defaultdict(list)
    for one in holdings:
        if one.nbytes:
            groups[one.shape, one.dtype, one.class_name].append(one)
    found = [
        TensorGroup(*key, len(held), sum(one.nbytes for one in held), _owners(held)) for key, held in groups.items()
    ]
    return tuple(sorted(found, key=lambda group: (-group.nbytes, group.shape, group.dtype)))


def _owners(held: Iterable[Holding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.owner for one in held if one.owner))
