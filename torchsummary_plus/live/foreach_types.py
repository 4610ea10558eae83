"""Classes that optimizers and gradient clipping treat as plain tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import compat
from .fakes import Fake


@contextmanager
def taken_for_tensors() -> Iterator[None]:
    """Have optimizers and gradient clipping treat fakes as tensors: they choose foreach by exact type.

    Adam queries the GPU for stream capture, whatever device it runs on; that query is skipped.
    """
    for types in compat.foreach_types:
        types.append(Fake)
    try:
        with compat.capture_unasked():
            yield
    finally:
        for types in compat.foreach_types:
            types.remove(Fake)
