"""Registry of GPUs: a GPU's nominal memory, and how much of it is available to a program.

Each GPU has three figures. The datasheet's: "24 GB" means 24 GiB, since memory is built in powers of 2 and the driver
confirms it (24,564 MiB; 24 * 1000**3 bytes would be 22,888). ``nvidia-smi``'s total. And what a program sees in
``torch.cuda.get_device_properties(0).total_memory``, after the driver and, where present, error correction have taken
their share; it varies slightly between drivers, and the table has the least published figure on Linux.

Sources: NVIDIA's datasheets for the memory, developer.nvidia.com/cuda-gpus for the compute capability, NVIDIA's
architecture whitepapers and datasheets for the multiprocessors (CUDA cores divided by those per SM: 64 in 6.0, 7.x,
8.0, 128 in 6.1, 8.6, 8.9, 9.0 and later); each GPU names the source of the other two, and of its peaks. The table is
``gpus.csv``, a line for each GPU.
"""

from __future__ import annotations

import csv
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from ..data.arguments import is_integer
from ..data.capability import Capability
from ..data.errors import InputError
from ..data.units import GIB, MIB, describe
from .other_devices import other_device

ARCHITECTURES = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell")

PRINTED = "printed by nvidia-smi and torch in public repositories (2022 to 2026)"
TABULATED = f"thundergolfer.com/blog/nvidia-gpu-memory-capacity for nvidia-smi; else {PRINTED}"
"""The sources of ``smi_mib`` and ``cuda_mib``."""
DATASHEET = "NVIDIA's datasheet alone"
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
    source: str = PRINTED
    peaks: Peaks | None = None
    multiprocessors: int | None = None

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
"""All GPUs by name; a form factor with peaks of its own is a GPU of its own."""

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
    "A100 40GB PCIe": "A100 PCIe 40GB",
    "A100 80GB PCIe": "A100 PCIe 80GB",
    "V100 16GB PCIe": "V100 PCIe 16GB",
    "V100 32GB PCIe": "V100 PCIe 32GB",
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
    known = f"similar names: {_names(near)}" if near else f"registered: {_names(GPUS.values())}"
    raise InputError(f"unknown GPU {describe(name)}; {known}")


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
    return context_bytes(None if card is None else card.compute_capability, uses_libraries)


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
    "nvidia|geforce|quadro|tesla|rtx|gtx|graphics|gpu|generation|blackwell|server|workstation|edition|"
    "hbm[0-9]e?|gddr[0-9]x?"
)
FORM_FACTOR = re.compile(r"sxm[2-5]?\b|pcie\b|max-?q\b")


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


