"""Find the files of weights in a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .errors import InputError
from .units import describe, one_line

SUFFIXES = (".safetensors", ".gguf", ".onnx")
INDEX = ".safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
"""Suffixes of torch's own checkpoints."""

SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.\w+")
"""A shard's name, its number and how many there are."""


def has_weights(folder: Path) -> bool:
    """Return whether a path is a folder with files of weights."""
    return folder.is_dir() and any(name.endswith(SUFFIXES) for name in _names(folder))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise InputError(f"{one_line(str(folder))} cannot be read: {error.strerror or error}") from None


def files_of(folder: Path) -> tuple[Path, ...]:
    """Return a folder's one model: its index, its file or its shards. Raises :class:`InputError` if there are several.

    An index comes before files, safetensors before GGUF and ONNX, and a file named ``model`` before its variants.
    """
    names = _names(folder)
    for suffix in (INDEX, *SUFFIXES):
        found = [name for name in names if name.endswith(suffix)]
        if f"model{suffix}" in found:
            found = [f"model{suffix}"]
        if len(found) > 1 and (suffix == ".onnx" or not _are_shards(found)):
            listed = ", ".join(map(describe, found[:10]))
            raise InputError(f"{one_line(str(folder))} has weights of several models; pass one of {listed}")
        if found:
            return tuple(folder / name for name in found)
    inner = [name for name in names if has_weights(folder / name)]
    cure = f"; its folders {', '.join(map(describe, inner[:10]))} have some" if inner else ""
    if any(name.endswith(PICKLED) for name in names):
        cure = "; a pickle has no header: load it with torch.load(path, weights_only=True)"
    raise InputError(f"{one_line(str(folder))} has no {', '.join(SUFFIXES)} files{cure}")


def _are_shards(names: list[str]) -> bool:
    """Return whether files are all the shards of one model."""
    parts = [SHARD_NAME.fullmatch(name) for name in names]
    numbers = [(part[1], int(part[3]), int(part[2])) for part in parts if part is not None]
    first = numbers[0] if len(numbers) == len(names) else ("", 0, 0)
    return numbers == [(first[0], len(names), number) for number in range(1, len(names) + 1)]
