"""Gradients of Householder reflectors have another formula under a mode: the truth is in the range, a line says so."""

from __future__ import annotations

import pytest
from torch import nn
from torch.nn.utils import parametrizations

from torchsummary_plus import estimate_memory, measure_memory


@pytest.mark.parametrize("outputs", [7, 90])
def test_the_truth_of_an_orthogonal_layer_is_in_the_range(outputs: int) -> None:
    model = parametrizations.orthogonal(nn.Linear(30, outputs), orthogonal_map="householder")
    estimate, truth = (call(model, (30,), 4, optimizer="adam") for call in (estimate_memory, measure_memory))
    low, high = estimate.peak_range
    assert low <= truth.peak_bytes <= high
    assert any("keeps its columns in a list" in line for line in estimate.assumptions)
