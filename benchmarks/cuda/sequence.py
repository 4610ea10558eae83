"""Find where a prediction differs from a recording: both sequences of allocations, with their operators.

``python -m benchmarks.cuda.sequence --card A100 --only vit-b32-fp32 --record DIR`` records what torch's CUDA build
allocates on the no-op runtime (benchmarks/nocuda), operator by operator. ``--compare DIR``, in any environment, prints
the first places where the predicted sequence differs, and the differences by operator.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._C._profiler import _EventType  # the event tree has no public reader
from torch.profiler import ProfilerActivity, profile

from benchmarks.cuda.meters import CudaMeter
from benchmarks.cuda.truth import SETS, Configured, built, configured, describe, record
from benchmarks.nocuda.runtime import is_active
from torchsummary_plus.data.memory_records import MemoryLog


class Change(NamedTuple):
    """Bytes that an operator allocates, or frees if negative."""

    nbytes: int
    operator: str


class SequenceMeter(CudaMeter):
    """Records the changes of a step, with the allocator's sizes and the profiler's operators."""

    changes: Sequence[Change] = ()

    def hold(self, tensors: list[torch.Tensor]) -> None:
        super().hold(tensors)
        torch.cuda.memory._record_memory_history(context=None, max_entries=10_000_000, clear_history=True)
        self.profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self.profiler.__enter__()

    def end(self) -> dict[str, Any]:
        self.profiler.__exit__(None, None, None)
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        names = [name for _, name in sorted(_named(self.profiler), key=lambda mark: mark[0])]
        allocated = [entry for entry in trace if entry["action"] == "alloc"]
        assert len(allocated) == len(names), (len(allocated), len(names))
        operators = {id(entry): name for entry, name in zip(allocated, names)}
        signs = {"alloc": 1, "free_completed": -1}
        self.changes = [
            Change(signs[entry["action"]] * entry["size"], operators.get(id(entry), ""))
            for entry in trace
            if entry["action"] in signs
        ]
        return super().end()


def _named(profiler: Any) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield the time of every allocation of CUDA memory, and its operators from the outermost to the innermost."""
    waiting = [(event, ()) for event in reversed(profiler.profiler.kineto_results.experimental_event_tree())]
    number = 0
    while waiting:
        event, around = waiting.pop()
        if (
            event.tag == _EventType.Allocation
            and event.extra_fields.device.type == "cuda"
            and event.extra_fields.alloc_size > 0
        ):
            number += 1
            yield (event.start_time_ns, number), " > ".join(around)
        inside = (*around, event.name) if event.tag == _EventType.TorchOp and _tells(event.name) else around
        waiting.extend((child, inside) for child in reversed(event.children))


def _tells(name: str) -> bool:
    return not re.match(r"aten::(empty|resize_|_local_scalar|set_)|autograd::engine", name)


def predicted_changes(log: MemoryLog) -> Iterator[Change]:
    """Yield the predicted changes after the model and its input exist."""
    sizes: dict[int, int] = {}
    for moment, storage, nbytes in log.events:
        size = nbytes or -sizes.pop(storage)
        if nbytes:
            sizes[storage] = nbytes
        at = log.moments[moment]
        if at.phase != "setup":
            yield Change(size, f"{at.phase}: {at.operator}")


AHEAD, AGREEING = 60, 4
"""How far to look for a place where two sequences agree again, and for how many changes they must agree."""


def differences(
    truth: Sequence[Change], prediction: Sequence[Change]
) -> Iterator[tuple[int, list[Change], list[Change]]]:
    """Yield the changes that only the first sequence has, and those that only the second one has, place by place.

    >>> a, b, c = (Change(n, "") for n in (1, 2, 3))
    >>> list(differences([a, a, a, a, b, a, a, a, a], [a, a, a, a, c, a, a, a, a]))
    [(4, [Change(nbytes=2, operator='')], [Change(nbytes=3, operator='')])]
    """
    ours, theirs = [change.nbytes for change in truth], [change.nbytes for change in prediction]
    i = j = 0
    while i < len(ours) or j < len(theirs):
        if i < len(ours) and j < len(theirs) and ours[i] == theirs[j]:
            i, j = i + 1, j + 1
            continue
        a, b = next(_meetings(ours[i:], theirs[j:]), (len(ours) - i, len(theirs) - j))
        yield i, list(truth[i : i + a]), list(prediction[j : j + b])
        i, j = i + a, j + b


