"""Compare cuDNN's plans with a handle of this machine's GPU and without one: ``python -m benchmarks.cudnn_handle``.

Estimates query cuDNN with a descriptor of the GPU instead of a handle. The benchmark asks both for the convolutions of
a recording, each in a process of its own, and writes a recording of this GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.gpu_processes import REAL, in_child, run_on
from benchmarks.gpu_truth import describe
from benchmarks.gpu_truth_files import DATA
from torchsummary_plus.ops.scratch.cuda.cudnn import heuristics
from torchsummary_plus.ops.scratch.cuda.cudnn.backend import Descriptor, check
from torchsummary_plus.ops.scratch.cuda.cudnn.cards import local_card
from torchsummary_plus.ops.scratch.cuda.cudnn.library import CudnnError, cudnn_library

RECORDED = DATA / "cudnn_handle_nvidia_h100_80gb_hbm3_cudnn_9.19.0.json"
GRAPH_HANDLE, PLAN_HANDLE, HANDLE_TYPE = 800, 400, 0
"""Attributes of cudnn_graph_v9.h that take a handle, and their type."""


@contextmanager
def with_a_handle() -> Iterator[None]:
    """Give graphs and plans a handle, and no descriptor of a device."""
    handle = ctypes.c_void_p()
    check(cudnn_library().cudnnCreate(ctypes.byref(handle)), "a handle")
    set_descriptors = Descriptor.set_descriptors
    places = {heuristics.GRAPH_OPERATIONS: GRAPH_HANDLE, heuristics.PLAN_CONFIG: PLAN_HANDLE}

    def replaced(self: Descriptor, attribute: int, *others: Descriptor) -> Descriptor:
        if attribute in (heuristics.HEURISTICS_DEVICE, heuristics.PLAN_DEVICE):
            return self
        if attribute in places:
            value = (ctypes.c_void_p * 1)(handle)
            arguments = self.pointer, places[attribute], HANDLE_TYPE, ctypes.c_int64(1), value
            check(cudnn_library().cudnnBackendSetAttribute(*arguments), attribute)
        return set_descriptors(self, attribute, *others)

    with patch.object(Descriptor, "set_descriptors", replaced):
        yield


def first_plans(questions: list[list[Any]], by_handle: bool) -> dict[str, Any]:
    """Return the workspace of each convolution's first plan, in bytes; None where cuDNN has no plan."""
    import torch

    torch.cuda.init()
    card, (cuda, minor) = local_card(), map(int, (torch.version.cuda or "0.0").split("."))
    assert card is not None
    text = card.properties(1000 * cuda + 10 * minor)
    plan_bytes: list[int | None] = []
    with ExitStack() as stack:
        if by_handle:
            stack.enter_context(with_a_handle())
        for words, mode, refused in questions:
            try:
                question = heuristics.question_of(words)
                sizes = heuristics.workspaces(question, text, mode, frozenset(refused), every=True)
                plan_bytes.append(next(sizes, None))
            except CudnnError:
                plan_bytes.append(None)
    return {"found": plan_bytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=Path, default=RECORDED, help="the recording whose convolutions are queried")
    options = parser.parse_args()
    run_on([REAL], "benchmarks.cudnn_handle")
    questions = [plan[:3] for plan in json.loads(options.questions.read_text())["plans"]]
    header = in_child(partial(describe, "cuda"))
    with_handle, without = (
        in_child(partial(first_plans, questions, by_handle))["found"] for by_handle in (True, False)
    )
    name = re.sub("[^a-z0-9]+", "_", header["gpu"].lower())
    cudnn = header["cudnn"]
    head = {"gpu": header["gpu"], "cudnn": cudnn, "cuda": header["cuda"]}
    head["fields"] = json.loads(options.questions.read_text())["fields"]
    lines = ",\n".join(
        json.dumps([*question, a, b], separators=(",", ":")) for question, a, b in zip(questions, with_handle, without)
    )
    version = f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
    (DATA / f"cudnn_handle_{name}_cudnn_{version}.json").write_text(
        f'{json.dumps(head)[:-1]},\n"plans":[\n{lines}\n]}}\n'
    )
    print(f"{sum(a == b for a, b in zip(with_handle, without)):,} of {len(questions):,} first plans are the same")


if __name__ == "__main__":
    main()
