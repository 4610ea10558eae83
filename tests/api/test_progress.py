"""The line of progress: nothing for quick calls, words for long ones, and no trace of them at the end."""

from __future__ import annotations

import io
import sys

import pytest
from torch import nn

from torchsummary_plus import estimate_memory, max_batch_size
from torchsummary_plus.api import public as progress


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> str:
        """What is left to read: the characters after a carriage return replace those before it."""
        line = ""
        for part in self.getvalue().split("\r"):
            line = part + line[len(part) :]
        return line.rstrip()


def terminal(monkeypatch: pytest.MonkeyPatch, seconds: float = 0) -> Terminal:
    """Make stderr a terminal on which the line appears after some seconds."""
    monkeypatch.setattr(progress, "SECONDS", seconds)
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr  # type: ignore[return-value]


def test_a_long_search_says_which_batch_it_tries_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    limit = max_batch_size(nn.Linear(64, 64), (64,), 1 << 20, device="cpu")
    assert f"\rtrying a batch of {limit.batch_size:,}" in shown.getvalue()
    assert shown.screen == "" and shown.getvalue().endswith("\r") and "\n" not in shown.getvalue()


def test_nothing_appears_within_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 1.9, 2.1, 2.2])
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    shown = terminal(monkeypatch, progress.SECONDS)
    with progress.progress_line() as tell:
        tell("one")
        tell("two")
        assert shown.getvalue() == ""
        tell("two")
        assert shown.screen == "two"
        tell("3")
        assert shown.screen == "3"
    assert shown.screen == ""


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
