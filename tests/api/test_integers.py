"""Every integer argument accepts numpy's integers as well as Python's, but no booleans."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import nn

from torchsummary_plus import BatchSizeLimit, InputError, compare, estimate_memory, max_batch_size, summary

MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

CALLS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "batch_size": (lambda value: summary(MODEL, (8,), value, verbose=0), 4),
    "depth": (lambda value: summary(MODEL, (8,), depth=value, verbose=0), 1),
    "col_width": (lambda value: summary(MODEL, (8,), col_width=value, verbose=0), 40),
    "depth of compare": (lambda value: compare(MODEL, MODEL, input_size=(8,), depth=value), 1),
    "steps": (lambda value: estimate_memory(MODEL, (8,), 2, steps=value), 2),
    "accumulation": (lambda value: estimate_memory(MODEL, (8,), 2, gradient_accumulation_steps=value), 2),
    "memory": (lambda value: max_batch_size(MODEL, (8,), memory=value, mode="eval"), 4 << 20),
}


@pytest.mark.parametrize("name", CALLS)
def test_numpys_integers_mean_what_pythons_mean(name: str) -> None:
    call, value = CALLS[name]
    theirs, ours = call(np.int64(value)), call(value)
    assert str(theirs) == str(ours)
    if not isinstance(ours, BatchSizeLimit):
        assert json.loads(theirs.to_json()) == json.loads(ours.to_json())


@pytest.mark.parametrize("name", CALLS)
def test_booleans_are_no_integers(name: str) -> None:
    with pytest.raises(InputError, match="is True; accepted: "):
        CALLS[name][0](True)
