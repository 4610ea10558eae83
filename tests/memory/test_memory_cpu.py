"""The oracle of the CPU's memory, and settings of CUDA that are not the CPU's.

Whole models are compared with it in ``tests/step``, by ``benchmarks.freeze`` and by random programs.
"""

import pytest
import torch
from torch import nn

from tests.truth.memory_truth import cpu_deltas, highest
from torchsummary_plus import measure_memory
from torchsummary_plus.api.memory import estimate_memory
from torchsummary_plus.data.errors import UnsupportedError


def test_the_oracle_sees_every_allocation_and_free() -> None:
    def run() -> None:
        a = torch.empty(1000, dtype=torch.uint8)
        b = torch.empty(500, dtype=torch.uint8)
        del a
        c = torch.empty(200, dtype=torch.uint8)
        del b, c

    deltas = cpu_deltas(run)
    assert deltas == [1000, 500, -1000, 200, -500, -200]
    assert highest(deltas) == (1500, 0)


def test_settings_of_the_cuda_allocator_in_the_environment_are_not_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    predicted = estimate_memory(nn.Linear(8, 8), (8,), 4, "cpu", progress=False)
    assert predicted.peak_bytes == measure_memory(nn.Linear(8, 8), (8,), 4, "cpu").peak_bytes
    with pytest.raises(UnsupportedError, match="PYTORCH_CUDA_ALLOC_CONF is set"):
        estimate_memory(nn.Linear(8, 8), (8,), 4, "cuda", progress=False)
