"""Holding signals: whatever a handler raises comes out, whenever the signal arrives and whoever catches it."""

import signal
import sys
from collections.abc import Iterator
from itertools import count, takewhile
from types import FrameType
from typing import Any

import pytest

from torchsummary_plus.live.isolation import safe_point, signals_held


class Stop(Exception):
    """What the handler raises."""


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Stop

    before = signal.signal(signal.SIGINT, stop)
    yield
    assert signal.getsignal(signal.SIGINT) is stop
    signal.signal(signal.SIGINT, before)


def _interrupted_at(line: int) -> str:
    """Hold signals, and send one before the n-th line of code that does so; return what came out."""
    left = line

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        nonlocal left
        if frame.f_code not in codes:
            return None
        left -= event == "line"
        if left == 0 and event == "line":
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return trace

    codes = {vars(signals_held)[name].__code__ for name in ("__enter__", "__exit__", "_leave")}
    sys.settrace(trace)
    try:
        with signals_held():
            pass
    except Stop:
        return "raised"
    finally:
        sys.settrace(None)
    return "lost" if left <= 0 else "past the end"


def test_a_signal_at_each_line_of_entering_and_leaving_is_raised() -> None:
    outcomes = list(takewhile(lambda outcome: outcome != "past the end", map(_interrupted_at, count(1))))
    assert len(outcomes) > 100 and set(outcomes) == {"raised"}


def test_what_code_on_the_way_catches_is_raised_at_the_end() -> None:
    with pytest.raises(Stop), signals_held():
        signal.raise_signal(signal.SIGINT)
        try:
            safe_point()
        except BaseException:
            caught = True
        assert caught
        safe_point()
