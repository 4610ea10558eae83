"""What the code of a pass tells a test: passes run on copies, and share files."""

from __future__ import annotations

import io
from typing import Any


class Told(io.RawIOBase):
    """A file, as far as a pass knows, of what it was seen to do."""

    def __init__(self) -> None:
        self._items: list[Any] = []

    def put(self, item: Any) -> None:
        """Add an item."""
        self._items.append(item)

    def all(self) -> list[Any]:
        """Take everything out, in order."""
        items, self._items = self._items, []
        return items
