"""What the code of a pass tells a test: passes run on copies, and share files."""

import io
from typing import Any


class Told(io.RawIOBase):
    """A file, as far as a pass knows, of what it was seen to do."""

    def __init__(self) -> None:
        self._items: list[Any] = []

    def put(self, item: Any) -> None:
        self._items.append(item)

    def all(self) -> list[Any]:
        items, self._items = self._items, []
        return items
