"""Part of what ``python -m benchmarks.freeze`` compares: recorded configurations and the zoo's tables."""

from importlib import import_module

import pytest
import torch

from benchmarks.freeze import results, snapshot
from benchmarks.zoo.libraries import LIBRARIES
from torchsummary_plus.live.compat import since


@pytest.mark.skipif(not since("2.13") or since("2.14") or torch.version.cuda is not None, reason="has another cuDNN")
@pytest.mark.filterwarnings("ignore")
def test_recorded_configurations_are_predicted_as_before() -> None:
    known = snapshot("cuda")
    found = results("cuda", "^(A100|T4) (resnet18|gpt2).*fp32", 2, known)
    assert len(found) == 2
    assert found == {name: known[name] for name in found}


def test_each_library_of_the_zoo_has_its_cases() -> None:
    for library, place in LIBRARIES.items():
        module, _, function = place.partition(":")
        assert callable(getattr(import_module(f"benchmarks.zoo.{module}"), function)), library
