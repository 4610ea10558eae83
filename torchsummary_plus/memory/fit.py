"""Fit: whether a step fits in a memory, and what is left or missing."""

from __future__ import annotations

from ..data.units import in_common_unit

IN_PIECES = "the free memory is in pieces too small for the next tensor"
"""Why a step may not fit although its peak is below the limit: torch's allocator cannot join freed blocks."""


class Fit(int):
    """1 or 0, as ``bool(fit)`` and ``fit == True`` have it, printed with the headroom.

    ``needed_bytes`` is the step's peak, without optional scratch memory if there is no room for it, and ``most_bytes``
    the most that it may be; ``usable_bytes`` is the memory without a CUDA context.

    >>> Fit(True, 20 << 30, 22 << 30), Fit(False, 24 << 30, 22 << 30)
    (yes, 2.00 GiB left, no, 2.00 GiB missing)
    >>> Fit(True, 20 << 30, 22 << 30, most_bytes=25 << 30)
    probably, 2.00 GiB left, but it may take up to 25.00 GiB
    """

    needed_bytes: int
    usable_bytes: int
    most_bytes: int

    def __new__(cls, fits: bool, needed_bytes: int, usable_bytes: int, most_bytes: int = 0) -> Fit:
        fit = super().__new__(cls, fits)
        fit.needed_bytes, fit.usable_bytes, fit.most_bytes = needed_bytes, usable_bytes, most_bytes
        return fit

    def __getnewargs__(self) -> tuple[bool, int, int, int]:  # type: ignore[override]  # For copies and pickles.
        return bool(self), self.needed_bytes, self.usable_bytes, self.most_bytes

    @property
    def left_bytes(self) -> int:
        """The usable bytes beyond the needed ones; less than 0 if some are missing."""
        return self.usable_bytes - self.needed_bytes

    @property
    def of_usable(self) -> str:
        """The needed and the usable bytes, in words."""
        return f"{in_common_unit(self.needed_bytes, self.usable_bytes)} usable"

    def __str__(self) -> str:
        if self and self.most_bytes > self.usable_bytes:
            left, most = in_common_unit(max(0, self.left_bytes)), in_common_unit(self.most_bytes)
            return f"probably, {left} left, but it may take up to {most}"
        if self:
            return f"yes, {in_common_unit(max(0, self.left_bytes))} left"
        if self.left_bytes < 0:
            return f"no, {in_common_unit(-self.left_bytes)} missing"
        return f"no, {self.of_usable}, but {IN_PIECES}"

    __repr__ = __str__
