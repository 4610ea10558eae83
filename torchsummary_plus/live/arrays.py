"""NumPy arrays of values that keep alive the tensors they stand for."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .compat import no_dispatch


class _Memory:
    """The memory of an array, which keeps the tensors alive that own it."""

    def __init__(self, values: Any, *owners: Tensor) -> None:
        self.__array_interface__ = values.__array_interface__
        self.owners = values, owners


def check_readable(tensor: Tensor) -> None:
    """Raise the exceptions of :meth:`torch.Tensor.numpy`."""
    if tensor.is_cuda:
        raise TypeError(f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() first.")
    if tensor.requires_grad:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")


def array_of(values: Tensor, tensor: Tensor) -> Any:
    """Return a CPU tensor's values as an array that keeps ``tensor`` alive too.

    >>> import torch
    >>> array_of(torch.arange(3), torch.empty(3)).tolist()
    [0, 1, 2]
    """
    import numpy

    with no_dispatch():  # Tensor.numpy() detaches.
        return numpy.asarray(_Memory(values.numpy(), tensor))
