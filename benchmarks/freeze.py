"""Predict the recordings again and print what changed: ``python -m benchmarks.freeze``.

Three parts are compared with snapshots of earlier results: the CPU peaks of ``benchmarks.cpu.truth``'s models, the
CUDA peaks of ``benchmarks.cuda.truth``'s configurations, and the tables of the zoo's models. ``--write`` replaces the
snapshots. Models of libraries that are not installed are skipped.

CPU peaks depend on the processor, so each kind has its own snapshot, which is not under version control: write it
before a change, and compare after it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu import truth as cpu_truth
from benchmarks.cpu.events import predicted_levels
from benchmarks.cpu.models import SUBJECTS
from benchmarks.cuda.configs import SETS, configured
from benchmarks.cuda.files import DATA, latest_recording
from benchmarks.zoo.libraries import cases
from torchsummary_plus import summary

CARDS = ("A100", "T4")
MODES = ("eval", "adam")
LIBRARIES = ("torchvision", "timm")
"""Libraries of the zoo whose models have their table kept, 25 of each."""

Case = tuple[str, Callable[[], Any]]
"""A name, and the function that computes the case's result, which JSON can express."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, help="only this part; default: all")
    parser.add_argument("--count", type=int, help="only so many cases of a part, evenly spread")
    parser.add_argument("--only", default="", help="a regular expression that a case's name must contain")
    parser.add_argument("--write", action="store_true", help="write the results to the snapshot")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    is_same = True
    for part in [options.part] if options.part else PARTS:
        before, began = snapshot(part), time.monotonic()
        now = results(part, options.only, options.count, None if options.write else before)
        changed = [name for name in now if now[name] != before.get(name)]
        for name in changed:
            print(f"{part} {name}: {before.get(name, 'new')} -> {now[name]}")
        print(f"{part}: {len(changed)} of {len(now)} changed, {time.monotonic() - began:.0f} seconds")
        is_same = is_same and not changed
        if options.write:
            write(part, {**before, **now})
    sys.exit(not (is_same or options.write))


def results(part: str, only: str = "", count: int | None = None, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the results of a part's cases by name: of ``known`` ones alone, if given, and of ``count`` of them."""
    every = [case for case in PARTS[part]() if re.search(only, case[0]) and (known is None or case[0] in known)]
    step = 1 if count is None else max(1, len(every) // count)
    found = {}
    for name, compute in islice(every, 0, None if count is None else step * count, step):
        try:
            found[name] = compute()
        except ModuleNotFoundError as error:
            print(f"{part} {name}: {error}", file=sys.stderr)
        except Exception as error:
            found[name] = type(error).__name__
        print(f"{part} {name}", file=sys.stderr, flush=True)
    return found


def cpu_cases() -> Iterator[Case]:
    """Yield each model's inference and its training with Adam: the peaks of two steps."""
    torch.set_num_threads(1)
    for subject in SUBJECTS:
        for mode in MODES:
            case = cpu_truth.Case(subject, mode, cpu_truth.BATCHES[0])
            yield case.name, partial(cpu_peaks, case)


def cpu_peaks(case: cpu_truth.Case) -> list[int]:
    log = cpu_truth.predict(case, *cpu_truth.built(case)).log
    return [level.nbytes for level in predicted_levels(log, cpu_truth.STEPS)]


def cuda_cases() -> Iterator[Case]:
    """Yield the recorded configurations of each GPU: peak and reserved bytes."""
    for card in CARDS:
        for which in SETS:
            recording = json.loads(latest_recording(card, which).read_text())
            known = {configuration.name: configuration for configuration in configured(which)}
            for record in recording["records"]:
                if "error" not in record and record["name"] in known:
                    yield f"{card} {record['name']}", partial(cuda_peaks, known[record["name"]], recording["gpu"])


def cuda_peaks(configuration: Any, gpu: str) -> list[int]:
    estimate = configuration.predict(gpu)
    return [estimate.peak_bytes, estimate.reserved_bytes]


def table_cases() -> Iterator[Case]:
    """Yield the CPU's models and those of the zoo: the checksum of the table's text."""
    for subject in SUBJECTS:
        yield subject.name, partial(checksum, subject.build, None, partial(subject.example, 2))
    for library in filter(find_spec, LIBRARIES):
        for case in islice(cases(library, ""), 25):
            yield f"{library} {case.name}", partial(checksum, case.make, case.size, lambda case=case: case.data)


def checksum(build: Callable[[], Any], size: Any, data: Callable[[], Any]) -> str:
    torch.manual_seed(0)
    text = str(summary(build().eval(), size, input_data=data(), verbose=0))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


PARTS: dict[str, Callable[[], Iterator[Case]]] = {"cpu": cpu_cases, "cuda": cuda_cases, "tables": table_cases}


def snapshot_path(part: str) -> Path:
    """Return the file of a part's snapshot; that of CPU peaks is named after the processor's instructions."""
    if part != "cpu":
        return DATA / f"frozen_{part}.json"
    tiles = "_amx" if torch.cpu._is_amx_tile_supported() else ""
    return DATA / f"frozen_cpu_{cpu_truth.isa().lower()}{tiles}.json"


def snapshot(part: str) -> dict[str, Any]:
    path = snapshot_path(part)
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return known


def write(part: str, found: dict[str, Any]) -> None:
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    snapshot_path(part).write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
