"""Interrupt calls by signals, and judge what they leave behind.

``run`` does so in child processes, since an interrupted call may abort the interpreter. ``python -m
tests.truth.interrupts MODEL`` is the child: it reads its instants from standard input, and prints a verdict for
each until something is broken, because the process can't be trusted after that.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import timeit
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import torchsummary_plus
from tests.truth.interrupted_models import CALLS, MODELS, Training
from tests.truth.snapshot import State, changes, snapshot
from tests.truth.surroundings import fakes_reachable_from, surroundings

ROOT = Path(__file__).parents[2]
PACKAGE = str(Path(torchsummary_plus.__file__).parent)
SECONDS = 60
"""How long a call may take to end after an interrupt, before it counts as aborted."""

GOOD, FINISHED, BROKEN, REPLACED, ABORTED = "good", "finished", "broken", "replaced", "aborted"
FAULTS = (BROKEN, REPLACED, ABORTED)
"""Verdicts: the handler's exception came out; the call had finished before; something was changed; another exception
came out, or none; the process died or hung."""


@dataclass(frozen=True)
class Instant:
    """A call, the signal that is raised during it, and when.

    ``unit`` is "line" for the line's number among those of the package that the call runs, "lines" for a share of them,
    and "duration" for a share of the call's duration.
    """

    call: str
    signal: str
    at: float
    unit: str = "line"


@dataclass(frozen=True)
class Outcome:
    """What became of an interrupt; ``delay_ms`` is the time from the signal to the exception at the caller."""

    instant: Instant
    verdict: str
    told: str = ""
    delay_ms: float = 0.0

    def __str__(self) -> str:
        return f"{self.instant}: {self.verdict}: {self.told}"


class TimeIsUp(TimeoutError):
    """What a user's alarm raises: says where it did."""


EXCEPTIONS: dict[str, type[BaseException]] = {"SIGINT": KeyboardInterrupt, "SIGALRM": TimeIsUp}


def run(model: str, instants: Sequence[Instant], python: Sequence[str]) -> Iterator[Outcome]:
    """Yield the outcome of each interrupt with a model of ``MODELS``."""
    command = [*python, "-m", __name__, model]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    waiting = list(instants)
    while waiting:
        asked = json.dumps([asdict(instant) for instant in waiting])
        child = subprocess.run(command, cwd=ROOT, env=environment, input=asked, capture_output=True, text=True)
        if READY not in child.stdout:
            raise RuntimeError(f"{' '.join(command)} does not start: {child.stderr}")
        for line in child.stdout.partition(READY)[2].splitlines():
            yield Outcome(waiting.pop(0), **json.loads(line))
        if child.returncode and waiting:
            yield Outcome(waiting.pop(0), ABORTED, f"exit code {child.returncode}: {child.stderr.strip()[-300:]}")


READY = "ready\n"


def main() -> None:
    """Judge the instants of standard input until something is broken."""
    instants = [Instant(**instant) for instant in json.load(sys.stdin)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, _time_is_up)
    sys.unraisablehook = _ignored
    mine, twin = (_seeded(MODELS[sys.argv[1]]) for _ in range(2))
    usual = {name: Usual(partial(CALLS[name], mine)) for name in {instant.call: None for instant in instants}}
    print(READY, end="", flush=True)
    for instant in instants:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        raiser = usual[instant.call].raiser(instant)
        verdict, told = _judged(mine, twin, CALLS[instant.call], raiser, EXCEPTIONS[instant.signal])
        if instant is instants[-1] and verdict not in FAULTS:
            changed = "; ".join(_answering_otherwise(mine, usual))
            verdict, told = (BROKEN, changed) if changed else (verdict, told)
        print(json.dumps({"verdict": verdict, "told": told, "delay_ms": 1e3 * raiser.delay}), flush=True)
        if verdict == BROKEN:
            break
    os._exit(0)


