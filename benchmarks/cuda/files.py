"""The files of recordings: one of records, and one of the allocator's histories."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.cuda.history import histories_path, read_histories, write_histories
from benchmarks.nocuda.cards import card_path

DATA = Path(__file__).parents[1] / "data"


def recorded(path: Path) -> dict[str, dict[str, Any]]:
    """Return the records of a file by name, with their histories; of failed ones, only those out of memory."""
    if not path.exists():
        return {}
    histories = read_histories(histories_path(path))
    every = json.loads(path.read_text())["records"]
    known = (record for record in every if "OutOfMemory" in record.get("error", "OutOfMemory"))
    return {r["name"]: {**r, **({"history": histories[r["name"]]} if r["name"] in histories else {})} for r in known}


def recording_name(header: dict[str, Any]) -> str:
    """Return the name of a recording's file: by GPU, set, torch and cuDNN.

    >>> recording_name({"gpu": "NVIDIA L4", "runtime": "CUDA", "torch": "2.11.0+cu130", "cudnn": 91900})
    'gpu_truth_nvidia_l4_torch_2.11.0_cudnn_9.19.0.json'
    >>> recording_name({"runtime": "no-op", "card": "l4", "torch": "2.13.0+cu130", "cudnn": 92000})
    'gpu_truth_noop_l4_torch_2.13.0_cudnn_9.20.0.json'
    """
    return f"gpu_truth_{versions(header)}.json"


def versions(header: dict[str, Any]) -> str:
    """Return the part of a file's name that tells the GPU, the set of models, torch and cuDNN.

    >>> versions({"gpu": "NVIDIA L4", "set": "libraries", "torch": "2.11.0+cu130", "cudnn": 91900})
    'nvidia_l4_libraries_torch_2.11.0_cudnn_9.19.0'
    """
    if header.get("runtime") == "no-op":
        gpu = f"noop_{header['card']}"
    else:
        gpu = re.sub("[^a-z0-9]+", "_", header["gpu"].lower())
    torch, cudnn = header.get("torch", "").split("+")[0], header.get("cudnn", 0)
    number = f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
    return f"{card_and_set(gpu, header.get('set', 'own'))}_torch_{torch}_cudnn_{number}"


def card_and_set(card: str, which: str) -> str:
    return card if which == "own" else f"{card}_{which}"


def latest_recording(card: str, which: str = "own") -> Path:
    """Return the last recording of a set that the no-op runtime made of a GPU."""
    name = card_and_set(card_path(card).stem, which)
    recordings = sorted(DATA.glob(f"gpu_truth_noop_{name}_torch_*.json"), key=lambda path: path.stat().st_mtime)
    if not recordings:
        raise SystemExit(f"{card} has no recording: make one with --card {card}")
    return recordings[-1]


def write(out: Path, header: dict[str, Any], records: list[dict[str, Any]]) -> None:
    """Write the recording, with a line for each configuration, and the allocator's histories in a second file."""
    histories = {record["name"]: record["history"] for record in records if "history" in record}
    records = [{key: value for key, value in record.items() if key != "history"} for record in records]
    if histories:
        write_histories(histories_path(out), histories)
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    head = json.dumps(header)[1:-1]
    out.write_text(f'{{{head},\n"records":[\n{lines}\n]}}\n')
