"""Measure the time of a call of ``MemTracker.track``: ``python -m benchmarks.tracker_speed``.

It is compared, in one run, with the walk over all objects of the garbage collector that Pytorch-Memory-Utils and
pytorch_memlab make at each call. The output is in milliseconds, with their ratio, for a growing number of tensors with
their own storages.
"""

from __future__ import annotations

import argparse
import gc
import io
import time
from collections.abc import Callable

import torch

from torchsummary_plus import MemTracker

GOAL_MS, AT = 1.0, 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, nargs="*", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--calls", type=int, default=30)
    options = parser.parse_args()
    print(f"{'tensors':>8} {'objects':>9} {'track ms':>9} {'walk ms':>9} {'ratio':>7}")
    for count in options.tensors:
        tensors = [torch.empty(3) for _ in range(count)]
        tracker = MemTracker(detail=False, device="cpu", stream=io.StringIO())
        tracker.track()
        ours, walk = (best(call, options.calls) for call in (tracker.track, every_tensor))
        goal = "" if count != AT else f"  goal {GOAL_MS:g} ms: {'met' if ours <= GOAL_MS else 'MISSED'}"
        print(f"{count:8,} {len(gc.get_objects()):9,} {ours:9.3f} {walk:9.3f} {ours / walk:7.4f}{goal}")
        tracker.close()
        del tensors, tracker


def every_tensor() -> int:
    """Return the tensors among all objects, and their bytes, as the older tools do at each call."""
    return sum(
        tensor.numel() * tensor.element_size() for tensor in gc.get_objects() if torch.Tensor in type(tensor).__mro__
    )


def best(call: Callable[[], object], calls: int) -> float:
    """Return the minimum CPU time of several calls, in milliseconds."""
    milliseconds = []
    for _ in range(calls):
        started = time.process_time()
        call()
        milliseconds.append(1000 * (time.process_time() - started))
    return min(milliseconds)


if __name__ == "__main__":
    main()
