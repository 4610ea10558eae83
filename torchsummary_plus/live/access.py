"""What a pass does when a step assigns to a fake's ``data`` or reads all its values."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Access(Protocol):
    """What the kernels of a pass answer."""

    def fake_of(self, tensor: Tensor) -> Any:
        """Return the fake of a real tensor that is assigned."""

    def follow_assigned(self, fake: Any) -> None:
        """Called after a tensor was assigned to a fake's ``data``."""

    def values_of(self, fake: Any) -> Tensor:
        """Return a fake's values; raises :class:`DataDependentError` if they are unknown."""
