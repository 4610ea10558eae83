"""Processes that are forked while a call runs, or after one."""

import os
import subprocess

import pytest

from tests.truth.warm import python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
FORKS_DURING_A_CALL = """
import os, signal, threading
from torch import nn
from torchsummary_plus import summary
inside, started = os.pipe()
until_closed, gate = os.pipe()
class Waits(nn.Linear):
    def forward(self, x):
        os.write(started, b".")
        os.read(until_closed, 1)
        return super().forward(x)
thread = threading.Thread(target=summary, args=(Waits(4, 4), (4,)), kwargs={"verbose": 0})
thread.start()
os.read(inside, 1)
child = os.fork()
if child == 0:
    signal.alarm(60)
    print(summary(nn.Linear(4, 2), (4,), verbose=0).total_params, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
os.close(gate)
thread.join()
print(status)
"""

FORKS_WITHIN_A_CALL = """
import os
from torch import nn
from torchsummary_plus import summary
class Forks(nn.Linear):
    def forward(self, x):
        self.child = os.fork()
        if self.child:
            os.waitpid(self.child, 0)
        return super().forward(x)
print(summary(Forks(4, 2), (4,), 2, verbose=0).total_params, flush=True)
print(summary(nn.Linear(4, 3), (4,), verbose=0).total_params, flush=True)
os._exit(0)
"""

FORKS_AFTER_A_BACKWARD = """
import os
from torch import nn
from torchsummary_plus import StepError, estimate_memory
estimate_memory(nn.Linear(4, 2), (4,), device="cuda")
child = os.fork()
if child == 0:
    try:
        print(estimate_memory(nn.Linear(4, 2), (4,), device="cuda").peak_bytes, flush=True)
    except StepError as error:
        print(error.hint, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def output_of(program: str) -> list[str]:
    done = subprocess.run([*python(), "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_child_does_not_wait_for_a_call_of_its_parents_thread() -> None:
    assert output_of(FORKS_DURING_A_CALL) == ["10", "0"]


def test_a_forward_that_forks_ends_in_both_processes() -> None:
    assert output_of(FORKS_WITHIN_A_CALL) == ["10", "15"] * 2


def test_a_backward_that_torch_refuses_after_a_fork_names_the_cure() -> None:
    answer = " ".join(output_of(FORKS_AFTER_A_BACKWARD))
    assert answer.isdecimal() or 'multiprocessing.get_context("spawn")' in answer
