"""Arguments known from torchinfo, Keras and Hugging Face: they work, or the error names the cure."""

from __future__ import annotations

import io
import re
from collections import UserDict
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.gpt2 import GPT2, Config
from examples.resnet import resnet18
from torchsummary_plus import (
    ForwardError,
    InputError,
    ModelSummary,
    StepOptions,
    compare,
    estimate_memory,
    max_batch_size,
    measure_memory,
    summary,
)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, twice: bool = False) -> Tensor:
        y: Tensor = self.fc(x)
        y = y if mask is None else y * mask
        return torch.cat([y, y], -1) if twice else y


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        embedded: Tensor = self.embed(input_ids)
        return embedded


class Pipeline:
    """As those of diffusers: several modules, of which ``components`` has some, beside a configuration."""

    def __init__(self) -> None:
        self.unet, self.scheduler = nn.Linear(8, 4), object()

    @property
    def components(self) -> dict[str, Any]:
        return {"unet": self.unet, "vae": nn.Linear(4, 8), "scheduler": self.scheduler}

    def __call__(self, prompt: str) -> None:
        raise NotImplementedError


@pytest.fixture(scope="module")
def gpt() -> ModelSummary:
    model = GPT2(Config(width=16, depth=12, heads=2, vocabulary=50, context=8))
    return summary(model, (8,), style="tree", verbose=0)


