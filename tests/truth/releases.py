"""Marks for tests that need a later release of torch."""

import pytest
import torch

from torchsummary_plus.live.compat import since

without_compiler = pytest.mark.skipif(
    since("2.7") and not since("2.10"), reason="torch 2.7 to 2.9 import their compiler before a process's first pass"
)

runs_fully_shard = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"),
    reason=f"torch {torch.__version__} cannot run fully_shard on the CPU: its streams record no events",
)


def from_release(release: str, what: str) -> pytest.MarkDecorator:
    """Skip a test where torch is older than the release that brought what it needs."""
    return pytest.mark.skipif(
        not since(release), reason=f"{what} came with torch {release}, and this is {torch.__version__}"
    )