def _read_table() -> None:
    """Register the GPUs of the table, a line each; an empty cell is None."""
    sources = {"printed": PRINTED, "tabulated": TABULATED, "datasheet": DATASHEET}
    text = Path(__file__).with_name("gpus.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        major, _, minor = row["compute_capability"].partition(".")
        counts = {name: int(row[name]) for name in ("smi_mib", "cuda_mib", "multiprocessors") if row[name]}
        first, also, rest = row["source"].partition(";")
        figures = {name: float(row[name]) for name in _FIGURES if row[name]}
        peaks = Peaks(**figures, source=row["peak_source"]) if figures else None
        capability, gb, source = (int(major), int(minor)), int(row["datasheet_gb"]), sources[first] + also + rest
        register_gpu(GPU(row["name"], row["architecture"], capability, gb, source=source, peaks=peaks, **counts))


_read_table()


Range = tuple[int, int]
"""The least and the most MiB."""

LAZY: dict[tuple[int, int], Range] = {
    (6, 0): (256, 616),
    (6, 1): (106, 616),
    (7, 0): (256, 616),
    (7, 5): (100, 616),
    (8, 0): (414, 2_048),
    (8, 6): (200, 990),
    (8, 9): (224, 990),
    (9, 0): (414, 1_220),
    (10, 0): (414, 1_220),
    (12, 0): (307, 1_220),
}
"""By compute capability, with lazy loading: the driver's part of a context, and the modules of loaded kernels.

The allocator never sees it. Figures are device memory minus the allocator's reserved bytes, where both were published:

- bare, after the first call: 106 MiB on a GPU of 7.92 GiB, a GTX 1070 or 1080 (BayraktarLab/cell2location#398), 256 on
  an RTX 3090 (invoke-ai/InvokeAI#9413), 426 on an RTX 6000 Ada (torch 2.10, CUDA 13: unslothai/unsloth-zoo#1053), 471
  on an RTX 4090 (3DTopia/Phidias-Diffusion#8), 414 on an A100 (awslabs/keys_values#92), 274 with a small tensor
  (pytorch/pytorch#86509), 300 to 400 (#107667, #109888);
- inference: 100 and 141 MiB on a T4 (hpcaitech/Open-Sora#697, FoundationVision/GenerateU#10), 197 on a GPU of 10.74 GiB
  (lllyasviel/FramePack#369), 200 to 220 on an RTX A4000 (DengKaiCQ/VGGT-Long#6), 224 on a GPU of 23.5 GiB (XChenZ/
  havatar#6), 420 on an L40S (stepfun-ai/Step-Video-T2V#8), 507 on an L40 (QwenLM/Qwen3-VL#2097), 501 to 512 on an A100
  (TianheWu/CoSeR#10, lianqi1008/Control-GIC#6, Kwai-Keye/Keye#11), 307 to 619 on an RTX 5090 (murong-xu/CADS#4,
  Wan-Video/Wan2.1#465, TrajectoryCrafter/TrajectoryCrafter#20), 616 of a server (LMCache/LMCache#4019);
- training: 124 to 137 MiB on a T4 (Linfeng-Tang/SeAFusion#27, tsugumi-sys/SA-ConvLSTM-Pytorch#22) and on the GPU of
  7.92 GiB, 349 on a GPU of 15.7 GiB (qingze-bai/VSmTrans#3), 522 on one of 23.65 GiB (pytorch/pytorch#16417), 880 to
  990 on an L40S, 1,210 to 1,220 on an H100 (milabench) and 1,106 there (aqlaboratory/openfold#481), 902 to 996 on an
  A100 (meta-pytorch/torchrec#3580), 1,133 (awslabs/keys_values#92), 1,430 to 2,048 there with the wheels of earlier
  years;
- all kernels loaded at once, as before CUDA 11.7 or with ``CUDA_MODULE_LOADING=EAGER``: 1,001 to 2,222 MiB on an RTX
  3090 (pytorch/pytorch#54564, #55277, clovaai/deep-text-recognition-benchmark#386), 1,343 on a V100 (Hugging Face's
  anatomy of a model's memory).

torch 2.11 and later are built for CUDA 12.6 and later, which load kernels lazily.

Measured on an H100 (torch 2.11, CUDA 13.0, driver 580; benchmarks/data/gpu_context_nvidia_h100*): bare 527 MiB; with
kernels of torch alone 619 to 637, with cuFFT 627, with cuSOLVER 717; 639 to 771 in training; with all kernels loaded at
once 1,259 bare and 1,805 to 1,841 in training.

Public figures exist for 6.1, 7.5, 8.0, 8.6, 8.9, 9.0 and 12.0. GPUs of 8.6 are assumed to need at most as much as 8.9,
Blackwell at most as much as Hopper; the oldest, for which current wheels have few kernels, as much as a data-centre
GPU.
"""

LAZY_CUDA_13: dict[tuple[int, int], Range] = {(9, 0): (526, 800)}
"""With torch built for CUDA 13, where that was measured: the most that was measured, and some room."""

EAGER: Range = (1_001, 2_222)
"""With eager loading of all kernels."""

WITHOUT_LIBRARIES = 640
"""The most for a step that uses neither cuBLAS, cuSOLVER nor cuDNN; their kernels account for the difference."""


def context_bytes(
    capability: Capability | None,
    uses_libraries: bool = True,
    environment: Mapping[str, str] = os.environ,
    cuda: int | None = None,
) -> Range:
    """Return the least and the most bytes of a context on a GPU of a compute capability; None for any GPU.

    ``cuda`` is the major version of CUDA that torch was built for, 0 if it is unknown; None asks torch.

    >>> [nbytes // MIB for nbytes in context_bytes((9, 0), cuda=12)]
    [414, 1220]
    >>> [nbytes // MIB for nbytes in context_bytes((9, 0), cuda=13)]
    [526, 800]
    >>> [nbytes // MIB for nbytes in context_bytes((9, 0), environment={"CUDA_MODULE_LOADING": "EAGER"})]
    [1001, 2222]
    """
    if cuda is None:
        from ..live import versions  # Imported here: a list of GPUs does not need torch.

        cuda = versions.CUDA
    known = LAZY | (LAZY_CUDA_13 if cuda == 13 else {})
    ranges = [known[capability]] if capability in known else LAZY.values()
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if environment.get("CUDA_MODULE_LOADING") == "EAGER":
        low, high = EAGER
    if not uses_libraries and high < EAGER[1]:
        high = min(high, WITHOUT_LIBRARIES)
    return low * MIB, high * MIB


LIBRARY_OPERATORS = (
    *("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "_int_mm", "linear"),
    *("_scaled_mm", "_scaled_mm_v2", "_grouped_mm", "conv_tbc"),
    *("convolution", "convolution_backward", "_cudnn_rnn", "_cudnn_rnn_backward", "cudnn_batch_norm"),
    *("native_multi_head_attention", "_transformer_encoder_layer_fwd"),
    *("cholesky_inverse", "cholesky_solve", "geqrf", "lu_unpack", "ormqr", "orgqr", "triangular_solve"),
)
"""Operators that run in cuBLAS, cuSOLVER or cuDNN, besides those with ``linalg`` in their name.

Fused attention has torch's own kernels.
"""


def is_of_a_library(operator: str) -> bool:
    """Whether an operator runs in cuBLAS, cuSOLVER or cuDNN.

    >>> is_of_a_library("aten::addmm"), is_of_a_library("aten::convolution.default"), is_of_a_library("aten::relu")
    (True, True, False)
    """
    name = operator.rpartition("::")[2].split(".")[0]
    return name in LIBRARY_OPERATORS or "linalg_" in name