def test_keyword_arguments_of_the_forward() -> None:
    result = summary(Masked(), (8,), batch_size=2, verbose=0, mask=torch.ones(2, 1), twice=True)
    assert result.rows[0].outputs.shown == [2, 8]  # type: ignore[union-attr]
    assert summary(Masked(), (8,), verbose=0, twice=True).rows[0].outputs.shown == [-1, 8]  # type: ignore[union-attr]
    tokens = torch.zeros(2, 5, dtype=torch.long)
    by_name = summary(Tokens(), verbose=0, input_ids=tokens, attention_mask=None)
    assert by_name.rows[0].outputs.shown == [2, 5, 8]  # type: ignore[union-attr]
    trained = summary(Masked(), (8,), 2, memory="train", verbose=0, mask=torch.ones(2, 1), twice=True)
    assert trained.memory is not None and trained.memory.info.batch_size == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dpeth": 3}, "similar names: depth"),
        ({"max_depth": 3}, "write depth="),
        ({"layer_range": ["a", "b"]}, "write rows="),
        ({"optimizer": "adamw"}, "write memory="),
        ({"gpu": "RTX 4090"}, "write memory=..gpu.: .RTX 4090"),
        ({"steps": 3}, r'write memory=\{"steps": \.\.\.\}'),
        ({"print_fn": print}, "str\\(result\\)"),
        ({"frobnicate": 1}, "it takes x, mask, twice"),
    ],
)
def test_an_unknown_option_is_answered_with_the_cure(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        summary(Masked(), (8,), verbose=0, **options)


def test_every_option_of_a_step_is_answered_by_tables_with_memory() -> None:
    """An option new to steps needs no second list: a table's call says that it goes into `memory=`."""
    own = {*signature(summary).parameters, *signature(Masked.forward).parameters}
    for name in {field.name for field in fields(StepOptions)} - own:
        for ask in (summary, compare):
            with pytest.raises(InputError, match=rf'write memory=\{{"{name}": '):
                ask(Masked(), input_size=(8,), **{name: None})  # type: ignore[operator]


def test_what_is_no_model_is_answered_with_the_cure() -> None:
    with pytest.raises(InputError, match=r"model is a state dict of 2 entries; load it into a model"):
        summary(Masked().state_dict(), (8,))  # type: ignore[arg-type]
    program = torch.export.export(nn.Linear(8, 4), (torch.ones(2, 8),))
    for call in (summary, estimate_memory, measure_memory, max_batch_size):
        with pytest.raises(InputError, match=r"of an exported program, pass program\.module\(\)"):
            call(program, (8,))  # type: ignore[operator]
        with pytest.raises(InputError, match=r"model is a Pipeline; .*; pass one of its modules: unet, vae$"):
            call(Pipeline(), (8,))  # type: ignore[operator]
    with pytest.raises(InputError, match=r"write a dict of models by name: compare\(\{\"small\": ...\}\)"):
        compare(small=Masked(), large=Masked(), input_size=(8,))  # type: ignore[call-overload]


def test_torchinfos_options_are_taken() -> None:
    plain = summary(Masked(), (8,), verbose=0)
    assert summary(Masked(), (8,), mode=None, cache_forward_pass=True, batch_dim=0, verbose=0) == plain
    second = summary(Tokens(), (5,), batch_size=3, batch_dim=1, dtypes=[torch.long], verbose=0)
    assert second.rows[0].outputs.shown == [5, 3, 8]  # type: ignore[union-attr]
    unbatched = summary(Masked(), input_data=torch.ones(8), batch_dim=0, verbose=0)
    assert unbatched.rows[0].outputs.shown == [1, 4]  # type: ignore[union-attr]
    trained = summary(Masked(), (3, 8), 2, batch_dim=1, memory="train", verbose=0)
    assert trained.memory is not None and trained.memory.at_peak["inputs"] == 3 * 2 * 8 * 4
    with pytest.raises(InputError, match=r"batch_dim is 2; accepted: .* from 0 .* to 1, the number of axes"):
        summary(Masked(), (8,), batch_dim=2, verbose=0)


def test_row_settings_are_torchinfos() -> None:
    text = str(summary(resnet18(), (3, 32, 32), row_settings=["depth", "var_names"], depth=1, verbose=0))
    assert "├─conv1 (Conv2d): 1-1 " in text and "└─fc (Linear): 1-10 " in text
    plain = str(summary(resnet18(), (3, 32, 32), row_settings=("var_names", "ascii_only"), depth=1, verbose=0))
    assert plain.isascii() and "|-conv1 (Conv2d)" in plain
    shared = nn.Linear(4, 4)
    again = summary(nn.Sequential(shared, nn.ReLU(), shared), (4,), style="tree", verbose=0)
    assert "(recursive)" in str(again)
    hidden = again.to_text(row_settings=["hide_recursive_layers"])
    assert "(recursive)" not in hidden and "Rows shown: 3 of 4" in hidden
    with pytest.raises(InputError, match="row_settings is 'names'; accepted: 'var_names'"):
        summary(nn.Linear(2, 2), row_settings=["names"], verbose=0)


@pytest.mark.parametrize("data", [torch.ones(2, 8), [torch.ones(2, 8)], {"x": torch.ones(2, 8)}])
def test_tensors_in_place_of_a_size_are_inputs(data: Any) -> None:
    result = summary(Masked(), data, verbose=0)
    assert result == summary(Masked(), input_data=data, verbose=0) and result.run.batch_size == 2


def test_what_a_tokenizer_returns() -> None:
    encoded = UserDict(input_ids=torch.zeros(2, 5, dtype=torch.long), attention_mask=torch.ones(2, 5))
    for given in ({"input_size": encoded}, {"input_data": encoded}):
        assert summary(Tokens(), **given, verbose=0).run.batch_size == 2
    with pytest.raises(InputError, match="pass tensors as input_data="):
        summary(Masked(), (8,), torch.ones(2, 8), verbose=0)  # type: ignore[arg-type]


def test_a_modules_own_name_is_its_type() -> None:
    class Odd(nn.Linear):
        def _get_name(self) -> str:
            return "Fancy"

    class Broken(nn.Linear):
        def _get_name(self) -> str:
            raise RuntimeError("no name")

    result = summary(nn.Sequential(Odd(4, 4), Broken(4, 4)), (4,), verbose=0)
    assert [row.class_name for row in result.rows] == ["Sequential", "Fancy", "Broken"]
    assert "Fancy-1" in str(result)


def test_equal_neighbours_print_as_one(gpt: ModelSummary) -> None:
    text = str(gpt)
    assert "0 to 11 (Block) x 12" in text and text.count("ln_1 (LayerNorm)") == 1
    assert "0 to 11 (Block) x 12" in gpt.to_markdown() and "0 to 11 (Block) x 12" in gpt.to_latex()
    assert f"Total params: {gpt.total_params:,}" in text
    everything = gpt.to_text(repeats="show")
    assert everything.count("ln_1 (LayerNorm)") == 12 and " x 12" not in everything
    assert len(gpt.to_dataframe()) == len(gpt.rows) == gpt.to_csv().count("\r\n") - 1
    folded = gpt.tables(repeats="fold")[0]
    assert len(folded.rows) == len(gpt.rows) - 11 * sum(".0." in row.path or row.path == "h.0" for row in gpt.rows)


def test_the_flat_style_does_not_fold(gpt: ModelSummary) -> None:
    assert gpt.to_text(style="torchsummary").count("LayerNorm-") == 25
    with pytest.raises(InputError, match='pass style="tree" too'):
        summary(nn.Linear(2, 2), repeats="fold", verbose=0)


def test_neighbours_that_differ_do_not_fold() -> None:
    frozen = nn.Linear(4, 4).requires_grad_(False)
    net = nn.Sequential(nn.Linear(4, 4), frozen, nn.Linear(4, 4), nn.Linear(4, 4))
    text = str(summary(net, (4,), style="tree", verbose=0))
    assert "2 to 3 (Linear) x 2" in text and "0 (Linear)" in text and "1 (Linear)" in text


def test_a_diagram_folds_the_same_way(gpt: ModelSummary) -> None:
    assert "0 to 11: Block x 12" in gpt.to_mermaid("flow")


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        ("MaxPool2d", ["MaxPool2d-4"]),
        (["MaxPool2d", "fc"], ["MaxPool2d-4", "Linear-68"]),
        (nn.Linear, ["Linear-68"]),
        ("layer1.0.conv*", ["Conv2d-5", "Conv2d-8"]),
        (range(2), ["Conv2d-1", "BatchNorm2d-2"]),
        (slice(-2, None), ["AdaptiveAvgPool2d-67", "Linear-68"]),
        ("conv1:maxpool", ["Conv2d-1", "BatchNorm2d-2", "ReLU-3", "MaxPool2d-4"]),
    ],
)
def test_rows_are_chosen_by_type_name_or_range(rows: Any, labels: list[str]) -> None:
    result = summary(resnet18(), (3, 32, 32), verbose=0)
    table = result.tables(rows=rows)[0]
    assert [row.label for row in table.rows] == labels
    text = result.to_text(rows=rows)
    assert f"Rows shown: {len(labels)} of 68" in text and f"Total params: {result.total_params:,}" in text


