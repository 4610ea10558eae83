"""torch's own tests of its allocator (test/test_cuda.py of pytorch/pytorch), on the no-op runtime."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch

MIB = 1 << 20


def filled(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.int8, device="cuda")


@contextmanager
def settings(text: str, usual: str) -> Iterator[None]:
    torch._C._accelerator_setAllocatorSettings(text)
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings(usual)


def test_raw_allocations_are_counted_and_given_back() -> None:
    before = torch.cuda.memory_allocated()
    address = torch.cuda.caching_allocator_alloc(1)
    assert torch.cuda.memory_allocated() == before + 512
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == before


def test_statistics_count_what_is_active_freed_and_at_its_peak() -> None:
    torch.cuda.reset_accumulated_memory_stats()
    base = torch.cuda.memory_stats()
    block = torch.empty(256, device="cuda")
    stats = torch.cuda.memory_stats()
    assert stats["active_bytes.all.current"] - base["active_bytes.all.current"] == 1024
    assert stats["active_bytes.all.freed"] == 0 and stats["requested_bytes.all.current"] == 1024
    del block
    after = torch.cuda.memory_stats()
    assert after["active_bytes.all.current"] == base["active_bytes.all.current"]
    assert after["active_bytes.all.freed"] == 1024 and after["allocated_bytes.all.peak"] >= 1024
    assert after["num_ooms"] == 0


def test_a_request_beyond_the_card_fails_and_disturbs_nothing() -> None:
    block = torch.zeros(1024, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"800000000\.00 GiB\. GPU 0 has a total capacity"):
        filled(800_000_000 << 30)
    with pytest.raises(RuntimeError, match="more than 1EB"):
        filled(8_000_000_000 << 30)
    assert block.fill_(1).shape == (1024,)
    assert torch.cuda.memory_allocated() == 4096


def test_what_is_cached_goes_back_before_a_request_fails() -> None:
    half = torch.cuda.get_device_properties(0).total_memory // 2
    first = filled(half)
    with pytest.raises(torch.OutOfMemoryError):
        filled(half)
    del first
    stats = torch.cuda.memory_stats()
    second = filled(half + 4 * MIB)
    assert torch.cuda.memory_stats()["num_alloc_retries"] == stats["num_alloc_retries"] + 1
    assert torch.cuda.memory_reserved() == second.nbytes // (2 * MIB) * 2 * MIB + (2 * MIB if half % (2 * MIB) else 0)


def test_a_fraction_of_the_card_is_the_limit() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        block = filled(int(total * 0.499))
        del block
        torch.cuda.empty_cache()
        with pytest.raises(torch.OutOfMemoryError):
            filled(int(total * 0.5) + 2 * MIB)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_powers_of_two_round_requests_up() -> None:
    with settings("roundup_power2_divisions:4", "roundup_power2_divisions:1"):
        block = filled((1 << 20) + 1)
        assert torch.cuda.memory_allocated() == (1 << 20) + (1 << 18)
        assert torch.cuda.memory_stats()["requested_bytes.all.current"] == block.nbytes
    with pytest.raises(ValueError, match="Unrecognized"):
        torch._C._accelerator_setAllocatorSettings("foo:1,bar:2")


def test_a_snapshot_holds_every_block() -> None:
    blocks = [filled(size) for size in (1, 3 * MIB, 30 * MIB)]
    del blocks[1]
    segments = torch.cuda.memory_snapshot()
    assert sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved()
    assert sum(segment["allocated_size"] for segment in segments) == torch.cuda.memory_allocated()
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        ends = [segment["address"]]
        for block in segment["blocks"]:
            assert block["address"] == ends[-1]
            ends.append(block["address"] + block["size"])


def test_a_history_tells_each_event_in_its_order() -> None:
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    block = filled(3 * MIB)
    del block
    torch.cuda.empty_cache()
    with pytest.raises(torch.OutOfMemoryError):
        filled(1 << 50)
    (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(enabled=None)
    actions = [entry["action"] for entry in trace]
    assert actions[:5] == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    assert actions[-1] == "oom"
    assert [entry["size"] for entry in trace[:2]] == [20 * MIB, 3 * MIB]


def test_a_pool_has_segments_of_its_own() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = filled(MIB)
    outside = filled(MIB)
    pools = {segment["address"]: segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}
    assert len(set(pools.values())) == 2
    assert inside.data_ptr() != outside.data_ptr() and torch.cuda.memory_reserved() == 4 * MIB
    del inside, pool


def test_a_block_that_another_stream_uses_is_free_once_its_work_is_done() -> None:
    """All work is done when it is queried, so the block is reused by the next request."""
    stream = torch.cuda.Stream()
    block = filled(3 * MIB)
    address = block.data_ptr()
    block.record_stream(stream)
    del block
    gc.collect()
    assert filled(3 * MIB).data_ptr() == address


def test_random_requests_keep_the_books() -> None:
    draw = random.Random(0)
    live: list[torch.Tensor] = []
    for _ in range(2_000):
        if live and draw.random() < 0.5:
            live.pop(draw.randrange(len(live)))
        else:
            live.append(filled(draw.choice((draw.randrange(1, 4096), draw.randrange(1, 40 * MIB)))))
        assert sum(-(-block.nbytes // 512) * 512 for block in live) <= torch.cuda.memory_allocated()
        assert torch.cuda.memory_allocated() <= torch.cuda.memory_reserved()
    spans = sorted((block.data_ptr(), block.nbytes) for block in live)
    assert all(start + nbytes <= following for (start, nbytes), (following, _) in pairwise(spans))
    live.clear()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
