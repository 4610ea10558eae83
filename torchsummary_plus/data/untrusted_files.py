"""Files from others: only regular ones are read, so that no read waits on a pipe or runs without end.

JSON has no duplicate keys, and one kind of error for whatever is wrong with it. transformers trusts a ``config.json``:
entries name repositories and files to load, and counts become loops and lists. Those are refused or bounded here, and
code that runs with one may not connect anywhere.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
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


MOST_BYTES = 10_000_000  # Maximum size of a config.json in bytes.

LEFT_OUT = ("auto_map", "trust_remote_code", "quantization_config")
"""Entries that name code to run, or how weights are packed; at any depth they are left out."""

LOADS = ("use_pretrained_backbone", "pretrained", "checkpoint_path", "use_kernels", "kernel_config")
"""Entries that load weights or kernels unless they are false."""

NAMES = ("backbone", "architecture")
"""Entries whose names may be those of timm's and transformers' own models; others are repositories and files."""

IMPLEMENTATION = re.compile(r"_?\w+_implementation(_internal)?")
"""Entries that choose an implementation by name; names with a slash are kernels of the Hub."""

MOST_DEPTH = 6  # Maximum depth of nested objects, which are the configs of a model's parts.
MOST_ENTRIES = 100_000  # Maximum number of entries of an object or array, and of labels.
MODULES_OF_A_LAYER = 100  # Modules that a layer of each kind counts for, before any is built; most have 5 to 40.

LAYERS = re.compile(
    r"(^|_)(n|num|number)_\w*(layer|block|stage|level|flow|group)s?(_|$)"
    r"|(^|_)(layers|(?<!max_)(?<!min_)depths?|blocks|cycles|(layer|block|group)_num)(_per_|$)"
)
"""Entries that count layers; each item of an array does."""

LABELS = re.compile(r"(^|_)num_(labels|classes)$")

MOST_COUNT = 1_000_000  # Maximum of an integer that is not one of ``LARGE``: it may be the length of a loop.

LARGE = re.compile(r"theta|base|seed|ids?$|index|length|position|token|param|size|bytes|freq|dim|hidden|intermediate")
"""Entries that may be larger: sizes of tensors, which are not allocated, and numbers that count nothing."""


def is_config(path: str | Path) -> bool:
    """Return whether a path is a ``config.json``, or a folder that contains one."""
    here = Path(path)
    return (here.name == "config.json" and here.is_file()) or (here / "config.json").is_file()


def quantisation(entries: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and settings of the quantisation that a config, or one of its parts, asks for; "" for none."""
    for part in (entries, *(part for part in entries.values() if isinstance(part, Mapping))):
        for name in ("quantization_config", "quantization"):
            settings = part.get(name)
            if isinstance(settings, Mapping):
                return name, settings
    return "", {}


def checked(entries: Mapping[str, Any], most_modules: int, depth: int = 0) -> dict[str, Any]:
    """Return a config without what would run code. Raises :class:`InputError` for what is refused, by its name."""
    found = {}
    for name, value in entries.items():
        # Without the package of flash attention, torch's own attention is used.
        is_flash = IMPLEMENTATION.fullmatch(name) and isinstance(value, str) and value.startswith("flash_")
        if name not in LEFT_OUT and not is_flash:
            found[name] = _entry(name, value, most_modules, depth)
    return found


def _entry(name: str, value: Any, most_modules: int, depth: int) -> Any:
    if name in LOADS and value:
        raise InputError(f"{name} is {describe(value)}, which loads weights or code; pass {name}={type(value)()!r}")
    names = value.values() if isinstance(value, Mapping) else [value]
    for word in names if name in NAMES or IMPLEMENTATION.fullmatch(name) else ():
        if isinstance(word, str) and re.search(r"[/\\:@]|\.\.", word):
            raise InputError(f"{name} is {describe(word)}, a repository or file: nothing is downloaded or loaded")
    if isinstance(value, Mapping | list) and len(value) > MOST_ENTRIES:
        raise InputError(f"{name} has {len(value):,} entries; the limit is {MOST_ENTRIES:,}")
    if isinstance(value, Mapping | list) and depth >= MOST_DEPTH + isinstance(value, list):
        raise InputError(f"its parts are nested more than {MOST_DEPTH} deep")
    if isinstance(value, Mapping):
        return checked(value, most_modules, depth + 1)
    if isinstance(value, list):
        return [_entry(name, item, most_modules, depth + 1) for item in value]
    if isinstance(value, int):
        if LAYERS.search(name) and value * MODULES_OF_A_LAYER > most_modules:
            raise InputError(f"{name} is {describe(value)}: the config describes more than {most_modules:,} modules")
        most = MOST_ENTRIES if LABELS.search(name) else None if LARGE.search(name) else MOST_COUNT
        if most is not None and value > most:
            raise InputError(f"{name} is {describe(value)}; the limit is {most:,}")
    return value


CONNECTING = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")
"""Python's audit events for connections."""

_attempts: ContextVar[list[str] | None] = ContextVar("attempts", default=None)


@contextmanager
def offline() -> Iterator[list[str]]:
    """Refuse connections to the code inside the block, in this thread; yield what it attempted.

    Python's audit events see every connection, whichever library opens it. They do not see one that is open already:
    the Hub's client, which keeps its own open, is told to stay offline as well.
    """
    _watch()
    hub = sys.modules.get("huggingface_hub.constants")
    was_offline = getattr(hub, "HF_HUB_OFFLINE", True)
    attempts: list[str] = []
    token = _attempts.set(attempts)
    try:
        if not was_offline:
            hub.HF_HUB_OFFLINE = True  # type: ignore[union-attr]
        yield attempts
    finally:
        if not was_offline:
            hub.HF_HUB_OFFLINE = False  # type: ignore[union-attr]
        _attempts.reset(token)


@cache
def _watch() -> None:
    """Install the audit hook, once: Python has no way to remove one. Outside of blocks it does nothing."""
    sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event in CONNECTING and (attempts := _attempts.get()) is not None:
        attempts.append(f"{event} {describe(args[1:])}")
        raise InputError(f"{attempts[-1]}: nothing is downloaded")
