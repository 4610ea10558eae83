"""Cut a model down to a few of its equal layers."""

from __future__ import annotations

from torch import nn

from ...table.modules import ModuleTree
from .stacks import largest_stack
from .tokens import Stack

FEWEST = 3
"""Fewest of many equal layers that are recorded: a first, a last, and one between two others."""
WORTH = 5 * FEWEST
"""Number of equal layers from which recording ``FEWEST``, one more and two more is faster than recording all."""


class Cut:
    """Removes all but ``count`` of a model's equal layers, if there are many; ``count`` None removes nothing.

    A model with DDP keeps all layers, because its buckets were laid out for them when it was wrapped.
    """

    def __init__(self, count: int | None) -> None:
        self.count = count
        self.paths: tuple[str, ...] = ()
        self.whole: Stack | None = None
        """All layers, if some have been removed; ``left`` are those that remain."""
        self.left = Stack("", ())

    def make(self, model: nn.Module) -> None:
        """Cut the model permanently."""
        if self.count is None or any(_WITH_BUCKETS in _names(module) for module in model.modules()):
            return
        stack = largest_stack(model, WORTH)
        if stack is not None:
            self.paths = tuple(ModuleTree(model).paths)
            self.whole = Stack(stack.path, stack.names)
            self.left = Stack(stack.path, stack.keep(self.count))


_WITH_BUCKETS = "DistributedDataParallel"
"""A class given by name, because torch.distributed is slow to import."""


def _names(module: nn.Module) -> set[str]:
    return {kind.__name__ for kind in type(module).__mro__}
