"""What tests of any file may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.truth.memory_truth import threads_set_to
from torchsummary_plus.step.workspace import Workspaces

Workspaces.is_strict = True
"""A rule that fails is an error in tests."""


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread for CPU kernels, or as many as the test's parameter of this name says."""
    with threads_set_to(getattr(request, "param", 1)):
        yield
