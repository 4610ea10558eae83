"""``summary(memory=...)``: the estimate below the table, memory columns, shell options."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.memory.test_memory_footprint import Tied
from torchsummary_plus.api.cli.main import main
from torchsummary_plus.api.memory import estimate_memory, max_batch_size
from torchsummary_plus.api.table import summary
from torchsummary_plus.data.errors import InputError
from torchsummary_plus.render.columns import COLUMNS
from torchsummary_plus.results.model_summary import ModelSummary
from torchsummary_plus.table.lines import flat_lines, tree_lines

ROOT = Path(__file__).parents[2]
MEMORY = [name for name, column in COLUMNS.items() if column.of_memory and not column.of_ranks]

LOSS = 2 * 4
"""Bytes of the default loss and of the gradient it begins with: no row of the model keeps them."""


class Scaled(nn.Module):
    """A parameter of the root, one in a list that nothing calls, a block, and functions between."""

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


@pytest.mark.parametrize("depth", [None, 0, 1])
@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_estimate_is_that_of_the_call_by_itself(mode: str) -> None:
    build, size = MODELS["scaled"]
    assert summed("scaled", mode).memory == estimate_memory(build(), size, 3, mode=mode)


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


@pytest.mark.parametrize("name", MEMORY)
def test_a_column_of_memory_without_memory_names_the_cure(name: str) -> None:
    with pytest.raises(InputError, match='memory="train"'):
        summary(Scaled(), (16,), col_names=[name], verbose=0)
    with pytest.raises(InputError, match='memory="train"'):
        summary(Scaled(), (16,), verbose=0).render(col_names=[name])


@pytest.mark.parametrize(
    ("memory", "words"),
    [("both", "'train', 'eval'"), ({"optimiser": "sgd"}, "'optimizer'"), ({"mode": "same"}, "'train', 'eval'")],
)
def test_an_unknown_step_or_option_names_the_accepted_ones(memory: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        summary(Scaled(), (16,), memory=memory, verbose=0)


def test_memory_needs_an_input() -> None:
    with pytest.raises(InputError, match="no input"):
        summary(Scaled(), memory="train", verbose=0)


def test_the_largest_batch_is_the_same_by_size_and_by_data() -> None:
    by_size = max_batch_size(Scaled(), (16,), 1 << 18, device="cpu", optimizer="sgd")
    data = torch.randn(4, 16)
    assert max_batch_size(Scaled(), memory=1 << 18, device="cpu", input_data=data, optimizer="sgd") == by_size
    assert by_size.batch_size > 100


def test_data_grows_along_the_batch_alone() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 16)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.words(ids) * mask

    memory = 1 << 20
    ids, mask = torch.randint(0, 9, (4, 6)), torch.rand(6, 16)
    limit = max_batch_size(Masked(), memory=memory, device="cpu", input_data=(ids, mask))
    fitting = ids[torch.arange(limit.batch_size) % 4]
    assert estimate_memory(Masked(), input_data=(fitting, mask)).peak_bytes == limit.peak_bytes


@pytest.mark.parametrize("words", [{"loss": "msee"}, {"train_step": 3}, {"steps": 0}, {"device": "meta"}], ids=str)
def test_wrong_options_of_a_step_are_named(words: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(words))}.*accepted"):
        estimate_memory(Scaled(), (16,), 2, **words)


def test_the_shell_says_whether_it_fits_and_the_largest_batch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = ["examples/simple_cnn.py:PooledCNN", "1,28,28", "--batch-size", "8", "--optimizer", "adamw"]
    assert main([*words, "--gpu", "RTX 4090", "--max-batch"]) == 0
    printed = capsys.readouterr().out
    assert "Training step: PooledCNN, batch 8, AdamW" in printed
    assert "\nFits: yes, " in printed and "\nLargest batch: " in printed
    assert main([*words, "--gpu", "300MiB", "--memory", "eval"]) == 3
    assert "\nFits in 300MiB: no, " in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--max-batch"], ["--memory", "fit"], ["--gpu", "RTX 5000000"]], ids=str)
def test_the_shell_refuses_with_2(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["examples/simple_cnn.py:PooledCNN", "1,28,28", *words]) == 2
    assert capsys.readouterr().out == ""
