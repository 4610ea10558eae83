"""Laws of the addresses that CUDA's driver hands out; tests/documents replays the histories of a real GPU."""

from hypothesis import given
from hypothesis import strategies as st

from torchsummary_plus.data.units import MIB
from torchsummary_plus.memory.allocator import RESERVATION, DriverOrder

STEPS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 99)), max_size=80)
"""An allocation of so many MiB, and a number that chooses one to free, if it is odd."""


@given(STEPS)
def test_allocations_never_overlap_and_freed_addresses_serve_again(steps: list[tuple[int, int]]) -> None:
    addresses, live = DriverOrder(), dict[int, int]()
    for mib, choice in steps:
        address = addresses.take(mib * MIB)
        assert all(address + mib * MIB <= start or start + size <= address for start, size in live.items())
        live[address] = mib * MIB
        if choice % 2:
            start = sorted(live)[choice % len(live)]
            addresses.give(start, live.pop(start))
    for start, size in live.items():
        addresses.give(start, size)
    assert addresses.take(RESERVATION) == -RESERVATION
