"""Tests of what only later releases of torch have."""

from __future__ import annotations

import pytest
import torch

from torchsummary_plus.live.versions import since


def from_release(release: str, what: str) -> pytest.MarkDecorator:
    """Skip a test where torch is older than the release that brought what it needs."""
    return pytest.mark.skipif(
        not since(release), reason=f"{what} came with torch {release}, and this is {torch.__version__}"
    )
