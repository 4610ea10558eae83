"""Bounded reading of files from others: regular files only, so that no read waits on a pipe or runs without end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from .errors import InputError
from .units import one_line


@contextmanager
def opened(path: Path, hint: str = "") -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file and yield it with its size in bytes; ``hint`` ends the message if it does not exist.

    Raises :class:`InputError` for a pipe, a device or a folder, and for a file that cannot be read.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _unreadable(path, f"{error.strerror}{hint}") from None
    except (OSError, ValueError) as error:  # A name with a NUL, or with characters that no file has, is a ValueError.
        raise _unreadable(path, getattr(error, "strerror", None) or "its name is not valid") from None
    _check(status, path)  # Before opening: opening a device can have effects of its own.
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            _check(status, path)  # Again: the name may have been given to another file since.
            yield file, status.st_size
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None


def content(path: Path, most: int, cure: str = "", hint: str = "") -> bytes:
    """Return a file's bytes. Raises :class:`InputError`, ending in ``cure``, if there are more than ``most``."""
    with opened(path, hint) as (file, size):
        if size > most:
            raise InputError(f"{one_line(str(path))} has {size:,} bytes; the limit is {most:,}{cure}")
        data = file.read(size + 1)
    if len(data) > size:
        raise _unreadable(path, "it is longer than its size, and grows while it is read")
    return data


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check(status: os.stat_result, path: Path) -> None:
    if not S_ISREG(status.st_mode):
        raise _unreadable(path, "it is not a regular file")


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(f"{one_line(str(path))} cannot be read: {why}")