def _meetings(ours: list[int], theirs: list[int]) -> Iterator[tuple[int, int]]:
    for skipped in range(1, AHEAD):
        for a in range(skipped + 1):
            b = skipped - a
            if ours[a : a + AGREEING] == theirs[b : b + AGREEING] != []:
                yield a, b


def tell(truth: Sequence[Change], prediction: Sequence[Change], count: int) -> None:
    """Print the first differences, then all of them by operator: missing, superfluous and moved ones."""
    truth, prediction = _settled(truth), _settled(prediction)
    by_operator: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    shown, told = 0, set()
    for place, only, extra in differences(truth, prediction):
        missing, much = _left(only, extra), _left(extra, only)
        moved = [] if missing or much else [change for change in only if change.nbytes > 0]
        for kind, changes in (("missing", missing), ("too much", much), ("moved", moved)):
            for change in changes:
                key = f"{kind:8} {change.operator}"
                by_operator[key] += max(0, change.nbytes)
                calls[key] += 1
        seen = tuple(change.operator for change in (*only, *extra))
        if shown < count and (missing or much or moved) and seen not in told:
            shown += 1
            told.add(seen)
            print(f"  at {place} of {len(truth)}:")
            for mark, changes in (("truth", only), ("predicted", extra)):
                for change in changes[:12]:
                    print(f"    {mark:9} {change.nbytes:+15,}  {change.operator}")
    for key, nbytes in by_operator.most_common(count):
        if nbytes:
            print(f"  {calls[key]:6} times, {nbytes:15,} bytes: {key}")


def _settled(changes: Sequence[Change]) -> list[Change]:
    """Return the changes with consecutive frees sorted by size, because their order does not matter."""
    runs = groupby(changes, key=lambda change: change.nbytes < 0)
    return [change for frees, run in runs for change in (sorted(run) if frees else run)]


def _left(changes: Sequence[Change], others: Sequence[Change]) -> list[Change]:
    """Return the changes that have no equal among the others."""
    sizes = Counter(change.nbytes for change in others)
    left = []
    for change in changes:
        if sizes[change.nbytes]:
            sizes[change.nbytes] -= 1
        else:
            left.append(change)
    return left


def path_of(folder: Path, configuration: Configured) -> Path:
    return folder / f"{configuration.name}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", help="a GPU of benchmarks/nocuda", required=True)
    parser.add_argument("--set", choices=SETS, default="own", help="models in plain torch, or from other libraries")
    parser.add_argument("--only", default="", help="a regular expression that a configuration's name must contain")
    parser.add_argument("--count", type=int, default=12, help="number of differences to print")
    parser.add_argument("--record", type=Path, help="the folder to write sequences to")
    parser.add_argument("--compare", type=Path, help="the folder to read sequences from")
    options = parser.parse_args()
    if options.record is not None and not is_active():
        judge = ["-m", "benchmarks.nocuda", "--card", options.card, "-m", "benchmarks.cuda.sequence"]
        os.execv(sys.executable, [sys.executable, *judge, *sys.argv[1:]])
    chosen = [c for c in configured(options.set) if re.search(options.only, c.name)]
    for configuration in chosen:
        if options.record is not None:
            options.record.mkdir(parents=True, exist_ok=True)
            meter = SequenceMeter()
            model = built(configuration)
            if isinstance(model, str):
                raise SystemExit(f"{configuration.name}: {model}")
            figures = record(configuration, model, "cuda", meter)
            content = {**describe("cuda"), **figures, "changes": meter.changes}
            path_of(options.record, configuration).write_text(json.dumps(content))
        if options.compare is not None and path_of(options.compare, configuration).exists():
            known = json.loads(path_of(options.compare, configuration).read_text())
            estimate = configuration.predict("cuda", known["gpu"])
            for key in ("peak_bytes", "reserved_bytes"):
                predicted = getattr(estimate, key)
                error = predicted / known[key] - 1
                print(f"{configuration.name} {key}: {known[key]:,}, predicted {predicted:,} ({error:+.2%})")
            for assumption in estimate.assumptions:
                print(f"  {assumption}")
            tell([Change(*change) for change in known["changes"]], list(predicted_changes(estimate.log)), options.count)


if __name__ == "__main__":
    main()
