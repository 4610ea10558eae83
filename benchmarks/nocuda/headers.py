"""Prototypes of CUDA's C functions, read from the wheels' headers, and what a stub may return."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NOT_SUPPORTED = {
    "cudaError_t": 801, "CUresult": 801, "CUptiResult": 27, "cublasStatus_t": 15, "cudnnStatus_t": 3000,
    "cufftResult": 16, "curandStatus_t": 204, "cusolverStatus_t": 9, "cusparseStatus_t": 10,
}  # fmt: skip
"""Type of a status -> its code for an unsupported call (for curand, which has none, a type error)."""

RETURNS = "|".join([*NOT_SUPPORTED, "size_t", "void", "const char"])
PROTOTYPE = re.compile(
    rf"\b(?P<status>{RETURNS})(?:\s*\*\s*|\s+)(?:[A-Z]+\s+)*(?P<name>cu\w+)\s*\((?P<parameters>[^;{{]*)\)\s*;"
)

RENAMED = re.compile(r"^\s*#\s*define\s+(cu\w+)\s+(?:__CUDA_API_P\w+\()?(cu\w+)\)?\s*$", re.MULTILINE)

ALLOWED: dict[str, str] = {
    r"cublas([SDCZH]|Gemm|Lt)\w*": "its outputs are matrices on the device, where nothing is computed",
    r"cublas\w*dot\w*": (
        "torch has its result written to the device (PointerModeGuard in aten/src/ATen/native/cuda/Blas.cpp)"
    ),
    r"cudnn\w+(Forward|Backward|ForwardInference|ForwardTrainingEx|BackwardEx|BackwardData(_v8)?|BackwardWeights_v8)": (
        "its outputs are tensors on the device, where nothing is computed"
    ),
    r"cuLaunch(Cooperative)?Kernel(Ex)?": "launches a kernel, which does nothing",
    r"cuda(Host(Register|Unregister)|IpcCloseMemHandle)": "pins or unpins host memory, which changes no figure",
    r"cudaMemPool(SetAttribute|SetAccess|TrimTo)": "sets how a pool keeps memory; the pool here keeps none",
    r"cublasSetWorkspace_v2": "sets a workspace on the device, which nothing reads",
    r"cu(Stream|Event|Ctx|Init)\w*(Synchronize|Destroy(_v2)?|Record|Wait\w+|SetCurrent|PushCurrent_v2|Init)": (
        "waits for work, or orders it; all work is done when it is queried"
    ),
}
"""Names of functions that may return success without doing anything, although they take pointers -> the reason."""

REFUSED = re.compile(
    r"cublas\w*(nrm2|asum|amax|amin|rotg|rotmg|get|check|heuristic|version|query)\w*|cudaStreamBeginCapture\w*",
    re.IGNORECASE,
)
"""Rejected whatever `ALLOWED` says: cuBLAS functions that may write to the host, and graph capture."""


@dataclass(frozen=True)
class Prototype:
    """A function, its return type (a status or another one), and its parameters as written."""

    name: str
    status: str
    parameters: tuple[str, ...]

    @property
    def writes(self) -> bool:
        """Whether a parameter points to memory that the function could write.

        >>> Prototype("f", "CUresult", ("const float *x", "int n")).writes
        False
        >>> Prototype("f", "CUresult", ("const float *x", "int *n")).writes
        True
        """
        pointers = (parameter for parameter in self.parameters if re.search(r"[*\[]", parameter))
        return not all(re.match(r"\s*(const\b|\w+\s+const\s*\*)", pointer) for pointer in pointers)

    @property
    def takes_handle(self) -> bool:
        return any("cudnnHandle_t" in parameter for parameter in self.parameters)

    @property
    def does_nothing(self) -> bool:
        """Return whether success without any effect is a correct result."""
        if REFUSED.fullmatch(self.name) or self.status not in NOT_SUPPORTED:
            return False
        return not self.writes or any(re.fullmatch(pattern, self.name) for pattern in ALLOWED)


def read_prototypes(folders: Iterable[Path]) -> dict[str, Prototype]:
    """Return every function that the headers of some folders declare, by name and by the names that macros give it."""
    prototypes: dict[str, Prototype] = {}
    renamed: dict[str, str] = {}
    for path in sorted(path for folder in folders for path in folder.glob("cu*.h")):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", path.read_text(errors="replace"), flags=re.DOTALL)
        renamed.update(RENAMED.findall(text))
        text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
        for match in PROTOTYPE.finditer(text):
            parameters = tuple(" ".join(p.split()) for p in match["parameters"].split(","))
            prototypes[match["name"]] = Prototype(match["name"], match["status"], parameters)
    for name, symbol in renamed.items():
        if name in prototypes and symbol not in prototypes:
            prototypes[symbol] = Prototype(symbol, prototypes[name].status, prototypes[name].parameters)
    return prototypes
