"""Reading of files from others: regular files only, so that no read waits on a pipe or runs without end.

JSON has no duplicate keys, and one kind of error for whatever is wrong with it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

from .errors import InputError
from .units import describe, one_line


@contextmanager
def opened(path: Path, hint: str = "") -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file and yield it with its size in bytes; ``hint`` ends the message if it does not exist.

    Raises :class:`InputError` for a pipe, a device or a folder, and for a file that cannot be read.
    """
    unreadable = f"{one_line(str(path))} cannot be read"
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{unreadable}: {error.strerror}{hint}") from None
    except (OSError, ValueError) as error:  # A name with a NUL, or with characters that no file has, is a ValueError.
        raise InputError(f"{unreadable}: {getattr(error, 'strerror', None) or 'its name is not valid'}") from None
    if not S_ISREG(status.st_mode):  # Before opening: opening a device can have effects of its own.
        raise InputError(f"{unreadable}: it is not a regular file")
    try:
        with path.open("rb") as file:
            yield file, status.st_size
    except OSError as error:
        raise InputError(f"{unreadable}: {error.strerror or error}") from None


def content(path: Path, most: int, cure: str = "", hint: str = "") -> bytes:
    """Return a file's bytes. Raises :class:`InputError`, ending in ``cure``, if there are more than ``most``."""
    with opened(path, hint) as (file, size):
        if size > most:
            raise InputError(f"{one_line(str(path))} has {size:,} bytes; the limit is {most:,}{cure}")
        return file.read(size)


def parsed(text: str) -> Any:
    """Return what a JSON text holds. Raises ValueError for one that is malformed, too deep or repeats a key."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parsed_object(data: bytes) -> dict[str, Any]:
    """Return the object that a JSON file in UTF-8 holds. Raises ValueError for anything else."""
    value = parsed(data.decode("utf-8-sig"))
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has the key {describe(twice)} more than once")
    return found
