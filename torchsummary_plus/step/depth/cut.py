"""A model cut down to a few of its equal layers."""

from __future__ import annotations

from torch import nn

from ...live.modules import ModuleTree
from ...live.rows import longest_row
from .tokens import Stack

FEWEST = 3
"""Layers that are recorded at least of many equal ones: a first, a last, and one with both neighbours."""
WORTH = 5 * FEWEST
"""Equal layers from which on recording ``FEWEST``, one more and two more is quicker than recording all."""


class Cut:
    """Takes all but ``count`` of the equal layers out of a model, if it has a row of many; None for none of them.

    The buckets of DDP are laid out for all layers when a model is wrapped: such a model is left whole.
    """

    def __init__(self, count: int | None) -> None:
        self.count = count
        self.paths: tuple[str, ...] = ()
        self.whole: Stack | None = None
        """The layers that there were, where some have been taken out; ``left`` are those that are left."""
        self.left = Stack("", ())

    def make(self, model: nn.Module) -> None:
        """Cut a model, for good."""
        if self.count is None or any(_WITH_BUCKETS in _names(module) for module in model.modules()):
            return
        row = longest_row(model, WORTH)
        if row is not None:
            self.paths = tuple(ModuleTree(model).paths)
            self.whole = Stack(row.path, row.names)
            self.left = Stack(row.path, row.keep(self.count))


_WITH_BUCKETS = "DistributedDataParallel"
"""A class by its name: torch.distributed takes a while to import."""


def _names(module: nn.Module) -> set[str]:
    return {kind.__name__ for kind in type(module).__mro__}
