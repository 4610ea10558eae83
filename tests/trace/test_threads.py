"""Threads and processes that start before, during or within a call, and calls within a forward."""

import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from tests.truth.snapshot import changes, snapshot
from tests.truth.warm import python
from torchsummary_plus import ModelSummary, estimate_memory, summary


@of_parts(lambda: {"linear": nn.Linear(16, 16), "norm": nn.BatchNorm1d(16), "dropout": nn.Dropout(), "seen": []})
def Noisy(self, x: Tensor) -> Tensor:
    """A model that draws, and notes in its own attributes what it has seen."""
    y: Tensor = self.dropout(self.norm(self.linear(x))) + torch.rand(16)
    self.seen = [y.detach()]
    return y


CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "summary": lambda model: summary(model, (16,), verbose=0),
    "a real pass": lambda model: summary(model, (16,), verbose=0, run="real"),
    "an estimate": lambda model: estimate_memory(model, (16,), 4, optimizer="adam"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_thread_trains_the_model_meanwhile(call: str) -> None:
    """During an estimate it only runs the model: torch crashes if one thread reads a gradient that another writes."""
    model, errors, draws = Noisy(), [], []
    over = threading.Event()

    def train() -> None:
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        try:
            while not over.is_set():
                draws.append(tuple(torch.rand(2).tolist()))
                loss = model(torch.ones(4, 16)).sum()
                if call != "an estimate":
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                assert type(model.seen[0]) is Tensor
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        while len(draws) < 3 and not errors:
            pass
        for _ in range(4):
            CALLS[call](model)
    finally:
        over.set()
        thread.join()
    assert not errors
    assert len(draws) == len(set(draws)), "no draw is repeated"


HEAD = nn.Linear(16, 4)


def test_a_global_that_a_loss_uses_stays_the_same_for_another_thread() -> None:
    seen, over = {id(HEAD)}, threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.add(id(HEAD))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(4):
            estimate_memory(Noisy(), (16,), 4, loss=lambda output: HEAD(output).sum(), optimizer="adam")
    finally:
        over.set()
        thread.join()
    assert seen == {id(HEAD)}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_draws_nothing_from_the_callers_numbers(call: str) -> None:
    model = Noisy()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    CALLS[call](model)
    assert torch.equal(torch.get_rng_state(), before)


forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
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


@forking
def test_a_child_does_not_wait_for_a_call_of_its_parents_thread() -> None:
    assert output_of(FORKS_DURING_A_CALL) == ["10", "0"]


@forking
def test_a_forward_that_forks_ends_in_both_processes() -> None:
    assert output_of(FORKS_WITHIN_A_CALL) == ["10", "15"] * 2


@forking
def test_a_backward_that_torch_refuses_after_a_fork_names_the_cure() -> None:
    answer = " ".join(output_of(FORKS_AFTER_A_BACKWARD))
    assert answer.isdecimal() or 'multiprocessing.get_context("spawn")' in answer


RUNS = ["fake", "real"]

Both = Callable[[nn.Module, nn.Module, Tensor], "list[Tensor]"]


def in_turn(left: nn.Module, right: nn.Module, x: Tensor) -> list[Tensor]:
    return [left(x), right(x)]


def in_threads(left: nn.Module, right: nn.Module, x: Tensor) -> list[Tensor]:
    outputs: dict[int, Tensor] = {}
    threads = [threading.Thread(target=lambda i=i: outputs.update({i: (left, right)[i](x)})) for i in range(2)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
        thread.join()
    return [outputs[0], outputs[1]]


def in_a_pool(left: nn.Module, right: nn.Module, x: Tensor) -> list[Tensor]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda part: part(x), (left, right)))


class Branches(nn.Module):
    def __init__(self, both: Both, hooked: bool = False) -> None:
        super().__init__()
        self.both = both
        self.left = nn.Linear(8, 8)
        self.right = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        self.last = nn.Linear(12, 2)
        if hooked:
            self.right.register_forward_hook(lambda module, args, output: output * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat(self.both(self.left, self.right, x), 1))


def unchanged(model: nn.Module, run: str) -> ModelSummary:
    before = snapshot(model)
    result = summary(model, (8,), batch_size=3, run=run, verbose=0)
    assert changes(before, snapshot(model)) == []
    return result


def table(result: ModelSummary) -> list[Any]:
    """The rows by path: threads may begin in any order."""
    return sorted((row.path, row.class_name, row.outputs, row.num_params, row.mult_adds) for row in result.rows)


@pytest.mark.parametrize(("run", "hooked"), [("fake", False), ("real", False), ("real", True)])
@pytest.mark.parametrize("both", [in_threads, in_a_pool])
def test_a_branch_in_a_thread_counts(both: Both, run: str, hooked: bool, capfd: pytest.CaptureFixture[str]) -> None:
    result = unchanged(Branches(both, hooked), run)
    assert result.run.kind == run
    assert table(result) == table(unchanged(Branches(in_turn, hooked), run))
    assert result.total_mult_adds == 3 * (8 * 8 + 8 * 16 + 16 * 4 + 12 * 2)
    assert capfd.readouterr().err == ""


def test_a_thread_that_only_a_real_pass_can_serve_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def bare(left: nn.Module, right: nn.Module, x: Tensor) -> list[Tensor]:
        outputs: list[Tensor] = []
        thread = threading.Thread(target=lambda: outputs.append(x.relu()))
        thread.start()
        thread.join()
        return [left(outputs[0]), right(x)]

    told = threading.excepthook
    assert unchanged(Branches(bare), "auto").run.kind == "real"
    assert capfd.readouterr().err == ""
    assert threading.excepthook is told


LOOKS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "a part": lambda part, x: summary(part, (8,), batch_size=2, verbose=0).total_mult_adds,
    "its memory": lambda part, x: estimate_memory(part, (8,), batch_size=2).peak_bytes and 384,
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("look", LOOKS)
def test_a_forward_may_look_at_itself(look: str, run: str) -> None:
    """The inner pass has its own numbers, and leaves no trace in the outer one's."""

    def looking(left: nn.Module, right: nn.Module, x: Tensor) -> list[Tensor]:
        assert LOOKS[look](right, x) == 2 * (8 * 16 + 16 * 4)
        return [left(x), right(x)]

    model = Branches(looking).eval()
    assert unchanged(model, run).rows == unchanged(Branches(in_turn).eval(), run).rows
