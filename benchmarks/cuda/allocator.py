"""Record torch's caching allocator under its settings, on the no-op runtime: ``python -m benchmarks.cuda.allocator``.

A random program of allocations and frees runs under each setting, on a GPU with enough memory and on one with too
little. The allocator's figures are recorded after each event; tests replay the program in the allocator model.
"""

from __future__ import annotations

import json
import lzma
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.nocuda.cards import card_path
from benchmarks.nocuda.runtime import is_active
from torchsummary_plus.memory.allocator import AllocatorOptions, CachingAllocator

DATA = Path(__file__).parents[1] / "data" / "allocator_noop_torch_2.13.0.json.xz"
MIB = 1 << 20
SETTINGS = (
    "", "expandable_segments:True", "max_split_size_mb:32", "max_split_size_mb:64,expandable_segments:True",
    "max_split_size_mb:64,max_non_split_rounding_mb:32", "roundup_power2_divisions:4",
    "roundup_power2_divisions:[32:256,64:128,256:64,>:32]", "garbage_collection_threshold:0.6",
    "large_segment_size_mb:64",
)  # fmt: skip
ROOM_MIB = {"roomy": 40_000, "tight": 1_024}
"""The memory that the allocator gets, in MiB."""
EVENTS = 500

Event = list[int]
"""[block, bytes or 0, allocated and reserved bytes afterwards]; a failed request leaves the block unallocated."""


def program(seed: int) -> Iterator[tuple[int, int]]:
    """Draw blocks and their bytes, 0 for a free: small and large blocks, some of whose sizes recur."""
    draw = random.Random(seed)
    live: list[int] = []
    usual = [draw.randrange(1, 200 * MIB) for _ in range(6)]
    for block in range(EVENTS):
        sizes = (draw.randrange(1, 4096), draw.randrange(1, 2 * MIB), draw.randrange(1, 24 * MIB), draw.choice(usual))
        yield block, draw.choice(sizes)
        live.append(block)
        while live and draw.random() < 0.48:
            yield live.pop(draw.randrange(len(live))), 0


def main() -> None:
    if is_active():
        print(json.dumps(run(int(sys.argv[1]))))
        return
    recordings: dict[str, Any] = {}
    for setting in SETTINGS:
        for room, mib in ROOM_MIB.items():
            recordings[f"{setting} {room}".strip()] = recorded(setting, mib, len(recordings))
            print(f"{setting or 'default'}, {room}: {len(recordings[f'{setting} {room}'.strip()])} events", flush=True)
    DATA.write_bytes(lzma.compress(json.dumps(recordings, separators=(",", ":")).encode(), preset=9))
    print(f"written to {DATA}")


def recorded(setting: str, room_mib: int, seed: int) -> list[Event]:
    """Return a program's events under a setting, from a new process, because torch reads its settings once."""
    card = json.loads(card_path("A100").read_text())
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({**card, "memory_mib": card["context_mib"] + room_mib}, file)
        file.flush()
        command = ["-m", "benchmarks.nocuda", "--card", file.name, "-m", "benchmarks.cuda.allocator", str(seed)]
        done = subprocess.run(
            [sys.executable, *command], env={**os.environ, "PYTORCH_ALLOC_CONF": setting} if setting else None,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def run(seed: int) -> list[Event]:
    """Run the program on torch's own allocator."""
    import torch

    events, live = [], {}
    for block, nbytes in program(seed):
        if not nbytes:
            live.pop(block, None)
        else:
            with suppress(torch.OutOfMemoryError):
                live[block] = torch.empty(nbytes, dtype=torch.int8, device="cuda")
        events.append([block, nbytes, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])
    return events


def read() -> dict[str, list[Event]]:
    """Return the recorded events by "setting room"."""
    return json.loads(lzma.decompress(DATA.read_bytes()))  # type: ignore[no-any-return]


def differences(name: str, events: list[Event]) -> list[str]:
    """Return where the allocator model differs from torch 2.13's allocator, which was recorded."""
    setting, _, room = name.rpartition(" ")
    allocator = CachingAllocator(AllocatorOptions.parse(setting), ROOM_MIB[room] * MIB)
    wrong, live = [], set()
    for number, (block, nbytes, allocated, reserved) in enumerate(events):
        if nbytes and not allocator.allocate(block, nbytes):
            live.add(block)
        elif not nbytes and block in live:
            allocator.free(block)
            live.remove(block)
        here = (allocator.allocated_bytes, allocator.reserved_bytes)
        if here != (allocated, reserved):
            wrong.append(f"event {number}: {here} in the model, {(allocated, reserved)} in torch")
    return wrong


if __name__ == "__main__":
    main()
