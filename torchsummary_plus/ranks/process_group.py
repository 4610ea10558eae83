"""A simulated world of processes: torch's fake process group, next to the user's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import count
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..data.arguments import integer
from ..data.errors import InputError, UnsupportedError
from ..data.units import describe, is_integer
from ..live.compat import Place
from ..live.compat import replaced as all_replaced
from . import compat
from .stand_ins import beside, replaced

_OURS = count(1)
"""Numbers our groups, so that none shares a name with an existing one: C++ looks groups up by name."""


@dataclass(frozen=True)
class Rank:
    """One process of a world: its number, the world's size, and ``local_size``, the processes per machine."""

    world_size: int
    rank: int = 0
    local_size: int = 8

    @property
    def on_machine(self) -> int:
        """The number of processes, and of GPUs, on this rank's machine."""
        return min(self.local_size, self.world_size)

    def device(self, kind: str) -> torch.device:
        """Return this process's device: on CUDA, the GPU with its local rank."""
        return torch.device(kind, self.rank % self.on_machine) if kind == "cuda" else torch.device(kind)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that torchrun sets for a process."""
        local = self.on_machine
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
    """Return a rank after checking it. Raises :class:`InputError`.

    >>> as_rank(64, 3)
    Rank(world_size=64, rank=3, local_size=8)
    """
    world_size = integer("world_size", world_size, 1)
    if not is_integer(rank) or not 0 <= rank < world_size:
        raise InputError(f"rank is {describe(rank)} with world_size {world_size}; accepted: 0 to {world_size - 1}")
    return Rank(world_size, int(rank))


@contextmanager
def in_world(rank: Rank) -> Iterator[None]:
    """Make this process a rank of a world whose collectives send nothing.

    Existing groups, including the default one, are set aside and restored. Inside, initialising or destroying the
    process group does nothing, because the world already exists. No port is opened.
    """
    if not dist.is_available():
        raise UnsupportedError(
            "world_size needs torch.distributed, which this build of torch lacks; install one that has it"
        )
    compat.require((*_OF_GROUPS, compat.NEW_GROUP))
    with (
        _registries_aside(), _environment(rank.environment()), _accelerate_aside(), replaced(_stand_ins()),
    ):  # fmt: skip
        hook = sys.excepthook
        try:
            c10d.init_process_group("fake", store=compat.FakeStore(), rank=rank.rank, world_size=rank.world_size)
        finally:
            sys.excepthook = hook  # torch's own, for uncaught errors, would outlive the world.
        try:
            yield
        finally:
            _unregister()


def _unregister() -> None:
    """Remove this world's groups from C++'s registry, which ``destroy_process_group`` would empty entirely."""
    for name in compat.WORLD.value.pg_names.values():
        compat.unregister_group(name)


def _stand_ins() -> dict[Place, Callable[[Any], Any]]:
    """Return what replaces torch's functions in a world.

    Further groups are fake too, whatever backend a script names for its checkpoints or objects. A script's calls that
    initialise or destroy the default group, and gloo's barrier, do nothing. New meshes are unequal to earlier worlds',
    whose groups DTensor's caches hold (torch/distributed/device_mesh.py, ``DeviceMesh.__eq__``, compares threads too).
    """
    from torch.distributed.device_mesh import DeviceMesh

    world = f"torchsummary_plus:{next(_OURS)}"

    def of_one_backend(own: Any) -> Any:
        @wraps(own)
        def create(size: Any, rank: Any, ranks: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
            return own(size, rank, ranks, "fake", *args, **{**kwargs, "device_id": None, "backend_options": None})

        return create

    def once_begun(own: Any) -> Any:
        def begin(*args: Any, **kwargs: Any) -> None:
            if not dist.is_initialized():
                own(*args, **kwargs)

        return begin

    def begin_mesh(mesh: Any, /, *_: Any, **__: Any) -> None:
        mesh._thread_id = world

    makers: dict[Place, Callable[[Any], Any]] = {compat.NEW_GROUP: of_one_backend}
    makers[Place(DeviceMesh, "__init__")] = beside(after=begin_mesh)
    for module in (dist, c10d):
        makers[Place(module, "init_process_group")] = once_begun
        for name in ("destroy_process_group", "monitored_barrier"):
            makers[Place(module, name)] = lambda _: lambda *_, **__: None
    return makers


def _registries_aside() -> AbstractContextManager[None]:
    """Inside the block, keep groups in registries that begin empty."""
    makers: dict[Place, Callable[[Any], Any]] = dict.fromkeys(compat.REGISTRIES, lambda _: {})
    makers |= dict.fromkeys(compat.COUNTERS, lambda own: own)
    makers[compat.WORLD] = lambda own: type(own)()
    makers[compat.GROUP_NAME] = lambda _: lambda *_, **__: f"torchsummary_plus:{next(_OURS)}"
    return replaced(makers)


_OF_GROUPS = (*compat.REGISTRIES, compat.WORLD, compat.GROUP_NAME, *compat.COUNTERS)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Inside the block, set these environment variables too; all changes are undone at the end."""
    own = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in os.environ.keys() - own.keys():
            del os.environ[name]
        os.environ.update(own)


@contextmanager
def _accelerate_aside() -> Iterator[None]:
    """Inside the block, hide accelerate's state, which lasts as long as the process.

    Source: accelerate/state.py, the ``_shared_state`` of its classes.
    """
    with all_replaced({(kind, "_shared_state"): {} for kind in _accelerate_states()}):
        try:
            yield
        finally:
            for kind in _accelerate_states():
                kind._shared_state.clear()


def _accelerate_states() -> list[Any]:
    module = sys.modules.get("accelerate.state")
    classes = [getattr(module, name, None) for name in ("PartialState", "AcceleratorState", "GradientState")]
    return [kind for kind in classes if kind is not None]
