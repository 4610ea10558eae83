"""Known values from collectives to which all ranks contribute equally: flags, sizes, pickled objects.

Source: torch/csrc/distributed/c10d/Ops.cpp. The kind of a reduction is not known here, but zeros give zeros for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

AGREED = "every rank is assumed to send the same values"

FROM_ONE = ("c10d::broadcast_", "c10d::scatter_")
"""Collectives that give every rank the values of one rank, which only that rank knows."""

Values = Callable[[Tensor], "Tensor | None"]


def agreed(name: str, args: tuple[Any, ...], rank: int, ranks: int, value: Values) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each tensor that a collective fills with known values, and these; ``value`` returns a tensor's values."""
    for filled, sent, change in _FILLS.get(name, _nothing)(args, rank, ranks):
        values = value(sent)
        if values is not None:
            known = change(values)
            if known is not None:
                yield filled, known


Fill = tuple[Tensor, Tensor, Callable[[Tensor], "Tensor | None"]]


def _nothing(args: Any, rank: int, ranks: int) -> list[Fill]:
    return []


def _same(values: Tensor) -> Tensor:
    return values.clone()


def _zeros(values: Tensor) -> Tensor | None:
    return None if values.any() else values.clone()


def _gathered(args: Any, rank: int, ranks: int) -> list[Fill]:
    return [(filled, sent, _same) for row, sent in zip(args[0], args[1]) for filled in row]


def _gathered_flat(args: Any, rank: int, ranks: int) -> list[Fill]:
    filled = args[0]
    return [(filled, args[1], lambda values: values.flatten().repeat(ranks).view(filled.shape))]


def _at_root(fills: Callable[[Any, int, int], list[Fill]], place: int) -> Callable[[Any, int, int], list[Fill]]:
    """Restrict fills to the root rank, which is the argument at ``place``."""
    return lambda args, rank, ranks: fills(args, rank, ranks) if args[place] == rank else []


def _unchanged(args: Any, rank: int, ranks: int) -> list[Fill]:
    return [(tensor, tensor, _same) for tensor in args[0]]


def _reduced(args: Any, rank: int, ranks: int) -> list[Fill]:
    return [(tensor, tensor, _zeros) for tensor in args[0]]


def _scattered(args: Any, rank: int, ranks: int) -> list[Fill]:
    return [(filled, row[rank], _same) for filled, row in zip(args[0], args[1])]


def _exchanged(args: Any, rank: int, ranks: int) -> list[Fill]:
    return [(filled, args[1][rank], _same) for filled in args[0]]


_FILLS: dict[str, Callable[[Any, int, int], list[Fill]]] = {
    "c10d::allgather_": _gathered,
    "c10d::_allgather_base_": _gathered_flat,
    "c10d::gather_": _at_root(_gathered, 3),
    "c10d::scatter_": _at_root(_scattered, 3),
    "c10d::broadcast_": _at_root(_unchanged, 2),
    "c10d::alltoall_": _exchanged,
    "c10d::allreduce_": _reduced,
    "c10d::allreduce_coalesced_": _reduced,
}
