"""cuDNN where the installed torch brings it: found among the packages and loaded by ctypes. CUDA is never begun."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

OLDEST = 90800
"""The first version that takes a card's properties in the place of a handle (cuDNN 9.8's release notes)."""


class CudnnError(Exception):
    """cuDNN is not there, or does not answer."""


@cache
def cudnn_path() -> Path | None:
    """The file of cuDNN beside the torch that is imported: of a package of NVIDIA's, or of torch itself."""
    if torch.version.cuda is None:
        return None
    site = Path(torch.__file__).parents[1]
    folders = (site / "nvidia" / "cudnn" / "lib", site / "torch" / "lib")
    found = [path for folder in folders for path in sorted(folder.glob("libcudnn.so.*"))]
    found += [folder / "cudnn64_9.dll" for folder in folders if (folder / "cudnn64_9.dll").exists()]
    return found[0] if found else None


@cache
def cudnn_library() -> ctypes.CDLL:
    """cuDNN loaded. Raises :class:`CudnnError` where there is none, or one that needs a card."""
    path = cudnn_path()
    if path is None:
        raise CudnnError("this torch is a CPU build" if torch.version.cuda is None else "this torch has no cuDNN")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise CudnnError(f"{path.name} cannot be loaded: {error}") from error
    library.cudnnGetVersion.restype = ctypes.c_size_t
    if library.cudnnGetVersion() < OLDEST:
        raise CudnnError(f"cuDNN {version_text(library.cudnnGetVersion())} cannot be queried without a GPU; 9.8 can")
    return library


def version_text(version: int) -> str:
    """A version's number in words.

    >>> version_text(92000)
    '9.20.0'
    """
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
