"""GPUs and other devices: their nominal memory, and how much of it is available to a program.

Each GPU has three figures. The datasheet's: "24 GB" means 24 GiB, since memory is built in powers of 2 and the driver
confirms it (24,564 MiB; 24 * 1000**3 bytes would be 22,888). ``nvidia-smi``'s total. And what a program sees in
``torch.cuda.get_device_properties(0).total_memory``, after the driver and, where present, error correction have taken
their share; it varies slightly between drivers, and the table has the least published figure on Linux.

Sources: NVIDIA's datasheets for the memory, developer.nvidia.com/cuda-gpus for the compute capability, NVIDIA's
architecture whitepapers and datasheets for the multiprocessors (CUDA cores divided by those per SM: 64 in 6.0, 7.x,
8.0, 128 in 6.1, 8.6, 8.9, 9.0 and later); each GPU names the source of the other two, and of its peaks. The table is
``gpus.csv``, a line for each GPU: figures were "printed" by nvidia-smi and torch in public repositories (2022 to 2026),
or those of nvidia-smi "tabulated" in thundergolfer.com/blog/nvidia-gpu-memory-capacity.

Of devices of other makers (``other_devices.csv``), the memory size is known, from their datasheets, but the kernels are
not modelled: whether a step fits is decided by its tensors alone, since kernels' scratch memory, contexts and
allocators differ. Of Apple's unified memory, Metal recommends that a program use 2/3 up to 32 GB (21,845 of 32,768 MiB:
ollama/ollama#434) and 3/4 beyond (49,152 of 65,536: ggml-org/llama.cpp#1870; 73,728 of 98,304: #3213).
"""

from __future__ import annotations

import csv
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from ..data.capability import Capability
from ..data.errors import InputError, warn
from ..data.units import GIB, MIB, describe, is_integer

ARCHITECTURES = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell")

DATASHEET = "datasheet"
"""The source for a GPU without a published total: 9/10 of the datasheet's memory is assumed to be available, less than
on any GPU with a published total."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """A GPU's published peaks: dense TFLOPS, not with sparsity, GB/s of its memory (1000**3 bytes), and watts.

    ``half_tflops`` are of float16 products that accumulate in float32, and of bfloat16 from Ampere on;
    ``matmul_tflops`` are what the fastest such product measured anywhere reached. None means that the GPU cannot
    compute in that dtype, or that no figure was published. ``realised`` is the share of their roofline that whole
    training steps reached: data-centre GPUs slow down at their power limit (``REALISED``).
    """

    half_tflops: float
    fp32_tflops: float
    gb_per_s: float
    tf32_tflops: float | None = None
    fp8_tflops: float | None = None
    matmul_tflops: float | None = None
    realised: float = 1.0
    watts: float | None = None
    source: str = ""


REALISED = (
    "A100: the geometric mean of ResNet-50's 2,470 images/s (NVIDIA/DeepLearningExamples, 2021) and Llama 2 7B's 3,700 "
    "tokens/s (foundation-model-stack/fms-fsdp, 2024); H100 SXM: less by what the latter's 7,500 tokens/s there imply; "
    "H100 PCIe and NVL, whose products were measured at a lower power limit: as the A100; Blackwell: as the H100 SXM"
)
"""The source of ``realised``; ``python -m benchmarks.step_time`` computes it."""

_FIGURES = tuple(field.name for field in fields(Peaks) if field.name != "source")


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU: the datasheet's GB, and the totals of nvidia-smi and CUDA in MiB (None without a source).

    ``peaks`` is None for a GPU whose peaks are not in the table; ``multiprocessors``, if that is not known.
    """

    name: str
    architecture: str
    compute_capability: Capability
    datasheet_gb: int
    smi_mib: int | None = None
    cuda_mib: int | None = None
    source: str = ""
    peaks: Peaks | None = None
    multiprocessors: int | None = None

    @property
    def usable_bytes(self) -> int:
        """Bytes available to a program, including its CUDA context: the smallest known figure."""
        known = self.cuda_mib or self.smi_mib
        if known is None:
            nominal = self.datasheet_gb * GIB
            return nominal * 9 // 10 if self.source == DATASHEET else nominal
        return known * MIB


