"""The order of segments by which torch's allocator chooses between equally large cached blocks.

torch's allocator serves a request from the smallest cached block that fits. Of equally large ones, it takes that of the
oldest segment (torch 2.13), or the one with the lowest address (up to 2.11), where the driver's addresses decide which
blocks are split; 2.12 follows neither order.

On an H100 (driver 580, CUDA 13.0), the driver was found to reserve addresses in multiples of 32 MiB, each reservation
below the previous ones, and to place an allocation at the lowest free address of a reservation: with torch 2.11, 195 of
205 recorded histories then replay to the byte, against 155 with ascending addresses
(benchmarks/data/gpu_truth_nvidia_h100*).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Protocol

from ..data.rounding import round_up
from ..data.units import MIB

RESERVATION = 32 * MIB

Range = tuple[int, int]
"""First address and bytes."""


class Addresses(Protocol):
    """Where segments lie."""

    def take(self, size: int) -> int:
        """Return the address of a new segment."""

    def give(self, address: int, size: int) -> None:
        """Free a segment."""


class AgeOrder:
    """Addresses that ascend with the age of a segment."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, size: int) -> int:
        """Return an address above all earlier ones."""
        address, self._next = self._next, self._next + size
        return address

    def give(self, address: int, size: int) -> None:
        """Do nothing: no address is used twice."""


class DriverOrder:
    """The addresses of ``cudaMalloc`` and ``cudaFree``, relative to the end of the device's range.

    >>> addresses = DriverOrder()
    >>> [addresses.take(size * MIB) // MIB for size in (2, 20, 20, 2, 64)]
    [-32, -30, -64, -44, -128]
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        """The reservations, by address."""
        self._sizes: dict[int, int] = {}
        self._free: list[Range] = []
        """Free parts of reservations, by address; adjacent ones of a reservation are one."""
        self._gaps: list[Range] = []
        """Returned reservations, by address; adjacent ones are one."""
        self._end = 0

    def take(self, size: int) -> int:
        """Return the address of an allocation: the lowest that fits in a reservation, or that of a new one."""
        for index, (address, free) in enumerate(self._free):
            if free >= size:
                if free == size:
                    del self._free[index]
                else:
                    self._free[index] = address + size, free - size
                return address
        return self._reserve(size)

    def give(self, address: int, size: int) -> None:
        """Free an allocation; a reservation that is entirely free is returned."""
        start = self._starts[bisect_right(self._starts, address) - 1]
        merged = _merged(self._free, (address, size), start, start + self._sizes[start])
        if merged == (start, self._sizes[start]):
            self._starts.remove(start)
            del self._sizes[start]
            insort(self._gaps, _merged(self._gaps, merged, self._end, 0))
        else:
            insort(self._free, merged)

    def _reserve(self, size: int) -> int:
        """Return the start of a new reservation: at the end of the highest gap that fits, or below all others."""
        whole = round_up(size, RESERVATION)
        for index in reversed(range(len(self._gaps))):
            address, gap = self._gaps[index]
            if gap >= whole:
                start = address + gap - whole
                self._gaps[index : index + 1] = [(address, gap - whole)] if gap > whole else []
                break
        else:
            self._end -= whole
            start = self._end
        insort(self._starts, start)
        self._sizes[start] = whole
        if whole > size:
            insort(self._free, (start + size, whole - size))
        return start


def _merged(ranges: list[Range], new: Range, low: int, high: int) -> Range:
    """Return a range joined with its neighbours from ``low`` to ``high``, which are removed from the list."""
    address, size = new
    index = bisect_right(ranges, new)
    if index < len(ranges) and ranges[index][0] == address + size < high:
        size += ranges.pop(index)[1]
    if index and address > low and sum(ranges[index - 1]) == address:
        address, before = ranges.pop(index - 1)
        size += before
    return address, size
