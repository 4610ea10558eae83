"""Tests on the no-op runtime: ``python -m benchmarks.nocuda --card H100 -m pytest benchmarks/nocuda/tests``.

On a machine with a GPU, plain pytest runs those that do not ask for the no-op runtime.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from benchmarks.nocuda.runtime import is_active


@pytest.fixture(autouse=True)
def empty_card() -> Iterator[None]:
    """Provide an empty GPU, and empty it afterwards."""
    if not is_active() and not torch.cuda.is_available():
        pytest.skip("the no-op runtime is not active, and there is no GPU")
    _clear()
    yield
    _clear()


def _clear() -> None:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