GPUS: dict[str, GPU] = {}
"""All GPUs by name; a form factor with peaks of its own is a GPU of its own."""

COMMON = ("RTX 4060", "RTX 4070", "T4", "RTX 4090", "RTX 5090", "A100 40GB", "L40S", "H100 SXM")
"""A common GPU of each size from 8 to 80 GB."""

ALIASES: dict[str, GPU] = {}
"""The table's other names of one GPU among several, or with the memory of the CPU next to it, without brand words."""


def register_gpu(gpu: GPU) -> GPU:
    """Register a GPU for :func:`find_gpu` and every ``memory=`` argument. Raises InputError if the name is taken.

    >>> register_gpu(GPU("Example 9000", "Blackwell", (12, 0), 64)).usable_bytes // 1024**3
    64
    >>> del GPUS["Example 9000"]
    """
    if _spellings(gpu) in map(_spellings, GPUS.values()):
        raise InputError(f"GPU {describe(gpu.name)} is already registered")
    if gpu.architecture not in ARCHITECTURES:
        raise InputError(f"architecture is {describe(gpu.architecture)}; accepted: {', '.join(ARCHITECTURES)}")
    GPUS[gpu.name] = gpu
    return gpu


def find_gpu(name: str) -> GPU:
    """Return a GPU by name, as people or ``torch.cuda.get_device_name()`` spell it.

    Case, blanks, brand words (NVIDIA, GeForce, RTX, Tesla ...) and the form factor are ignored; the memory size matters
    if a GPU comes in several. Raises InputError for an unknown name, with similar ones, and for an ambiguous name, with
    the GPUs it fits.

    >>> find_gpu("nvidia geforce rtx4090").name, find_gpu("NVIDIA A100-SXM4-80GB").name
    ('RTX 4090', 'A100 80GB')
    """
    candidates = _candidates(name)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise InputError(
            f"gpu is {describe(name)}, which comes in several memory sizes; accepted: {_names(candidates)}"
        )
    other = other_device(name)
    if other is not None:
        raise InputError(f"{other.words}; leave out gpu= and ask the estimate: fits({describe(name)})")
    if SIZE.fullmatch(name) is not None:
        raise InputError(
            f"gpu is {describe(name)}, an amount of memory; accepted: a GPU's name; amounts go to fits() of the "
            "estimate, and to memory= of a search"
        )
    near = _near(name)
    known = f"similar names: {_names(near)}" if near else f"registered: {_names(GPUS.values())}"
    raise InputError(f"unknown GPU {describe(name)}; {known}")


def named_gpu(memory: int | float | str) -> GPU | None:
    """Return the GPU that a ``memory=`` argument names, the first of several sizes; None for an amount of memory."""
    candidates = _candidates(memory) if isinstance(memory, str) and SIZE.fullmatch(memory) is None else []
    return candidates[0] if candidates else None


def context_range(memory: int | float | str, gpu: str = "") -> tuple[int, int]:
    """Return the least and the most bytes of a CUDA context, on the GPU named by ``memory`` or ``gpu``, else on any."""
    card = named_gpu(memory) or named_gpu(gpu)
    return context_bytes(None if card is None else card.compute_capability)


FEWEST = 1024
"""Numbers below this are refused, because GB were probably meant."""


def parse_memory(value: int | float | str) -> int:
    """Return the bytes in a number, in text with a unit, or available on a device given by name.

    GiB is 1024**3 bytes and GB or G 1000**3; the same for K, M and T. Raises :class:`InputError` for anything else.

    >>> parse_memory("24GiB"), parse_memory("24 GB"), parse_memory("RTX 4090")
    (25769803776, 24000000000, 25250758656)
    """
    nbytes: Any = value
    is_bare = not isinstance(value, str) or value.strip().isdecimal()
    if isinstance(value, str):
        match = SIZE.fullmatch(value)
        if match is not None:
            prefix = (match[2] or " ").lower()
            nbytes = round(float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(prefix))
        elif _candidates(value):
            nbytes = find_gpu(value).usable_bytes
        elif (other := other_device(value)) is not None:
            nbytes = other.usable_bytes
        elif is_bare:
            nbytes = int(value)
    if isinstance(nbytes, float) and nbytes.is_integer():
        nbytes = int(nbytes)
    if is_bare and (is_integer(nbytes) or isinstance(nbytes, float)) and 0 < nbytes < FEWEST:
        raise InputError(
            f"memory is {describe(value)}, which means {nbytes} bytes; write '{nbytes}GiB' or '{nbytes}GB'"
        )
    if not is_integer(nbytes) or nbytes <= 0:
        near = _near(value) if isinstance(value, str) else []
        raise InputError(
            f"memory is {describe(value)}; accepted: a number of bytes, '24GiB' (1024**3), '24GB' (1000**3), "
            "or a GPU's name" + (f"; similar names: {_names(near)}" if near else "")
        )
    return int(nbytes)


SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?)b?|()()b)\s*", re.IGNORECASE)


BRANDS = re.compile(
    "nvidia|geforce|quadro|tesla|rtx|gtx|graphics|gpu|generation|blackwell|server|workstation|edition|"
    "hbm[0-9]e?|gddr[0-9]x?"
)
FORM_FACTOR = re.compile(r"sxm[2-5]?\b|pcie\b|max-?q\b")


@cache
def _compact(name: str, brands: re.Pattern[str] = BRANDS) -> str:
    """Return a name without case, blanks and brand words: "a10080gb" for "NVIDIA A100 80GB"."""
    return brands.sub("", re.sub(r"[^a-z0-9]", "", name.lower())).replace("gib", "gb").replace("mobile", "laptop")


@cache
def _spellings(gpu: GPU) -> tuple[str, str]:
    """Return a GPU's compact name without and with its memory."""
    memory = f"{gpu.datasheet_gb}gb"
    model = _compact(gpu.name).removesuffix(memory)
    return model, model + memory


def _candidates(name: str) -> list[GPU]:
    """Return the GPUs a name may mean; its form factor counts only if GPUs differ by it."""
    for wanted in (_compact(name), _compact(FORM_FACTOR.sub("", name.lower()))):
        if wanted in ALIASES:
            return [ALIASES[wanted]]
        matches = [gpu for gpu in GPUS.values() if wanted in _spellings(gpu)]
        if matches:
            return matches
    return []


def _near(name: str) -> list[GPU]:
    """Return the GPUs with similar names, most similar first."""
    models = sorted({_spellings(gpu)[0] for gpu in GPUS.values()})
    close = difflib.get_close_matches(_compact(name), models, n=5, cutoff=0.5)
    return [gpu for model in close for gpu in GPUS.values() if _spellings(gpu)[0] == model]


def _names(gpus: Iterable[GPU]) -> str:
    return ", ".join(describe(gpu.name) for gpu in gpus)


def _rows(name: str) -> csv.DictReader[str]:
    return csv.DictReader(Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines())


def _capability(text: str) -> Capability:
    major, minor = text.split(".")
    return int(major), int(minor)


def _read_table() -> None:
    """Register the GPUs of the table, a line each; an empty cell is None."""
    for row in _rows("gpus.csv"):
        counts = {name: int(row[name]) for name in ("smi_mib", "cuda_mib", "multiprocessors") if row[name]}
        figures = {name: float(row[name]) for name in _FIGURES if row[name]}
        peaks = Peaks(**figures, source=row["peak_source"]) if figures else None
        capability, gb = _capability(row["compute_capability"]), int(row["datasheet_gb"])
        gpu = GPU(row["name"], row["architecture"], capability, gb, source=row["source"], peaks=peaks, **counts)
        register_gpu(gpu)
        ALIASES.update({_compact(alias): gpu for alias in row["also"].split("; ") if alias})


_read_table()


Range = tuple[int, int]
"""The least and the most MiB."""

CONTEXTS: dict[tuple[Capability | None, int], Range] = {
    (_capability(row["compute_capability"]), int(row["cuda"] or 0)): (int(row["least_mib"]), int(row["most_mib"]))
    for row in _rows("contexts.csv")
}
"""A context's range with lazy loading, by compute capability and major version of CUDA, 0 for any.

It is the driver's part and the modules of loaded kernels, which the allocator never sees: device memory minus the
allocator's reserved bytes, where both were published or measured. ``contexts.csv`` names each figure's source; on GPUs
that are not named, 274 MiB with a small tensor (pytorch/pytorch#86509) and 300 to 400 (#107667, #109888). torch 2.11
and later are built for CUDA 12.6 and later, which load kernels lazily.
"""

