"""JSON from others: bounded, without duplicate keys, and with one kind of error for whatever is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .units import describe

MOST_JSON_ITEMS = 2_000_000
"""Maximum number of objects, arrays and items in a JSON file; at up to 240 bytes each, they take 480 MB."""


def parsed(text: str) -> Any:
    """Return what a JSON text holds. Raises ValueError for one that is malformed, too deep or repeats a key."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parsed_object(data: bytes) -> dict[str, Any]:
    """Return the object that a JSON file in UTF-8 holds. Raises ValueError for one that is malformed or too large."""
    if sum(map(data.count, (b"{", b"[", b","))) > MOST_JSON_ITEMS:
        raise ValueError(f"it has more than {MOST_JSON_ITEMS:,} items")
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
