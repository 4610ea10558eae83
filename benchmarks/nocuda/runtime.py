"""Load the stubs in place of CUDA's libraries, in this process, before torch is imported."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import time
from pathlib import Path

from benchmarks.nocuda.build import build, find_wheel
from benchmarks.nocuda.cards import card_path

UNKNOWN = (
    "values: copies to the host return zeros, so data-dependent control flow takes the branches for zeros",
    "cuDNN's recurrent layers: temporary sizes are those for a zeroed handle, in bfloat16 those of float16",
    "cuDNN's batch norm: its workspace, which is reported as 0; dropout states: by rule",
    "the CUDA context and modules that are loaded lazily: a constant from the GPU's file",
    "kernels' local memory, registers and occupancy: every kernel has 32 registers",
    "cudnn.benchmark: which plan would be fastest; the workspaces of its trials are known",
    "the pool of cudaMallocAsync: every allocation is counted separately",
)
"""What the no-op runtime cannot know; each recording made on it lists this."""


SETTLE_SECONDS = 0.2
"""How long the process waits at its end, because autograd's device thread may still need Python."""


_loaded: list[Path] = []
"""The stubs of this process, and of its forks."""


def is_active() -> bool:
    """Return whether this process runs on the stubs."""
    return bool(_loaded)


def activate(card: str) -> None:
    """Load the stubs for a GPU, so that torch, imported later, finds them under their libraries' names."""
    if "torch" in sys.modules:
        raise RuntimeError("torch has been imported already, with CUDA's own libraries")
    wheel = find_wheel()
    if wheel is None:
        raise SystemExit(
            "torch has no CUDA build in this environment: make one with `python -m benchmarks.nocuda --make-env PATH`"
        )
    os.environ["NOCUDA_CARD"] = str(card_path(card))
    os.environ["NOCUDA_CUDNN"] = str(wheel.cudnn)
    stubs = build(wheel)
    os.environ["TRITON_LIBCUDA_PATH"] = str(stubs[0].parent)
    for path in stubs:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        _loaded.append(path)
    atexit.register(time.sleep, SETTLE_SECONDS)


def play(card: str) -> None:
    """Simulate another GPU, in a process that does not use one yet; "" changes nothing."""
    if card:
        os.environ["NOCUDA_CARD"] = str(card_path(card))


def active_card_path() -> Path:
    """Return the file of the GPU that this process simulates."""
    return card_path(os.environ["NOCUDA_CARD"])
