"""What a step did to memory, as plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer_state",
    "inputs",
    "saved_activations",
    "temporaries",
    "workspace",
)
"""What bytes are for; at any moment those of all kinds add up to the live ones."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An operator of a step: its name, the number of the module it works for (-1: none), the phase and the step."""

    operator: str
    module: int
    phase: str
    step: int


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """A storage: its bytes, its kind where it was told, and the number of the module that owns it (-1: none)."""

    nbytes: int
    kind: str | None
    owner: int


@dataclass(frozen=True, slots=True)
class MemoryLog:
    """All allocations and frees of a step in their order.

    An event is ``(moment, storage, nbytes)`` with 0 bytes for a free; moments and storages are numbered as they stand
    in ``moments`` and ``storages``. ``unknown`` are operators whose scratch memory no rule models.
    """

    moments: tuple[Moment, ...]
    events: tuple[tuple[int, int, int], ...]
    storages: tuple[StorageSpec, ...]
    module_paths: tuple[str, ...]
    unknown: tuple[tuple[str, int], ...] = ()
