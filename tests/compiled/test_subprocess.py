"""Work in a fork: what comes back, and what if nothing does."""

import os
import sys
import threading
import time
from typing import Any

import pytest
import torch

from torchsummary_plus.compiled.estimate import SECONDS_BETWEEN_TICKS, in_subprocess
from torchsummary_plus.data.errors import UnsupportedError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")


def test_a_fork_has_everything_and_changes_nothing_here() -> None:
    """A tensor that it writes to, an environment variable, and what cannot be pickled."""
    weight, lock, told = torch.zeros(4), threading.Lock(), []

    def work() -> Any:
        with lock:
            weight.fill_(1)
            os.environ["OF_THE_FORK"] = "1"
            time.sleep(1.5 * SECONDS_BETWEEN_TICKS)
            return (
                float(weight.sum()),
                torch.get_num_threads(),
                float((torch.ones(512, 512) @ torch.ones(512, 512))[0, 0]),
            )

    here = float((torch.ones(512, 512) @ torch.ones(512, 512))[0, 0])  # OpenMP's threads exist from now on.
    assert in_subprocess(work, 60, lambda: told.append("waiting")) == (4.0, torch.get_num_threads(), here)
    assert told
    assert weight.sum() == 0
    assert "OF_THE_FORK" not in os.environ


def failing() -> None:
    raise ValueError("no such model\nwith details")


def refused() -> None:
    raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing. See ...")


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (refused, "a fork of a process that has run one on a GPU; ask in a new process"),
        (failing, "ValueError: no such model"),
        (lambda: time.sleep(60), "longer than 1 second"),
        (lambda: os._exit(7), "ended with exit code 7"),
        (lambda: threading.Lock(), "cannot pickle"),
    ],
)
def test_a_reason_comes_back_if_nothing_else_does(work: Any, reason: str) -> None:
    began = time.monotonic()
    with pytest.raises(UnsupportedError, match=reason) as raised:
        in_subprocess(work, 1 if "longer" in reason else 60, lambda: None)
    assert "\n" not in str(raised.value)
    assert time.monotonic() - began < 30
