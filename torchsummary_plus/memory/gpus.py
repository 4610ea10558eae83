"""Registry of GPUs: a GPU's nominal memory, and how much of it is available to a program.

Each GPU has three figures. The datasheet's: "24 GB" means 24 GiB, since memory is built in powers of 2 and the driver
confirms it (24,564 MiB; 24 * 1000**3 bytes would be 22,888). ``nvidia-smi``'s total. And what a program sees in
``torch.cuda.get_device_properties(0).total_memory``, after the driver and, where present, error correction have taken
their share; it varies slightly between drivers, and the table has the least published figure on Linux.

Sources: NVIDIA's datasheets for the memory, developer.nvidia.com/cuda-gpus for the compute capability; each GPU names
the source of the other two.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from ..data.capability import Capability
from ..data.errors import InputError
from ..data.integers import is_integer
from ..data.units import GIB, MIB, describe
from .contexts import any_context_bytes, context_bytes
from .other_devices import other_device

ARCHITECTURES = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell")

PRINTED = "printed by nvidia-smi and torch in public repositories (2022 to 2026)"
TABULATED = f"thundergolfer.com/blog/nvidia-gpu-memory-capacity for nvidia-smi; else {PRINTED}"
"""The sources of ``smi_mib`` and ``cuda_mib``."""
DATASHEET = "NVIDIA's datasheet alone"
"""The source for a GPU without a published total: 9/10 of the datasheet's memory is assumed to be available, less than
on any GPU with a published total."""


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU: the datasheet's GB, and the totals of nvidia-smi and CUDA in MiB (None without a source)."""

    name: str
    architecture: str
    compute_capability: Capability
    datasheet_gb: int
    smi_mib: int | None = None
    cuda_mib: int | None = None
    source: str = PRINTED

    @property
    def datasheet_bytes(self) -> int:
        """The GPU's nominal memory in bytes.

        >>> find_gpu("RTX 4090").datasheet_bytes == 24 * 1024**3
        True
        """
        return self.datasheet_gb * GIB

    @property
    def usable_bytes(self) -> int:
        """Bytes available to a program, including its CUDA context: the smallest known figure.

        >>> find_gpu("RTX 4090").usable_bytes // 1024**2
        24081
        """
        known = self.cuda_mib or self.smi_mib
        if known is None:
            return self.datasheet_bytes * 9 // 10 if self.source == DATASHEET else self.datasheet_bytes
        return known * MIB

    @property
    def context_bytes(self) -> tuple[int, int]:
        """The least and the most bytes of the CUDA context."""
        return context_bytes(self.compute_capability)


GPUS: dict[str, GPU] = {}
"""All GPUs by name."""

COMMON = ("RTX 4060", "RTX 4070", "T4", "RTX 4090", "RTX 5090", "A100 40GB", "L40S", "H100 SXM")
"""A common GPU of each size from 8 to 80 GB."""

ALIASES: dict[str, str] = {
    "H100": "H100 SXM",
    "H100 80GB": "H100 SXM",
    "GH200": "GH200 96GB",
    "GH200 480GB": "GH200 96GB",
    "RTX 3080": "RTX 3080 10GB",
    "RTX 3060": "RTX 3060 12GB",
    "RTX 3050": "RTX 3050 8GB",
    "RTX 2060": "RTX 2060 6GB",
    "GTX 1060": "GTX 1060 6GB",
    "RTX A2000": "RTX A2000 6GB",
    "RTX 3080 Laptop": "RTX 3080 Laptop 8GB",
    "GB300": "B300",
    "DGX Spark": "GB10",
}
"""Names for one GPU among several, or that include the memory of the CPU next to it."""


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
    raise InputError(
        f"unknown GPU {describe(name)}; similar names: {_names(near)}"
        if near
        else f"unknown GPU {describe(name)}; registered: {_names(GPUS.values())}"
    )


def named_gpu(memory: int | float | str) -> GPU | None:
    """Return the GPU that a ``memory=`` argument names, the first of several sizes; None for an amount of memory.

    >>> named_gpu("H200").compute_capability, named_gpu("24GiB")
    ((9, 0), None)
    """
    candidates = _candidates(memory) if isinstance(memory, str) and SIZE.fullmatch(memory) is None else []
    return candidates[0] if candidates else None


