"""cuDNN as the convolution rules use it: queried where possible, with what the estimate then assumes.

Without a driver it is queried in a subprocess, where stand-ins for CUDA's libraries let it offer the engines that need
one; on platforms without stand-ins it is not queried. The first query for a GPU starts its subprocess, which imports no
torch, uses no GPU and ends with this process. Each GPU has its own: some of cuDNN's heuristics keep the properties of
the first device that a process asks about. A GPU with a file in ``card_files`` has its own properties, each with its
source; any other borrows those of the nearest one (same compute capability, or an older one of the same major), with
its own multiprocessors and memory.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from .....data.arguments import ASK, AUTO, RULE
from .....data.capability import Capability
from .....data.errors import InputError
from .....data.units import MIB
from .....live.cuda_calls import capability_of, driver_figures
from ....backends import allows_tf32
from . import backend
from .backend import CudnnError, Question, cudnn_library, refusal, version_text, workspaces

CLUSTERS = (9, 0)
"""The first compute capability with thread-block clusters."""
SPLIT_TILE = 128 * 1024
"""Bytes of a partial sum of a split plan: 128 x 256 numbers of 4 bytes."""


class Cudnn:
    """cuDNN for one GPU: its answers, or why there are none."""

    def __init__(self, card: Card | None = None, how: str = AUTO) -> None:
        self.card = card
        self.how = how
        self.answered = 0
        self.questions: set[tuple[bool, Question]] = set()
        """The convolutions that have run, by thread."""
        self.in_engine = False
        """Whether autograd's thread runs the operator; plans are kept by thread (``benchmark_cache``, Conv_v8.cpp)."""
        self.refused: dict[str, int] = {}
        self.is_guessed = False
        """Whether the table has answered in place of cuDNN."""
        unknown = "no device properties are known for this GPU"
        self.why = 'cudnn="rule"' if how == RULE else unknown if card is None else refusal(card.capability)
        """Why cuDNN is not queried; "" if it is."""
        self.has_worker = not self.why and capability_of(0) is None
        """Whether a subprocess is queried, in which cuDNN has stand-ins for CUDA's driver."""
        if self.has_worker and card is not None and worker_of(os.getpid(), device_text(card)) is None:
            self.why = "without a driver cuDNN can be queried in a subprocess on Linux alone, and none could be started"
        if how == ASK and self.why:
            raise InputError(f"cudnn is 'ask', but {self.why}; accepted here: 'auto', 'rule'")

    def afresh(self) -> Cudnn:
        """Return a new object with the same settings, for a pass in which no convolution has run yet."""
        return Cudnn(self.card, self.how)

    def is_new(self, question: Question) -> bool:
        """Return whether this convolution runs for the first time in the pass and on this thread."""
        is_new = (self.in_engine, question) not in self.questions
        self.questions.add((self.in_engine, question))
        return is_new

    def split(self, low: int, high: int) -> tuple[int, int]:
        """Return a plan's least and most bytes with the partial sums that are known only with a handle of the GPU.

        With thread-block clusters, cuDNN splits a sum over as many multiprocessors as the driver says can hold clusters
        at once. A descriptor of the GPU does not tell: on an H100 (132 multiprocessors), the plans of a handle took 18
        fewer to 130 more tiles than those of its descriptor, in 1,054 convolutions; on GPUs without clusters, both are
        equal (benchmarks/data/cudnn_handle_nvidia_h100*).
        """
        if self.card is None or self.card.capability < CLUSTERS:
            return low, high
        tiles = self.card.multiprocessors * SPLIT_TILE
        return max(0, low - tiles // 4), high + tiles

    def within_memory(self, nbytes: int) -> int:
        """Return a bound of a workspace: a plan that does not fit in the GPU's memory does not run."""
        return nbytes if self.card is None else min(nbytes, self.card.memory_mib * MIB)

    def plans(self, question: Question) -> tuple[int, ...] | None:
        """Return the workspaces of the plans for a convolution, or None if cuDNN cannot provide them."""
        if self.why or self.card is None:
            self.is_guessed = True
            return None
        try:
            ask = workspaces_of_worker if self.has_worker else workspaces
            answered = plans(question, self.card, *settings(question.dtype), ask)
        except CudnnError as error:
            self.refused[str(error)] = self.refused.get(str(error), 0) + 1
            return None
        self.answered += 1
        return answered

    def assumptions(self) -> tuple[str, ...]:
        """Return what the estimate assumes beyond cuDNN's own answers."""
        lines = [
            f"cuDNN workspaces estimated from the table, {count} times: {why}"
            for why, count in sorted(self.refused.items())
        ]
        if self.is_guessed:
            lines.append(f"cuDNN workspaces estimated from a table of recorded answers: {self.why}")
        if self.answered and self.card is not None and self.card.like:
            version = version_text(cudnn_library().cudnnGetVersion())
            lines.append(f"cuDNN {version} queried for a {self.card.name} with the properties of a {self.card.like}")
        if (self.answered or self.is_guessed) and self.card is not None and self.card.capability >= CLUSTERS:
            most = self.card.multiprocessors * SPLIT_TILE / MIB
            lines.append(
                "cuDNN workspaces without the GPU: with thread-block clusters (compute capability 9.0 and later), a "
                f"convolution on the GPU may take up to {most:,.1f} MiB more, or {most / 4:,.1f} MiB less"
            )
        return tuple(lines)


REMEMBERED = 4096
"""Number of cached answers, by convolution, GPU and settings."""


def settings(dtype: str) -> tuple[frozenset[int], bool, int]:
    """Return what torch's settings decide for a dtype: the refused notes, whether all plans are tried, and the mode."""
    deterministic = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    mode = backend.MODE_B if os.environ.get("TORCH_CUDNN_USE_HEURISTIC_MODE_B") == "1" else backend.INSTANT
    refused = refused_notes(dtype != "float32" or allows_tf32(), deterministic)
    return refused, torch.backends.cudnn.benchmark, mode


def refused_notes(tensor_cores: bool, deterministic: bool = False) -> frozenset[int]:
    """Return the numerical notes of the engines that torch skips."""
    skipped = {
        backend.NONDETERMINISTIC: deterministic,
        backend.TENSOR_CORE: not tensor_cores,
        backend.DOWN_CONVERT: True,
    }
    return frozenset(note for note, is_skipped in skipped.items() if is_skipped)


def requested(plans: Iterable[int]) -> tuple[int, ...]:
    """Return the workspaces requested in turn until an allocation succeeds: each smaller than those before.

    >>> requested((64, 96, 16, 0))
    (64, 16, 0)
    """
    least: list[int] = []
    for size in plans:
        if not least or size < least[-1]:
            least.append(size)
    return tuple(least)


Ask = Callable[[Question, str, int, frozenset[int], bool], Iterator[int]]
"""A way to query cuDNN, such as :func:`.backend.workspaces`."""


@lru_cache(REMEMBERED)
def plans(
    question: Question, card: Card, refused: frozenset[int], every: bool = False, mode: int = backend.INSTANT,
    ask: Ask = workspaces,
) -> tuple[int, ...]:  # fmt: skip
    """Return the workspaces, in bytes and in order, of the plans that torch may run for a convolution on a GPU.

    They end at the first that needs none, unless ``cudnn.benchmark`` tries ``every`` one. The fallback list is queried
    only if it may be needed. Raises :class:`CudnnError` if there is no plan.
    """
    device = device_text(card)
    sizes = tuple(ask(question, device, mode, refused, every))
    if every or 0 not in sizes:
        sizes += tuple(ask(question, device, backend.FALLBACK, refused, every))
    if not sizes:
        raise CudnnError("cuDNN returned no plan that torch would run")
    return sizes


@cache
def device_text(card: Card) -> str:
    """Return a GPU's properties as cuDNN reads them."""
    return card.properties(cudnn_library().cudnnGetCudartVersion())


# A subprocess, where stand-ins for CUDA's libraries let cuDNN offer the engines that need a driver


def workspaces_of_worker(
    question: Question, device: str, mode: int, refused: frozenset[int], every: bool = False
) -> Iterator[int]:
    """Do as :func:`.backend.workspaces`, with all engines. Raises :class:`CudnnError` if there is no answer."""
    found, line = worker_of(os.getpid(), device), ""
    if found is None:
        raise CudnnError("the cuDNN subprocess could not be started")
    worker, lock = found
    asked = json.dumps([astuple(question), device, mode, sorted(refused), every])
    assert worker.stdin is not None and worker.stdout is not None
    with lock, suppress(OSError):  # An exited subprocess answers nothing.
        print(asked, file=worker.stdin, flush=True)
        line = worker.stdout.readline()
    answered: dict[str, Any] = json.loads(line) if line else {"error": "the cuDNN subprocess exited"}
    if "error" in answered:
        raise CudnnError(answered["error"])
    return iter(answered["workspaces"])


@cache
def worker_of(process: int, device: str) -> tuple[subprocess.Popen[str], Lock] | None:
    """Return a process's subprocess for a GPU, by the text of its properties, if it can be started; a fork has its own.

    One thread at a time may use it. cuDNN runs there with torch's version of CUDA, unless this cuDNN was built for
    another major one.
    """
    cudnn, pipe = backend.cudnn_path(), subprocess.PIPE
    if cudnn is None or not sys.executable or not backend.is_possible():
        return None
    try:
        number, cuda = cudnn_library().cudnnGetCudartVersion(), torch.version.cuda or ""
        major, minor = number // 1000, number % 1000 // 10
        version = cuda if cuda.startswith(f"{major}.") else f"{major}.{minor}"
        command = [sys.executable, "-I", backend.__file__, str(cudnn), version]
        worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    except (OSError, CudnnError):
        return None
    atexit.register(worker.kill)
    return worker, Lock()


# A GPU as cuDNN's heuristics see it: the fields of ``cudaGetDeviceProperties`` that they read

CARD_FILES = Path(__file__).parent / "card_files"


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU's device properties, as in the card files; ``like`` names the GPU they are borrowed from, if any."""

    name: str
    capability: Capability
    multiprocessors: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_block: int
    l2_bytes: int
    clock_khz: int
    memory_clock_khz: int
    memory_mib: int
    like: str = ""

    def properties(self, driver: int) -> str:
        """Return the JSON for cuDNN's device descriptor (``CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION``).

        Its keys are those that libcudnn_graph reads; ``driver`` is the CUDA version cuDNN was built with.
        """
        major, minor = self.capability
        keys: dict[str, Any] = {
            "cudaDeviceId": 0,
            "smCountOrigin": 0,
            "pciDeviceId": 0,
            "isTccDriver": 0,
            "warpSize": 32,
        }
        keys |= {"supportCoopLaunch": 1, "maxGridSize": [2**31 - 1, 65535, 65535], "maxBlockSize": [1024, 1024, 64]}
        keys |= {"maxThreadsPerBlock": 1024, "regsPerBlock": 65536, "maxRegistersPerSM": 65536}
        keys |= {"maxSharedMemoryPerBlock": 49152, "oversizedSharedMemoryPerBlock": 0}
        keys |= {"maxSharedMemoryPerBlockOptin": self.shared_per_block, "l2CacheSize": self.l2_bytes}
        keys |= {"reservedSharedMemoryPerBlock": 1024 if major >= 8 else 0, "multiProcessorCount": self.multiprocessors}
        keys |= {"maxCtasPerSM": self.blocks_per_multiprocessor, "maxThreadsPerSM": self.threads_per_multiprocessor}
        keys |= {"smClockRateKHz": self.clock_khz, "memClockRateKHz": self.memory_clock_khz}
        keys |= {"deviceVer": 100 * major + 10 * minor, "driverVer": driver, "deviceName": self.name}
        return json.dumps(keys | {"totalGlobalMem": self.memory_mib * MIB})


FIGURES = tuple(name for name in Card.__slots__ if name not in ("name", "capability", "like"))


@cache
def known_cards() -> dict[str, Card]:
    """Return the GPUs with a file, by file name."""
    cards = {}
    for path in sorted(CARD_FILES.glob("*.json")):
        figures = json.loads(path.read_text())
        own = {name: figures[name] for name in FIGURES}
        cards[path.stem] = Card(figures["name"], (figures["major"], figures["minor"]), **own)
    return cards


DRIVER = {
    "multiprocessors": 16,
    "threads_per_multiprocessor": 39,
    "blocks_per_multiprocessor": 106,
    "shared_per_block": 97,
    "l2_bytes": 38,
    "clock_khz": 13,
    "memory_clock_khz": 36,
}
"""The driver's device attributes (``CUdevice_attribute``)."""


@cache
def local_card(index: int = 0) -> Card | None:
    """Return the installed GPU's own properties, from the driver as in :func:`capability_of`; None without one."""
    capability, figures = capability_of(index), driver_figures(index, *DRIVER.values())
    if capability is None or figures is None:
        return None
    own: dict[str, Any] = dict(zip(DRIVER, figures[1:]))
    return Card("GPU", capability, memory_mib=figures[0] // MIB, **own)


def nearest_card(name: str, capability: Capability, multiprocessors: int | None, memory_mib: int) -> Card | None:
    """Return a GPU with the properties of one with a file: same capability, or the nearest older one of the same major.

    >>> nearest_card("RTX 3080 10GB", (8, 6), 68, 10_002).like
    'NVIDIA GeForce RTX 3090'
    """
    older = [card for card in known_cards().values() if card.capability[0] == capability[0]]
    older = [card for card in older if card.capability <= capability]
    if not older:
        return None
    count = multiprocessors or 0
    near = min(older, key=lambda card: (capability[1] - card.capability[1], abs(card.multiprocessors - count)))
    own = count or near.multiprocessors
    return replace(near, name=name, capability=capability, multiprocessors=own, memory_mib=memory_mib, like=near.name)
