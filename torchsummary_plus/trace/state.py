"""The state of a pass: the context of its next operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from ..live import compat


class Composite(Enum):
    """Functions of torch that add out of place under a mode."""

    ATTENTION = "attention"
    RECURRENCE = "recurrence"


@dataclass(slots=True)
class State:
    """The caller of operators, the function they are called in, and whether listeners are notified of them."""

    notifies: bool = True
    """Whether listeners are notified: not of a listener's own operators, nor while a forward runs another pass."""
    in_engine: bool = False
    """Whether autograd's engine calls them, rather than Python code."""
    in_optimizer: bool = False
    """Whether an optimizer's step calls them, rather than the step's other code."""
    in_transform: bool | None = None
    """For Python code inside a ``torch.func`` transform, whose level is not set while an operator runs: whether it
    calls under autocast, which does not see the true device of a transform's tensors; else None."""
    in_class: bool = False
    """Whether a tensor class that dispatches for itself calls them, below autograd."""
    as_meta: bool = False
    """Whether even Python code in the engine sees fakes as being on meta."""
    by_engine: bool = False
    """Whether the engine called the operator that listeners are notified of: they are Python code themselves."""
    on_cuda: bool = False
    """Whether fakes stand for tensors on a GPU, whose stream the engine would query."""
    differentiates: bool = False
    """Whether the outermost ``torch.func`` transform differentiates in reverse; its level is not known to torch while
    it wraps results."""
    composite: Composite | None = None
    autocasts: str = ""
    """The kind of device for which autocast was on when Python last called a function; "" if it was off."""

    def hides_device(self, device: torch.device) -> bool:
        """Return whether C++ sees a fake on this device as being on meta: on CUDA, in the engine and in transforms.

        In a transform, wrappers keep the device they were created with, and the engine compares it with the gradients'
        (aten/src/ATen/functorch/TensorWrapper.cpp; torch/csrc/autograd/engine.cpp, ``validate_outputs``).
        """
        if self.on_cuda and (self.differentiates or compat.transform_level() is not None):
            return True
        return self.in_engine and (self.on_cuda or device.type != "cpu")

    @contextmanager
    def override(self, **values: Any) -> Iterator[None]:
        """Set attributes inside the block.

        >>> state = State()
        >>> with state.override(in_engine=True):
        ...     state.in_engine
        True
        >>> state.in_engine
        False
        """
        outer = {name: getattr(self, name) for name in values}
        for name, value in values.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            for name, value in outer.items():
                setattr(self, name, value)