def context_range(memory: int | float | str, uses_libraries: bool = True, gpu: str = "") -> tuple[int, int]:
    """Return the least and the most bytes of a CUDA context, on the GPU named by ``memory`` or ``gpu``, else on any.

    >>> [nbytes // 1024**2 for nbytes in context_range("RTX 4090")]
    [224, 990]
    """
    card = named_gpu(memory) or named_gpu(gpu)
    if card is None:
        return any_context_bytes(uses_libraries)
    return context_bytes(card.compute_capability, uses_libraries)


FEWEST = 1024
"""Numbers below this are refused, because GB were probably meant."""


def parse_memory(value: int | float | str) -> int:
    """Return the bytes in a number, in text with a unit, or available on a device given by name.

    GiB is 1024**3 bytes and GB or G 1000**3; the same for K, M and T. Raises :class:`InputError` for anything else.

    >>> parse_memory("24GiB"), parse_memory("24 GB"), parse_memory("RTX 4090")
    (25769803776, 24000000000, 25250758656)
    """
    nbytes = _size(value) if isinstance(value, str) else value
    is_bare = not isinstance(value, str) or value.strip().isdecimal()
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


def _size(text: str) -> int | None:
    """Return the bytes that a text means, or None."""
    match = SIZE.fullmatch(text)
    if match is not None:
        number, prefix, binary = match[1], match[2] or "", match[3]
        unit = int((1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " "))
        return round(float(number) * unit)
    candidates = _candidates(text)
    if len(candidates) > 1:
        return find_gpu(text).usable_bytes
    if candidates:
        return candidates[0].usable_bytes
    other = other_device(text)
    if other is not None:
        return other.usable_bytes
    return int(text) if re.fullmatch(r"\s*[0-9]+\s*", text) else None


BRANDS = re.compile(
    "nvidia|geforce|quadro|tesla|rtx|gtx|graphics|gpu|generation|blackwell|server|workstation|edition|maxq|"
    "hbm[0-9]e?|gddr[0-9]x?"
)
FORM_FACTOR = re.compile(r"sxm[2-5]?\b|pcie\b")


@cache
def _compact(name: str) -> str:
    """Return a name without case, blanks and brand words: "a10080gb" for "NVIDIA A100 80GB"."""
    return BRANDS.sub("", re.sub(r"[^a-z0-9]", "", name.lower())).replace("gib", "gb").replace("mobile", "laptop")


@cache
def _spellings(gpu: GPU) -> tuple[str, str]:
    """Return a GPU's compact name without and with its memory."""
    memory = f"{gpu.datasheet_gb}gb"
    model = _compact(gpu.name).removesuffix(memory)
    return model, model + memory


def _candidates(name: str) -> list[GPU]:
    """Return the GPUs a name may mean; its form factor counts only if GPUs differ by it."""
    aliases = {_compact(alias): GPUS[meant] for alias, meant in ALIASES.items()}
    for wanted in (_compact(name), _compact(FORM_FACTOR.sub("", name.lower()))):
        if wanted in aliases:
            return [aliases[wanted]]
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


GpuRow = tuple[str, str, tuple[int, int], int, int | None, int | None, str]

