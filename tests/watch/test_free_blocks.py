"""The requests that take the free blocks of a CUDA allocator's segments."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchsummary_plus.data.units import MIB, MIN_BLOCK, SMALL_REQUEST
from torchsummary_plus.watch.history import free_blocks_taken, requests_that_fill

SEGMENTS = st.lists(
    st.tuples(
        st.sampled_from(["small", "large"]),
        st.lists(st.tuples(st.booleans(), st.integers(1, 4096 * 10).map(lambda blocks: blocks * MIN_BLOCK))),
    )
)


@given(SEGMENTS)
def test_every_free_block_is_taken_from_the_smallest_that_fits(drawn: list[tuple[str, list[tuple[bool, int]]]]) -> None:
    """As the allocator does: a request goes to the smallest free block of its pool, and the rest of it stays free."""
    states = {True: "active_allocated", False: "inactive"}
    segments = [
        {"segment_type": kind, "blocks": [{"state": states[used], "size": size} for used, size in blocks]}
        for kind, blocks in drawn
    ]
    free: dict[str, list[int]] = {"small": [], "large": []}
    for kind, blocks in drawn:
        free[kind].extend(size for used, size in blocks if not used)
    for request in requests_that_fill(segments):
        pool = free["small" if request <= SMALL_REQUEST else "large"]
        block = next(size for size in sorted(pool) if size >= request)
        pool.remove(block)
        if block > request:
            pool.append(block - request)
    assert not free["small"]
    assert all(size <= MIB for size in free["large"])


def test_nothing_is_held_on_other_devices() -> None:
    with free_blocks_taken(torch.device("cpu")):
        assert not torch.cuda.is_initialized()
