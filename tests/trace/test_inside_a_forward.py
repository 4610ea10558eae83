"""Threads and passes of this package that a forward starts."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.truth.snapshot import changes, snapshot
from torchsummary_plus import ModelSummary, estimate_memory, summary

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
