"""The CUDA allocator's history of a measured step, read through a stand-in, and requests that take its free blocks."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchsummary_plus.data.memory_records import StepInfo
from torchsummary_plus.data.units import MIB, MIN_BLOCK, SMALL_REQUEST
from torchsummary_plus.live import compat
from torchsummary_plus.memory.allocator import AllocatorOptions, CachingAllocator
from torchsummary_plus.memory.estimate import Estimate, build_estimate
from torchsummary_plus.watch import profiled as watched
from torchsummary_plus.watch.profiled import AllocatorHistory, Change, ProfileReader, QuietProfile, changes, happened

ODD = 1000
"""Bytes that are not a multiple of a block's."""
CARD = torch.device("cuda", 0)


def products() -> None:
    tensors = [torch.zeros(ODD * n, dtype=torch.uint8) for n in (1, 700, 12000)]
    tensors.pop().add(1)
    tensors.append(torch.zeros(ODD * 2500, dtype=torch.uint8))


def on_the_cpu() -> list[Change]:
    with QuietProfile() as done:
        products()
    return [change for change in changes(done, "cpu")[0] if change.nbytes]


def as_on_a_card(profiled: list[Change]) -> tuple[list[Change], list[dict[str, Any]]]:
    """The changes in the blocks that the caching allocator would cut for them, and the history it would write."""
    allocator, live = CachingAllocator(), dict[int, tuple[int, int]]()
    blocks: list[Change] = []
    trace: list[dict[str, Any]] = []
    for number, change in enumerate(profiled):
        before = allocator.allocated_bytes
        if change.nbytes > 0:
            assert not allocator.allocate(number, change.nbytes)
            live[change.address] = number, change.nbytes
            entry = {"addr": change.address, "size": change.nbytes, "time_us": change.time_ns // 1000}
            trace.append({"action": "alloc", **entry})
        else:
            number, requested = live.pop(change.address)
            allocator.free(number)
            entry = {"addr": change.address, "size": requested, "time_us": change.time_ns // 1000}
            trace += [{"action": "free_requested", **entry}, {"action": "free_completed", **entry}]
        blocks.append(replace(change, nbytes=allocator.allocated_bytes - before))
    return blocks, trace


def measured(blocks: list[Change], trace: list[dict[str, Any]]) -> tuple[Estimate, ProfileReader]:
    reader = ProfileReader([])
    reader.read(watched.with_history(blocks, happened(trace)))
    info = StepInfo("cuda:0", 1, "train", measured=True)
    return build_estimate(reader.log(("",)), info, "cuda", AllocatorOptions()), reader


def test_a_free_that_the_profile_left_out_is_taken_from_the_history() -> None:
    """As torch's profiler leaves out those on CUDA that happen outside every operator."""
    blocks, trace = as_on_a_card(on_the_cpu())
    left_out = [change for change in blocks if change.nbytes < 0 and not change.names]
    seen = [change for change in blocks if change not in left_out]
    assert left_out
    whole = watched.with_history(seen, happened(trace))
    assert [(c.address, c.nbytes > 0) for c in whole] == [(c.address, c.nbytes > 0) for c in blocks]
    assert sum(not change.is_placed for change in whole) == len(left_out)
    assert [replace(change, requested=0) for change in watched.with_history(blocks, happened(trace))] == blocks
    assert measured(whole, trace)[1].peak_bytes() == measured(blocks, trace)[1].peak_bytes()


def test_blocks_are_taken_as_they_stand_and_requests_as_they_were_made() -> None:
    result = on_the_cpu()
    blocks, trace = as_on_a_card(result)
    assert any(block.nbytes - change.nbytes > 512 for block, change in zip(blocks, result)), "one was not split"
    estimate, reader = measured(blocks, trace)
    levels = list(accumulate(block.nbytes for block in blocks))
    peak = levels.index(max(levels))
    assert estimate.peak_bytes == reader.peak_bytes() == levels[peak] == sum(estimate.at_peak.values())
    assert estimate.requested_bytes == sum(change.nbytes for change in result[: peak + 1])
    assert max(point.total_bytes for point in estimate.timeline) == estimate.peak_bytes


def test_a_peak_that_the_profile_did_not_see_is_told() -> None:
    blocks, trace = as_on_a_card(on_the_cpu())
    _, reader = measured(blocks, trace)
    history = AllocatorHistory(CARD)
    assert watched._missed(reader, [], history) == ()
    history.peak_bytes = reader.peak_bytes() - 512
    assert watched._missed(reader, [(0, 100, 512)], history) == ()
    history.peak_bytes += 512
    (told,) = watched._missed(reader, [(0, 100, 512)], history)
    assert f"{reader.peak_bytes() + 512:,} bytes, but the profile shows {reader.peak_bytes():,}" in told


class StandIn:
    """A GPU's allocator, as far as its history goes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, recording: bool) -> None:
        self.recording = recording
        self.trace = [{"action": "alloc", "addr": 1, "size": 7, "time_us": 1}] if recording else []
        self.asked: list[Any] = []
        self.allocated, self.peak = 1024, 4096
        monkeypatch.setattr(compat, "history_enabled", lambda: self.recording)
        monkeypatch.setattr(compat, "record_history", self.record)
        monkeypatch.setattr(compat, "allocator_snapshot", lambda device: self.snapshot())
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.allocated)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: setattr(self, "peak", 1024))

    def record(self, enabled: str | None, **_: Any) -> None:
        self.asked.append(enabled)
        self.recording = enabled is not None
        self.trace = []

    def snapshot(self) -> dict[str, Any]:
        block = {"address": 1, "size": 512, "state": "active_allocated"}
        return {"segments": [{"blocks": [block]}], "device_traces": [list(self.trace)]}

    def allocate(self, address: int, nbytes: int) -> None:
        self.trace.append({"action": "alloc", "addr": address, "size": nbytes, "time_us": 2})
        self.allocated += 512
        self.peak = max(self.peak, self.allocated)


@pytest.fixture(params=[False, True], ids=["not recording", "recording"])
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    yield StandIn(monkeypatch, request.param)


def test_a_recording_of_the_users_goes_on(card: StandIn) -> None:
    was_on, before = card.recording, list(card.trace)
    with AllocatorHistory(CARD) as history:
        assert card.recording
        card.allocate(5, 100)
    assert card.recording == was_on
    assert card.asked == ([] if was_on else ["all", None])
    assert card.trace[: len(before)] == before
    assert [(address, nbytes) for _, address, nbytes in history.happened] == [(5, 100)]
    assert (history.blocks, history.peak_bytes) == ({1: 512}, 512)


def test_a_failing_step_ends_the_recording(card: StandIn) -> None:
    was_on = card.recording
    with pytest.raises(ZeroDivisionError), AllocatorHistory(CARD):
        1 / 0  # noqa: B018
    assert card.recording == was_on


def test_a_resized_storage_keeps_its_kind_although_its_memory_was_allocated_again_before_its_mark() -> None:
    """Marks are written between calls; the C library may reuse the memory at once."""
    reader = ProfileReader([(1 << 20, 4000, 4000)])
    inside = ("aten::resize_",), (1,)
    marks = [("name", "buffers", 0, [1 << 20]), ("resized", 1 << 20, 1 << 21)]
    held, resized = (Change(time, 0, 0, (), (), mark=mark) for time, mark in enumerate(marks))
    reader.read([held, Change(1, 1 << 21, 40, *inside), Change(2, 1 << 20, 64, *inside), resized])
    log = reader.log(("",))
    kinds = [(log.storages[number].kind, nbytes) for _, number, nbytes in log.events if nbytes]
    assert kinds == [("buffers", 4000), ("buffers", 40), (None, 64)]
    assert [number for _, number, nbytes in log.events if not nbytes] == [0] and not reader.reused


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
    for request in watched.requests_that_fill(segments):
        pool = free["small" if request <= SMALL_REQUEST else "large"]
        block = next(size for size in sorted(pool) if size >= request)
        pool.remove(block)
        if block > request:
            pool.append(block - request)
    assert not free["small"]
    assert all(size <= MIB for size in free["large"])


def test_nothing_is_held_on_other_devices() -> None:
    with watched.free_blocks_taken(torch.device("cpu")):
        assert not torch.cuda.is_initialized()
