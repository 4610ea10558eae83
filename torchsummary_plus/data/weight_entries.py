"""A tensor in a file of weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """A tensor in a file: its name, shape, dtype as the format calls it, and stored bytes.

    ``params`` counts the parameters of the model that it stores: the elements of a packed weight, 0 for its scales and
    for shapes; None if they are its own elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: str
    params: int | None = None

    def contradiction(self) -> str:
        """Return what is wrong in an entry that was read; "" if nothing is."""
        sizes = (*self.shape, self.nbytes, self.num_params)
        return "" if all(0 <= size < 1 << 63 for size in sizes) else f"no tensor has the shape {self.shape}"

    @property
    def num_params(self) -> int:
        """The number of the model's parameters that it stores."""
        return self.numel if self.params is None else self.params

    @property
    def numel(self) -> int:
        """The number of elements, even if they are stored in blocks.

        >>> WeightEntry("w", (2, 32), "Q4_0", 36, "").numel
        64
        """
        return prod(self.shape)
