"""In-place writes to views: they terminate, and their memory is that of real steps."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.step import view_writes
from tests.truth.warm import python

ROOT = Path(__file__).parents[2]
LONGEST_S = 300
"""Ten times what all of them take: a lock that waits for itself shows as a time-out."""

NAMES = [name for name, _, _ in view_writes.models()]


@pytest.fixture(scope="module")
def peaks() -> dict[str, tuple[Any, Any]]:
    """The predicted and the measured peaks of each model, by a process of their own, which may hang."""
    run = [*python(), "-m", view_writes.__name__]
    done = subprocess.run(run, capture_output=True, text=True, timeout=LONGEST_S, cwd=ROOT, check=True)
    lines = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    return {name: (predicted, measured) for name, predicted, measured in lines}


@pytest.mark.parametrize("name", NAMES)
def test_a_write_to_a_view_takes_what_it_takes_for_real(name: str, peaks: dict[str, tuple[Any, Any]]) -> None:
    predicted, measured = peaks[name]

    assert predicted == measured
