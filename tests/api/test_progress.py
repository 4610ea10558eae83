"""The line of progress: nothing for quick calls, words for long ones, and no trace of them at the end."""

import io
import sys

import pytest
from torch import nn

from torchsummary_plus import estimate_memory
from torchsummary_plus.api import public as progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch, seconds: float = 0) -> Terminal:
    monkeypatch.setattr(progress, "SECONDS", seconds)
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr  # type: ignore[return-value]


def test_nobody_sees_it_in_a_file_or_if_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    estimate_memory(nn.Linear(8, 8), (8,), progress=False)
    assert shown.getvalue() == ""
    estimate_memory(nn.Linear(8, 8), (8,))
    assert "trying a batch of 1" in shown.getvalue()
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    estimate_memory(nn.Linear(8, 8), (8,))
    assert file.getvalue() == ""
