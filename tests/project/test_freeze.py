"""Part of what ``python -m benchmarks.freeze`` compares: recorded configurations and the zoo's tables."""

from __future__ import annotations

import pytest

from benchmarks.freeze import results, snapshot


@pytest.mark.filterwarnings("ignore")
def test_recorded_configurations_are_predicted_as_before() -> None:
    known = snapshot("cuda")
    found = results("cuda", "^(A100|T4) (resnet18|gpt2).*fp32", 2, known)
    assert len(found) == 2
    assert found == {name: known[name] for name in found}