def test_every_format_takes_rows_and_a_width() -> None:
    result = summary(resnet18(), (3, 32, 32), style="rich", verbose=0)
    for view in ("to_text", "to_markdown", "to_latex", "to_html", "to_csv", "to_dataframe", "tables"):
        shown = str(getattr(result, view)(rows="Linear", col_width=12))
        assert "Linear" in shown and "Conv2d" not in shown
    with pytest.raises(InputError, match='pass style="tree" too'):
        result.to_latex(repeats="fold", style="torchsummary")
    assert "0 to 1 (BasicBlock) x 2" in result.to_latex(repeats="fold", style="tree")


def test_a_chosen_row_keeps_its_place_in_the_tree() -> None:
    result = summary(resnet18(), (3, 32, 32), rows="layer2.0.conv1", style="tree", verbose=0)
    names = [row.label for row in result.tables()[0].rows]
    assert names == ["ResNet", "layer2 (Sequential)", "0 (BasicBlock)", "conv1 (Conv2d)"]
    with pytest.raises(InputError, match=r"rows is 'Conv3d', which matches no row; types here: .*Conv2d"):
        result.to_text(rows="Conv3d")
    assert ModelSummary.from_json(result.to_json()) == result


class Cache(nn.Module):
    """Returns GPT-2's ``past_key_values``: two tensors a layer."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"past_key_values": tuple((x, x) for _ in range(12))}


def test_wide_cells_are_shortened() -> None:
    result = summary(nn.Sequential(Cache()), (4, 8), verbose=0)
    assert len(str(result.tables()[0].rows[-1].cells[0].value)) > 300
    for text in (result.to_text(), result.to_markdown(), result.to_latex()):
        assert max(map(len, text.splitlines())) < 120 and "..." in text
    narrow = result.to_text(col_width=20)
    assert "{past_key_values:..." in narrow and f"Total params: {result.total_params}" in narrow
    assert max(map(len, narrow.splitlines())) == 64
    with pytest.raises(InputError, match="col_width is 3; accepted: an integer of at least 8"):
        summary(Cache(), (4, 8), col_width=3, verbose=0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_text_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    result = summary(nn.Sequential(Cache()), (4, 8), col_names=["input_size", "output_size"], verbose=0)
    monkeypatch.setenv("COLUMNS", "90")
    assert max(map(len, result.to_terminal(Terminal()).splitlines())) <= 90
    assert result.to_terminal(io.StringIO()) == str(result) and max(map(len, str(result).splitlines())) > 90


def test_rich_draws_in_a_terminal_and_plain_text_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("LINES", "14")
    monkeypatch.setenv("TERM", "xterm-256color")
    result = summary(resnet18(), (3, 32, 32), style="rich", col_names=["output_size", "num_params"], verbose=0)
    drawn = result.to_terminal(Terminal())
    plain = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    lines = plain.splitlines()
    assert "\x1b[" in drawn and max(map(len, lines)) <= 70
    assert sum("Layer (type)" in line for line in lines) > 3
    assert "2,359,296" in plain and f"Total params: {result.total_params:,}" in plain
    assert result.to_terminal(io.StringIO()) == str(result) == result.to_text(style="tree")


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3)), (1, 3, 8, 8)),
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), (2, 12)),
        (resnet18(), (32, 3, 64, 64)),
    ],
    ids=["convolution", "flattened", "resnet"],
)
def test_a_size_with_a_batch_axis_gets_a_hint(model: nn.Module, size: tuple[int, ...]) -> None:
    with pytest.raises(ForwardError, match="without the batch axis"):
        summary(model, size, verbose=0)
