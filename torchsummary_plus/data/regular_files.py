"""Reading of files from others: regular files only, so that no read waits on a pipe or runs without end.

JSON has no duplicate keys, and one kind of error for whatever is wrong with it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from .errors import InputError
from .units import describe, one_line


def opened(path: Path, hint: str = "") -> BinaryIO:
    """Open a regular file; ``hint`` ends the message if it does not exist.

    Raises :class:`InputError` for a pipe, a device or a folder, and for a file that cannot be opened.
    """
    try:
        if path.is_file() or not path.exists():  # Before opening: opening a device can have effects of its own.
            return path.open("rb")
        why = "it is not a regular file"
    except (FileNotFoundError, NotADirectoryError) as error:
        why = f"{error.strerror}{hint}"
    except (OSError, ValueError) as error:  # A name with a NUL, or with characters that no file has, is a ValueError.
        why = getattr(error, "strerror", None) or "its name is not valid"
    raise InputError(f"{one_line(str(path))} cannot be read: {why}")


def content(path: Path, most: int, cure: str = "", hint: str = "") -> bytes:
    """Return a file's bytes. Raises :class:`InputError`, ending in ``cure``, if there are more than ``most``."""
    with opened(path, hint) as file:
        size = os.fstat(file.fileno()).st_size
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
