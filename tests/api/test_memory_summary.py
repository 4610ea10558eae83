"""``summary(memory=...)``: the estimate below the table, memory columns."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.memory.test_memory_footprint import Tied
from torchsummary_plus.api.table import summary
from torchsummary_plus.render.columns import COLUMNS
from torchsummary_plus.results.model_summary import ModelSummary
from torchsummary_plus.table.lines import flat_lines, tree_lines

MEMORY = [name for name, column in COLUMNS.items() if column.of_memory and not column.of_ranks]

LOSS = 2 * 4
"""Bytes of the default loss and of the gradient it begins with: no row of the model keeps them."""


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.shifts = nn.ParameterList([torch.zeros(16), torch.zeros(16)])
        self.body = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Sequential(nn.Linear(16, 16), nn.GELU()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.body(x) * self.scale + self.shifts[0]) + self.shifts[1]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {"tied": (Tied, (5,)), "scaled": (Scaled, (16,))}


def summed(name: str, memory: Any, **options: Any) -> ModelSummary:
    build, size = MODELS[name]
    return summary(build(), size, 3, memory=memory, verbose=0, **options)


@pytest.mark.parametrize(("name", "depth"), [("tied", 1), ("scaled", None), ("scaled", 0)])
def test_the_lines_add_up_to_what_the_step_holds(name: str, depth: int | None) -> None:
    result = summed(name, {"optimizer": "adamw"})
    assert result.memory is not None
    whole = result.memory.by_module[0].inclusive
    totals = (whole.saved_bytes - LOSS, whole.grad_bytes, whole.optimizer_bytes)
    assert min(totals) > 0
    lines = [line.memory for line in flat_lines(result, depth) if line.memory is not None]
    assert tuple(sum(getattr(m, f) for m in lines) for f in ("saved_bytes", "grad_bytes", "optimizer_bytes")) == totals
    root = tree_lines(result, depth)[0].memory
    assert root is not None
    assert (root.saved_bytes, root.grad_bytes, root.optimizer_bytes) == totals


def test_the_estimate_stands_under_the_table_and_two_columns_to_its_right() -> None:
    result = summed("scaled", {"optimizer": "adamw"})
    text = str(result)
    assert "Saved (MiB)" in text and "Live (MiB)" in text
    assert text.endswith(f"\n{result.memory}")
    assert "Training step: Scaled, batch 3, AdamW, float32, loss: the output's sum,\n  on the CPU" in text
    assert pickle.loads(pickle.dumps(result)) == result
    shown = result.render(style="tree", col_names=MEMORY)
    assert all(COLUMNS[name].heading in shown for name in MEMORY)


@pytest.mark.parametrize("style", ["torchsummary", "tree"])
def test_torchsummarys_sum_is_no_second_answer_beside_the_peak(style: str) -> None:
    """Only the estimate says what the step needs, in one unit; a table without memory keeps torchsummary's lines."""
    guesses = "Estimated Total Size", "Forward/backward pass size"
    for memory in ("train", None):
        result = summed("scaled", memory, style=style)
        page = result.to_html()
        for text in (str(result), result.to_markdown(), result.to_latex(), page):
            assert all((guess in text) is (memory is None) for guess in guesses)
        assert memory is None or ("(MB)" not in str(result) and "Peak" in page and "Params size (MiB)" in str(result))