EAGER: Range = (1_001, 2_222)
"""With eager loading of all kernels, as before CUDA 11.7 or with ``CUDA_MODULE_LOADING=EAGER``.

Sources: an RTX 3090 (pytorch/pytorch#54564, #55277, clovaai/deep-text-recognition-benchmark#386); 1,343 on a V100
(Hugging Face's anatomy of a model's memory); measured on an H100, 1,259 bare and 1,805 to 1,841 in training.
"""


def context_bytes(
    capability: Capability | None,
    environment: Mapping[str, str] = os.environ,
    cuda: int | None = None,
) -> Range:
    """Return the least and the most bytes of a context on a GPU of a compute capability; None for any GPU.

    ``cuda`` is the major version of CUDA that torch was built for, 0 if it is unknown; None asks torch.
    """
    if cuda is None:
        from ..live import compat  # Imported here: a list of GPUs does not need torch.

        cuda = compat.CUDA
    known = CONTEXTS.get((capability, cuda)) or CONTEXTS.get((capability, 0))
    ranges = CONTEXTS.values() if known is None else [known]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if environment.get("CUDA_MODULE_LOADING") == "EAGER":
        low, high = EAGER
    return low * MIB, high * MIB


OTHERS = [(row["maker"], row["name"], int(row["gb"])) for row in _rows("other_devices.csv")]
"""Maker, name and GB of devices of AMD and Intel; MI250 and MI250X are two devices of 64 GB each."""

APPLE = re.compile(r"(?:apple\s*)?(m[1-9])\s*(pro|max|ultra)?(?:[\s,()-]*(\d+)\s*gi?b?\)?)?", re.IGNORECASE)

SMALL_MAC = 32
"""Up to this many GB, 2/3 of a Mac's memory is available to programs."""

OTHER_BRANDS = re.compile(r"amd|radeon|instinct|rx|intel|arc|datacentergpu|gpu|graphics")


class NotModelledWarning(UserWarning):
    """Warns that a result is for a device whose memory size is known but whose kernels are not modelled."""


@dataclass(frozen=True, slots=True)
class OtherDevice:
    """A device: its name, its memory in GB, and the bytes available to a program."""

    name: str
    maker: str
    gb: int
    usable_bytes: int

    @property
    def words(self) -> str:
        """A sentence on the device: known memory size, kernels not modelled."""
        return f"{self.maker} {self.name}: its memory size is known ({self.gb} GB), but its kernels are not modelled"

    def warn(self) -> None:
        """Warn that an answer counts tensors only, at the line that called this package."""
        warn(f"{self.words}; the answer counts tensors only", NotModelledWarning)


def other_device(name: object) -> OtherDevice | None:
    """Return the device of a name; None if unknown. Raises :class:`InputError` for a Mac whose name lacks its GB.

    >>> other_device("M2 Max 32GB").usable_bytes // 1024**2, other_device("AMD Instinct MI300X").gb
    (21845, 192)
    """
    if not isinstance(name, str):
        return None
    apple = APPLE.fullmatch(name.strip())
    if apple is not None:
        chip, kind, gb_text = apple.groups()
        model = chip.upper() + (f" {kind.capitalize()}" if kind else "")
        if gb_text is None:
            cure = f"which comes in several sizes; add yours, as in '{model} 32GB'"
            raise InputError(f"memory is {describe(name)}, {cure}")
        gb = int(gb_text)
        share = Fraction(2, 3) if gb <= SMALL_MAC else Fraction(3, 4)
        return OtherDevice(f"{model} {gb_text}GB", "Apple", gb, int(gb * GIB * share))
    wanted = _compact(name, OTHER_BRANDS)
    for maker, known, gb in OTHERS:
        compact = _compact(known, OTHER_BRANDS)
        if wanted in (compact, f"{compact}{gb}gb"):
            return OtherDevice(known, maker, gb, gb * GIB)
    return None