KNOWN: tuple[GpuRow, ...] = (
    ("K80", "Kepler", (3, 7), 12, 11_441, None, PRINTED),
    ("M40 12GB", "Maxwell", (5, 2), 12, None, None, DATASHEET),
    ("M40 24GB", "Maxwell", (5, 2), 24, None, None, DATASHEET),
    ("M60", "Maxwell", (5, 2), 8, None, None, DATASHEET),
    ("Jetson Nano", "Maxwell", (5, 3), 4, None, None, DATASHEET),
    ("P4", "Pascal", (6, 1), 8, None, None, DATASHEET),
    ("P40", "Pascal", (6, 1), 24, None, None, DATASHEET),
    ("GTX 1050 Ti", "Pascal", (6, 1), 4, None, None, DATASHEET),
    ("GTX 1060 3GB", "Pascal", (6, 1), 3, None, None, DATASHEET),
    ("GTX 1060 6GB", "Pascal", (6, 1), 6, None, None, DATASHEET),
    ("GTX 1070", "Pascal", (6, 1), 8, None, None, DATASHEET),
    ("GTX 1070 Ti", "Pascal", (6, 1), 8, None, None, DATASHEET),
    ("GTX 1080", "Pascal", (6, 1), 8, None, None, DATASHEET),
    ("GTX 1080 Ti", "Pascal", (6, 1), 11, 11_264, 11_172, PRINTED),
    ("P100", "Pascal", (6, 0), 16, 16_384, 16_276, PRINTED),
    ("V100 16GB", "Volta", (7, 0), 16, 16_384, 16_130, PRINTED),
    ("V100 32GB", "Volta", (7, 0), 32, 32_768, 32_494, PRINTED),
    ("TITAN V", "Volta", (7, 0), 12, None, 12_064, PRINTED),
    ("T4", "Turing", (7, 5), 16, 15_360, 14_913, TABULATED),
    ("TITAN RTX", "Turing", (7, 5), 24, 24_576, 24_212, PRINTED),
    ("GTX 1650", "Turing", (7, 5), 4, None, None, DATASHEET),
    ("GTX 1650 SUPER", "Turing", (7, 5), 4, None, None, DATASHEET),
    ("GTX 1650 Ti", "Turing", (7, 5), 4, None, None, DATASHEET),
    ("GTX 1660", "Turing", (7, 5), 6, None, None, DATASHEET),
    ("GTX 1660 SUPER", "Turing", (7, 5), 6, None, None, DATASHEET),
    ("GTX 1660 Ti", "Turing", (7, 5), 6, None, None, DATASHEET),
    ("RTX 2060 6GB", "Turing", (7, 5), 6, 6_144, 5_918, PRINTED),
    ("RTX 2060 12GB", "Turing", (7, 5), 12, None, None, DATASHEET),
    ("RTX 2060 SUPER", "Turing", (7, 5), 8, None, None, DATASHEET),
    ("RTX 2070 SUPER", "Turing", (7, 5), 8, None, None, DATASHEET),
    ("RTX 2080", "Turing", (7, 5), 8, None, None, DATASHEET),
    ("RTX 2080 SUPER", "Turing", (7, 5), 8, None, None, DATASHEET),
    ("Jetson Xavier NX 8GB", "Volta", (7, 2), 8, None, None, DATASHEET),
    ("Jetson AGX Xavier 32GB", "Volta", (7, 2), 32, None, None, DATASHEET),
    ("RTX 2070", "Turing", (7, 5), 8, 8_192, None, PRINTED),
    ("RTX 2080 Ti", "Turing", (7, 5), 11, 11_264, 10_825, PRINTED),
    ("Quadro RTX 8000", "Turing", (7, 5), 48, None, 48_380, PRINTED),
    ("A10", "Ampere", (8, 6), 24, 23_028, None, TABULATED),
    ("A10G", "Ampere", (8, 6), 24, 23_028, 22_587, PRINTED),
    ("A30", "Ampere", (8, 0), 24, 24_576, 24_164, PRINTED),
    ("A40", "Ampere", (8, 6), 48, 46_068, 45_416, PRINTED),
    ("A100 40GB", "Ampere", (8, 0), 40, 40_960, 40_441, TABULATED),
    ("A100 80GB", "Ampere", (8, 0), 80, 81_920, 81_038, TABULATED),
    ("RTX A4000", "Ampere", (8, 6), 16, 16_376, 15_984, f"{PRINTED}; DengKaiCQ/VGGT-Long#6"),
    ("RTX A5000", "Ampere", (8, 6), 24, 24_564, 24_248, PRINTED),
    ("RTX A6000", "Ampere", (8, 6), 48, 49_140, 48_676, PRINTED),
    ("A2", "Ampere", (8, 6), 16, None, None, DATASHEET),
    ("A16", "Ampere", (8, 6), 16, None, None, DATASHEET),
    ("A800", "Ampere", (8, 0), 80, None, None, DATASHEET),
    ("RTX A2000 6GB", "Ampere", (8, 6), 6, None, None, DATASHEET),
    ("RTX A2000 12GB", "Ampere", (8, 6), 12, None, None, DATASHEET),
    ("RTX A4500", "Ampere", (8, 6), 20, None, None, DATASHEET),
    ("Jetson Orin Nano 4GB", "Ampere", (8, 7), 4, None, None, DATASHEET),
    ("Jetson Orin Nano 8GB", "Ampere", (8, 7), 8, None, None, DATASHEET),
    ("Jetson Orin NX 8GB", "Ampere", (8, 7), 8, None, None, DATASHEET),
    ("Jetson Orin NX 16GB", "Ampere", (8, 7), 16, None, None, DATASHEET),
    ("Jetson AGX Orin 32GB", "Ampere", (8, 7), 32, None, None, DATASHEET),
    ("Jetson AGX Orin 64GB", "Ampere", (8, 7), 64, None, None, DATASHEET),
    ("RTX 3050 6GB", "Ampere", (8, 6), 6, None, None, DATASHEET),
    ("RTX 3050 8GB", "Ampere", (8, 6), 8, None, None, DATASHEET),
    ("RTX 3050 Laptop", "Ampere", (8, 6), 4, None, None, DATASHEET),
    ("RTX 3050 Ti Laptop", "Ampere", (8, 6), 4, None, None, DATASHEET),
    ("RTX 3060 Laptop", "Ampere", (8, 6), 6, None, None, DATASHEET),
    ("RTX 3070 Laptop", "Ampere", (8, 6), 8, None, None, DATASHEET),
    ("RTX 3070 Ti Laptop", "Ampere", (8, 6), 8, None, None, DATASHEET),
    ("RTX 3080 Laptop 8GB", "Ampere", (8, 6), 8, None, None, DATASHEET),
    ("RTX 3080 Laptop 16GB", "Ampere", (8, 6), 16, None, None, DATASHEET),
    ("RTX 3080 Ti Laptop", "Ampere", (8, 6), 16, None, None, DATASHEET),
    ("RTX 3060 8GB", "Ampere", (8, 6), 8, None, None, DATASHEET),
    ("RTX 3060 Ti", "Ampere", (8, 6), 8, None, None, DATASHEET),
    ("RTX 3070 Ti", "Ampere", (8, 6), 8, None, None, DATASHEET),
    ("RTX 3060 12GB", "Ampere", (8, 6), 12, 12_288, 11_910, PRINTED),
    ("RTX 3070", "Ampere", (8, 6), 8, 8_192, 7_753, PRINTED),
    ("RTX 3080 10GB", "Ampere", (8, 6), 10, 10_240, 10_002, PRINTED),
    ("RTX 3080 12GB", "Ampere", (8, 6), 12, None, 12_117, PRINTED),
    ("RTX 3080 Ti", "Ampere", (8, 6), 12, 12_288, 11_910, PRINTED),
    ("RTX 3090", "Ampere", (8, 6), 24, 24_576, 24_260, PRINTED),
    ("RTX 3090 Ti", "Ampere", (8, 6), 24, 24_564, 24_110, PRINTED),
    ("L4", "Ada", (8, 9), 24, 23_034, 22_563, TABULATED),
    ("L40", "Ada", (8, 9), 48, 46_068, 45_465, f"{PRINTED}; QwenLM/Qwen3-VL#2097"),
    ("L40S", "Ada", (8, 9), 48, 46_068, 45_495, TABULATED),
    ("RTX 6000 Ada", "Ada", (8, 9), 48, 49_140, 48_497, PRINTED),
    ("L20", "Ada", (8, 9), 48, None, None, DATASHEET),
    ("RTX 2000 Ada", "Ada", (8, 9), 16, None, None, DATASHEET),
    ("RTX 4000 Ada", "Ada", (8, 9), 20, None, None, DATASHEET),
    ("RTX 4500 Ada", "Ada", (8, 9), 24, None, None, DATASHEET),
    ("RTX 5000 Ada", "Ada", (8, 9), 32, None, None, DATASHEET),
    ("RTX 4050 Laptop", "Ada", (8, 9), 6, None, None, DATASHEET),
    ("RTX 4060 Laptop", "Ada", (8, 9), 8, None, None, DATASHEET),
    ("RTX 4070 Laptop", "Ada", (8, 9), 8, None, None, DATASHEET),
    ("RTX 4080 Laptop", "Ada", (8, 9), 12, None, None, DATASHEET),
    ("RTX 4090 Laptop", "Ada", (8, 9), 16, None, None, DATASHEET),
    ("RTX 4070 SUPER", "Ada", (8, 9), 12, None, None, DATASHEET),
    ("RTX 4060", "Ada", (8, 9), 8, 8_188, 7_807, PRINTED),
    ("RTX 4060 Ti 8GB", "Ada", (8, 9), 8, 8_188, 7_806, PRINTED),
    ("RTX 4060 Ti 16GB", "Ada", (8, 9), 16, 16_380, None, PRINTED),
    ("RTX 4070", "Ada", (8, 9), 12, 12_282, 11_994, PRINTED),
    ("RTX 4070 Ti", "Ada", (8, 9), 12, 12_282, 12_007, PRINTED),
    ("RTX 4070 Ti SUPER", "Ada", (8, 9), 16, 16_376, 16_069, PRINTED),
    ("RTX 4080", "Ada", (8, 9), 16, 16_376, 16_049, PRINTED),
    ("RTX 4080 SUPER", "Ada", (8, 9), 16, 16_376, 15_944, PRINTED),
    ("RTX 4090", "Ada", (8, 9), 24, 24_564, 24_081, PRINTED),
    ("H100 SXM", "Hopper", (9, 0), 80, 81_559, 81_079, TABULATED),
    ("H100 PCIe", "Hopper", (9, 0), 80, 81_559, 81_008, PRINTED),
    ("H100 NVL", "Hopper", (9, 0), 94, 95_830, 95_232, f"{PRINTED}; ali-vilab/VACE#56"),
    ("H200", "Hopper", (9, 0), 141, 143_771, 143_156, TABULATED),
    ("GH200 96GB", "Hopper", (9, 0), 96, 97_871, None, PRINTED),
    ("H20", "Hopper", (9, 0), 96, None, None, DATASHEET),
    ("H800", "Hopper", (9, 0), 80, None, None, DATASHEET),
    ("GB200", "Blackwell", (10, 0), 186, 189_471, None, PRINTED),
    ("B300", "Blackwell", (10, 3), 288, None, None, DATASHEET),
    ("GB10", "Blackwell", (12, 1), 128, None, None, DATASHEET),
    ("Jetson AGX Thor", "Blackwell", (11, 0), 128, None, None, DATASHEET),
    ("RTX 5060 Laptop", "Blackwell", (12, 0), 8, None, None, DATASHEET),
    ("RTX 5070 Laptop", "Blackwell", (12, 0), 8, None, None, DATASHEET),
    ("RTX 5070 Ti Laptop", "Blackwell", (12, 0), 12, None, None, DATASHEET),
    ("RTX 5080 Laptop", "Blackwell", (12, 0), 16, None, None, DATASHEET),
    ("RTX 5090 Laptop", "Blackwell", (12, 0), 24, None, None, DATASHEET),
    ("RTX 5060", "Blackwell", (12, 0), 8, None, None, DATASHEET),
    ("RTX 5050", "Blackwell", (12, 0), 8, None, None, DATASHEET),
    ("B200", "Blackwell", (10, 0), 180, 183_359, 182_631, PRINTED),
    ("RTX PRO 6000", "Blackwell", (12, 0), 96, 97_887, 97_250, PRINTED),
    ("RTX 5060 Ti 8GB", "Blackwell", (12, 0), 8, 8_151, None, PRINTED),
    ("RTX 5060 Ti 16GB", "Blackwell", (12, 0), 16, 16_311, 15_848, PRINTED),
    ("RTX 5070", "Blackwell", (12, 0), 12, 12_227, None, PRINTED),
    ("RTX 5070 Ti", "Blackwell", (12, 0), 16, 16_303, None, PRINTED),
    ("RTX 5080", "Blackwell", (12, 0), 16, 16_303, 15_840, PRINTED),
    ("RTX 5090", "Blackwell", (12, 0), 32, 32_607, 32_102, PRINTED),
)
"""Name, architecture, compute capability, datasheet GB, nvidia-smi's and CUDA's totals in MiB, source of these two."""

for row in KNOWN:
    register_gpu(GPU(*row))