class Usual:
    """A call that is not interrupted: its answer, as text, the lines of the package that it runs, and its duration."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.answer = str(call())

    @cached_property
    def lines(self) -> int:
        counter = AtLine(signal.SIGINT, 0)
        counter.run(self.call)
        return -counter.left

    @cached_property
    def seconds(self) -> float:
        return min(timeit.repeat(self.call, number=1, repeat=3))

    def raiser(self, instant: Instant) -> AtLine | AfterSeconds:
        number = signal.Signals[instant.signal]
        if instant.unit == "duration":
            return AfterSeconds(number, instant.at * self.seconds)
        return AtLine(number, round(instant.at * (self.lines if instant.unit == "lines" else 1)))


def _time_is_up(number: int, frame: FrameType | None) -> None:
    frames = traceback.extract_stack(frame)[:-5:-1]
    raise TimeIsUp("at " + " < ".join(f"{Path(place.filename).name}:{place.lineno}" for place in frames))


def _ignored(unraisable: Any) -> None:
    """Note an exception that Python ignores, since it was raised in a finalizer or in code that cannot pass it on."""
    IGNORED.append(f"{_named(unraisable.exc_value)} was ignored in {unraisable.object!r}")


IGNORED: list[str] = []


def _seeded(build: Callable[[], Training]) -> Training:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return build()


class AtLine:
    """Runs a call and raises a signal before the n-th line that it runs in the package."""

    def __init__(self, number: int, line: int) -> None:
        self.number = number
        self.left = line
        self.delay = 0.0
        self.sent = False

    def run(self, call: Callable[[], Any]) -> None:
        sys.settrace(self._trace)
        try:
            call()
        finally:
            self.delay = time.perf_counter() - self.delay if self.sent else 0.0
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, value: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.sent = True
                self.delay = time.perf_counter()
                signal.raise_signal(self.number)
        return self._trace


class AfterSeconds:
    """Runs a call and sends a signal after some seconds, from another thread."""

    def __init__(self, number: int, seconds: float) -> None:
        self.number = number
        self.timer = threading.Timer(seconds, self._send)
        self.delay = 0.0
        self.sent = False

    def run(self, call: Callable[[], Any]) -> None:
        try:
            self.timer.start()
            call()
        finally:
            self.timer.cancel()
            self.timer.join()
            self.delay = time.perf_counter() - self.delay if self.sent else 0.0

    def _send(self) -> None:
        self.sent, self.delay = True, time.perf_counter()
        os.kill(os.getpid(), self.number)


def _judged(
    mine: Training,
    twin: Training,
    call: Callable[[Training], Any],
    raiser: AtLine | AfterSeconds,
    raised: type[BaseException],
) -> tuple[str, str]:
    """Interrupt one call, whose handler raises ``raised``; return the verdict and its reason."""
    IGNORED.clear()
    before = _everything(mine)
    caught: BaseException | None = None
    try:
        raiser.run(lambda: call(mine))
    except BaseException as error:
        caught = error.with_traceback(None)
    try:
        broken = _changed(before, mine, twin)
    except BaseException as error:
        broken = f"the training step fails: {_named(error)}"
    if broken:
        return BROKEN, broken
    if type(caught) is raised:
        return GOOD, ""
    if caught is None and not raiser.sent:
        return FINISHED, ""
    return REPLACED, "; ".join(["no exception came out" if caught is None else _named(caught), *IGNORED])


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _everything(training: Training) -> State:
    others = (training.data, training.optimizer, training.scaler)
    return {**snapshot(training.model, *others), **surroundings()}


def _changed(before: State, mine: Training, twin: Training) -> str:
    """Return what differs from ``before``, or between one more training step and that of the twin; "" for nothing."""
    found = changes(before, _everything(mine)) or fakes_reachable_from(vars(mine))
    if found:
        return "; ".join(found[:3])
    state = torch.get_rng_state()
    loss = mine.train()
    torch.set_rng_state(state)
    same = torch.equal(loss, twin.train())
    ours, theirs = (training.model.state_dict().values() for training in (mine, twin))
    return "" if same and all(map(torch.equal, ours, theirs)) else "the training step gives other numbers"


def _answering_otherwise(mine: Training, usual: Mapping[str, Usual]) -> Iterator[str]:
    """Yield what is wrong with calls that are made afterwards, and from another thread."""
    for name, before in usual.items():
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(str(CALLS[name](mine))), daemon=True)  # noqa: B023
        thread.start()
        thread.join(SECONDS / 2)
        if answers != [before.answer]:
            yield f"the next {name}, from another thread, {'answers otherwise' if answers else 'has no answer'}"


if __name__ == "__main__":
    main()
