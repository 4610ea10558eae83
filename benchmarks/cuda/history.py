"""The allocator's own history of a step, reduced to sizes and order, and replayed by the allocator model.

``python -m benchmarks.cuda.history`` replays all recordings and prints the differences.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchsummary_plus.memory.allocator import AllocatorOptions, CachingAllocator

SEGMENT, RELEASED = -1, -2
"""Instead of a block's number: memory that the allocator took from the device, and memory that it returned."""

History = list[list[int]]
"""[block, bytes] in order: blocks are numbered from 0, and freed with 0 bytes."""


def reduce_history(snapshot: dict[str, Any], device: int = 0) -> History:
    """Return the events of ``torch.cuda.memory._snapshot()`` on one device, with numbers instead of addresses.

    >>> actions = ("segment_alloc", "alloc", "free_requested", "free_completed")
    >>> trace = [{"action": action, "addr": 64, "size": 8} for action in actions]
    >>> reduce_history({"device_traces": [trace]})
    [[-1, 8], [0, 8], [0, 0]]
    """
    history: History = []
    numbers: dict[int, int] = {}
    count = 0
    for entry in snapshot["device_traces"][device]:
        action, address, nbytes = entry["action"], entry.get("addr", 0), entry["size"]
        if action == "alloc":
            numbers[address] = count
            history.append([count, nbytes])
            count += 1
        elif action == "free_completed" and address in numbers:
            history.append([numbers.pop(address), 0])
        elif action in ("segment_alloc", "segment_map"):
            history.append([SEGMENT, nbytes])
        elif action in ("segment_free", "segment_unmap"):
            history.append([RELEASED, nbytes])
    return history


def replay_history(history: Sequence[Sequence[int]], options: AllocatorOptions | None = None) -> list[str]:
    """Return where the allocator model takes or returns other memory than the GPU's allocator did.

    Memory taken from the device precedes the block that needed it. Memory is returned in runs, each of the whole cache,
    where the model therefore empties its own cache.
    """
    allocator = CachingAllocator(options)
    wrong: list[str] = []
    taken = released = 0
    for index, (block, nbytes) in enumerate(history):
        if block == SEGMENT:
            taken += nbytes
            continue
        if block == RELEASED:
            released += nbytes
            continue
        if released:
            wrong += _emptied(allocator, released, index)
            released = 0
        before = allocator.reserved_bytes
        if nbytes:
            allocator.allocate(block, nbytes)
        else:
            allocator.free(block)
        if allocator.reserved_bytes - before != taken:
            wrong.append(f"event {index}: {allocator.reserved_bytes - before:,} bytes taken, {taken:,} on the card")
        taken = 0
    return wrong + (_emptied(allocator, released, len(history)) if released else [])


def _emptied(allocator: CachingAllocator, released: int, index: int) -> list[str]:
    before = allocator.reserved_bytes
    allocator.empty_cache()
    freed = before - allocator.reserved_bytes
    return [] if freed == released else [f"event {index}: {freed:,} bytes given back, {released:,} on the card"]


def histories_path(recording: Path) -> Path:
    """Return the file with the histories of a recording."""
    return recording.with_suffix(".histories.xz")


def write_histories(path: Path, histories: Mapping[str, History]) -> None:
    """Write the histories by configuration, compressed."""
    text = json.dumps({name: packed(history) for name, history in histories.items()}, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def read_histories(path: Path) -> dict[str, History]:
    """Read what :func:`write_histories` wrote."""
    texts: dict[str, str] = json.loads(lzma.decompress(path.read_bytes()))
    return {name: unpacked(text) for name, text in texts.items()}


def packed(history: History) -> str:
    """Return a history as text that compresses well.

    "512" allocates, "~1" frees the second-youngest block, and "+" and "-" are memory taken from and returned to the
    device.

    >>> packed([[SEGMENT, 2097152], [0, 512], [1, 1024], [0, 0]])
    '+2097152 512 1024 ~1'
    """
    words: list[str] = []
    live: list[int] = []
    for block, nbytes in history:
        if block in (SEGMENT, RELEASED):
            words.append(f"{'+' if block == SEGMENT else '-'}{nbytes}")
        elif nbytes:
            words.append(str(nbytes))
            live.append(block)
        else:
            place = live.index(block)
            words.append(f"~{len(live) - 1 - place}")
            del live[place]
    return " ".join(words)


def unpacked(text: str) -> History:
    """Return the history that a text describes.

    >>> unpacked("+2097152 512 1024 ~1")
    [[-1, 2097152], [0, 512], [1, 1024], [0, 0]]
    """
    history: History = []
    live: list[int] = []
    count = 0
    for word in text.split():
        if word[0] in "+-":
            history.append([SEGMENT if word[0] == "+" else RELEASED, int(word[1:])])
        elif word[0] == "~":
            history.append([live.pop(len(live) - 1 - int(word[1:])), 0])
        else:
            history.append([count, int(word)])
            live.append(count)
            count += 1
    return history


def replayed(histories: Mapping[str, History]) -> dict[str, list[str]]:
    """Return the differences of every history that does not replay exactly."""
    every = ((name, replay_history(history)) for name, history in histories.items())
    return {name: wrong for name, wrong in every if wrong}


def peaks(history: History) -> tuple[int, int]:
    """Return the peak of reserved bytes in the allocator model, and on the GPU."""
    allocator = CachingAllocator()
    reserved, is_emptied = [0], False
    for block, nbytes in history:
        if block in (SEGMENT, RELEASED):
            reserved.append(reserved[-1] + (nbytes if block == SEGMENT else -nbytes))
            is_emptied |= block == RELEASED
            continue
        if is_emptied:
            allocator.empty_cache()
        is_emptied = False
        if nbytes:
            allocator.allocate(block, nbytes)
        else:
            allocator.free(block)
    return allocator.peak_reserved_bytes, max(reserved)


def main() -> None:
    for path in sorted((Path(__file__).parents[1] / "data").glob("gpu_truth_*.histories.xz")):
        histories = read_histories(path)
        wrong = replayed(histories)
        print(f"{path.name}: {len(histories) - len(wrong)} of {len(histories)} replayed event for event", flush=True)
        for name, mismatches in wrong.items():
            print(f"  {name}: {mismatches[0]}, and {len(mismatches) - 1} more")


if __name__ == "__main__":
    main()
