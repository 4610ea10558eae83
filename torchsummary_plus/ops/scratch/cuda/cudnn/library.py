"""Find the cuDNN that the installed torch ships and load it with ctypes, without initialising CUDA."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

OLDEST = 90800
"""First version that accepts device properties instead of a handle (cuDNN 9.8's release notes)."""


WITHOUT_VOLTA = 91100
"""First version without the kernels of GPUs before compute capability 7.5 (cuDNN 9.11's release notes).

torch's wheels for CUDA 12.6, the last that run on such GPUs, keep 9.10 (pytorch/pytorch#157517).
"""
TURING = (7, 5)


class CudnnError(Exception):
    """cuDNN is missing or gives no answer."""


override: list[Path] = []
"""The path of the cuDNN library, in a process without torch (:mod:`.worker`)."""


@cache
def cudnn_path() -> Path | None:
    """Return the cuDNN library of the imported torch, from NVIDIA's package or torch's own; None if there is none."""
    if override:
        return override[0]
    import torch

    if torch.version.cuda is None:
        return None
    site = Path(torch.__file__).parents[1]
    folders = (site / "nvidia" / "cudnn" / "lib", site / "torch" / "lib")
    libraries = [path for folder in folders for path in sorted(folder.glob("libcudnn.so.*"))]
    libraries += [folder / "cudnn64_9.dll" for folder in folders if (folder / "cudnn64_9.dll").exists()]
    return libraries[0] if libraries else None


@cache
def cudnn_library() -> ctypes.CDLL:
    """Load cuDNN. Raises :class:`CudnnError` if there is none, or only one that needs a GPU."""
    path = cudnn_path()
    if path is None:
        raise CudnnError("this torch is a CPU build or has no cuDNN (a CUDA build can be queried without a GPU)")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise CudnnError(f"{path.name} cannot be loaded: {error}") from error
    library.cudnnGetVersion.restype = ctypes.c_size_t
    if library.cudnnGetVersion() < OLDEST:
        raise CudnnError(
            f"cuDNN {version_text(library.cudnnGetVersion())} cannot be queried without a GPU (9.8 and later can)"
        )
    return library


def missing_kernels(capability: tuple[int, int]) -> str:
    """Return why this cuDNN cannot be queried for a GPU that it has no kernels for; "" if it has.

    Its heuristics would still answer, but with the workspaces of kernels that a build for that GPU does not run.
    """
    version = cudnn_library().cudnnGetVersion()
    if capability >= TURING or version < WITHOUT_VOLTA:
        return ""
    known = ".".join(map(str, capability))
    return f"cuDNN {version_text(version)} has no kernels for compute capability {known} (9.10, of CUDA 12.6, has)"


def version_text(version: int) -> str:
    """Return a version number as text.

    >>> version_text(92000)
    '9.20.0'
    """
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
