"""A world of processes that is not there: torch's fake process group, beside the user's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..data.errors import InputError, UnsupportedError
from ..data.units import describe

_REGISTRIES = (
    "_pg_map",
    "_pg_names",
    "_pg_group_ranks",
    "_pg_backend_config",
    "_tags_to_pg",
    "_pg_to_tag",
)
"""The dictionaries of process groups in torch/distributed/distributed_c10d.py."""
_SINGLE = ("_world", "_group_count", "_default_pg_init_method", "_backend", "_process_group_name")

_OURS = count(1)
"""Groups are numbered, so that none has the name of one that is there in C++, where all are known by their names."""


@dataclass(frozen=True)
class Rank:
    """One process of a world: its number and how many there are, ``local_size`` of them on one machine."""

    world_size: int
    rank: int = 0
    local_size: int = 8

    def environment(self) -> dict[str, str]:
        """What torchrun tells a process of itself."""
        local = min(self.local_size, self.world_size)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.rank % local),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": str(self.rank // local),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
        }


def as_rank(world_size: Any, rank: Any = 0) -> Rank:
    """A rank of a world, checked. Raises :class:`InputError`.

    >>> as_rank(64, 3)
    Rank(world_size=64, rank=3, local_size=8)
    """
    if not _is_whole(world_size) or world_size < 1:
        raise InputError(f"world_size is {describe(world_size)}; accepted: an integer of at least 1")
    if not _is_whole(rank) or not 0 <= rank < world_size:
        raise InputError(f"rank is {describe(rank)} in a world of {world_size}; accepted: 0 to {world_size - 1}")
    return Rank(world_size, rank)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@contextmanager
def in_world(rank: Rank) -> Iterator[None]:
    """While it holds, this process is a rank of a world in which collectives send nothing.

    Groups that are there already, their default among them, are put aside and are afterwards what they were. A script
    that begins or ends its process group inside does neither: the world is there. No port is opened.
    """
    if not dist.is_available():
        raise UnsupportedError("world_size needs torch.distributed, which this build of torch lacks")
    with _registries_aside(), _environment(rank.environment()), _begun_already():
        _begin(rank)
        try:
            yield
        finally:
            _unregister()


def _begin(rank: Rank) -> None:
    """Begin the fake process group. It needs no store, and the hook it sets on uncaught errors is not wanted."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook
    try:
        c10d.init_process_group("fake", store=FakeStore(), rank=rank.rank, world_size=rank.world_size)
    finally:
        sys.excepthook = hook


def _unregister() -> None:
    """Take the groups of this world out of C++'s registry; ``destroy_process_group`` would empty it of all."""
    for name in c10d._world.pg_names.values():
        torch._C._distributed_c10d._unregister_process_group(name)


@contextmanager
def _registries_aside() -> Iterator[None]:
    kept: dict[str, Any] = {name: getattr(c10d, name) for name in _REGISTRIES}
    kept |= {name: getattr(c10d, name) for name in _SINGLE}
    place: Any = c10d
    try:
        place._world = type(c10d._world)()
        for name in _REGISTRIES:
            setattr(place, name, {})
        place._process_group_name = lambda *_, **__: f"torchsummary_plus:{next(_OURS)}"
        yield
    finally:
        for name, value in kept.items():
            setattr(place, name, value)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    own = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in own.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _begun_already() -> Iterator[None]:
    """While it holds, a script that begins or ends the default process group is told that this is done."""
    places: tuple[Any, ...] = (dist, c10d)
    own = [(place, name, getattr(place, name)) for place in places for name in ("init_process_group", _DESTROY)]
    for place, name, function in own:
        setattr(place, name, _once_begun(function, ends=name == _DESTROY))
    try:
        yield
    finally:
        for place, name, function in own:
            setattr(place, name, function)


_DESTROY = "destroy_process_group"


def _once_begun(function: Callable[..., Any], ends: bool) -> Callable[..., None]:
    """The function as long as there is no world; then nothing."""

    def called(*args: Any, **kwargs: Any) -> None:
        if not ends and not dist.is_initialized():
            function(*args, **kwargs)

    return called
