"""A call that a signal interrupts, at whatever line, leaves everything as if it had not been made."""

import gc
import os
import signal
import subprocess
from collections.abc import Callable
from itertools import cycle

import pytest
import torch
from torch import nn

from tests.truth.interrupted_models import CALLS
from tests.truth.interrupts import EXCEPTIONS, FAULTS, Instant, run
from tests.truth.snapshot import changes
from tests.truth.surroundings import fakes_reachable_from, surroundings
from tests.truth.warm import python
from torchsummary_plus.live.fakes import new_fake

FIRST, STEP = 2000, 997
"""One in so many of a call's first lines is tried; ``python -m benchmarks.fire.interrupts --lines 2000`` tries all."""

SPREAD = {"summary": 6, "graph": 4, "estimate_memory": 2, "measure_memory": 1, "max_batch_size": 1}
"""How many instants are spread over all lines of each call: more for those that take milliseconds."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
def test_an_interrupt_leaves_everything_as_it_was() -> None:
    """The handler's own exception comes out, nothing has changed, and training goes on to the same numbers."""
    signals = cycle(EXCEPTIONS)
    spread = [(call, (k + 0.5) / count) for call, count in SPREAD.items() for k in range(count)]
    instants = [
        *(Instant(call, next(signals), line) for call in CALLS for line in range(1, FIRST, STEP)),
        *(Instant(call, next(signals), share, "lines") for call, share in spread),
    ]
    faults = [str(outcome) for outcome in run("hooked", instants, python()) if outcome.verdict in FAULTS]
    assert not faults, "\n".join([f"{len(faults)} of {len(instants)}", *faults])


LEFT_BEHIND: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "functions of torch.cuda": lambda patch: patch.setattr(torch.cuda, "synchronize", lambda: None),
    "attributes of Tensor": lambda patch: patch.setattr(torch.Tensor, "new_name", 1, raising=False),
    "signal handlers": lambda patch: signal.signal(signal.SIGUSR1, lambda *_: None),
    "garbage collection": lambda patch: gc.disable(),
    "determinism": lambda patch: torch.use_deterministic_algorithms(True),
}


@pytest.mark.parametrize("where", LEFT_BEHIND)
def test_the_law_sees_what_is_left_behind(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measuring instrument itself: still if nothing happens, and moved by one change."""
    handler, before = signal.getsignal(signal.SIGUSR1), surroundings()
    assert changes(before, surroundings()) == []
    try:
        LEFT_BEHIND[where](monkeypatch)
        found = changes(before, surroundings())
    finally:
        gc.enable()
        signal.signal(signal.SIGUSR1, handler)
        torch.use_deterministic_algorithms(False)
    assert len(found) == 1 and found[0].startswith(where)


def test_the_law_sees_a_fake_in_a_hook() -> None:
    model, fake = nn.Linear(2, 2), new_fake((3,), torch.float32, torch.device("cpu"))
    assert fakes_reachable_from(model) == []
    model.register_forward_hook(lambda *_: [fake])
    assert fakes_reachable_from(model) == ["a fake of shape (3,) in a cell"]


SLEEPS = """
import signal, time
from torch import nn
from torchsummary_plus import estimate_memory, summary
class TimeIsUp(Exception):
    pass
def up(number, frame):
    raise TimeIsUp
class Sleepy(nn.Linear):
    def forward(self, x):
        try:
            time.sleep(60)
        except Exception:
            raise AssertionError("the forward must not catch what is not its own")
        return super().forward(x)
signal.signal(signal.SIGALRM, up)
for call in (summary, estimate_memory):
    model, begun = Sleepy(4, 4), time.monotonic()
    weight = model.weight
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        call(model, (4,))
    except TimeIsUp:
        print(time.monotonic() - begun < 20, model.weight is weight, signal.getsignal(signal.SIGALRM) is up)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
def test_a_forward_that_reaches_no_operator_is_interrupted_too() -> None:
    ran = subprocess.run([*python(), "-c", SLEEPS], capture_output=True, text=True)
    assert ran.stdout == "True True True\n" * 2, ran.stderr
