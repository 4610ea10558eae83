"""``compare``: figures equal those of the summaries, layers are aligned, and every format shows both."""

import json
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.render.test_paste import markdown_tables, shown
from tests.truth.random_models import law, summaries
from torchsummary_plus import Comparison, InputError, ModelSummary, compare, estimate_memory, summary
from torchsummary_plus.data.errors import ForwardError
from torchsummary_plus.table.lines import STYLES

LAW = law(5)

FIGURES = ("total_params", "trainable_params", "non_trainable_params", "total_mult_adds", "input_bytes")


def mlp(width: int = 8, depth: int = 2, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    inner = [layer for _ in range(depth) for layer in (nn.Linear(width, width), act())]
    return nn.Sequential(nn.Linear(8, width), act(), *inner, nn.Linear(width, 2))


def figures(comparison: Comparison) -> dict[str, list[Any]]:
    return {row.path: [cell.value for cell in row.cells] for row in comparison.tables()[0].rows}


def samples(result: ModelSummary, name: str) -> int:
    """By what a comparison divides a figure: multiply-adds are per sample."""
    return (result.run.batch_size or 1) if name == "total_mult_adds" else 1


@LAW
@given(st.lists(summaries(), min_size=2, max_size=4))
def test_the_figures_are_the_summaries_own(results: list[ModelSummary]) -> None:
    result = figures(compare(*results))
    for name in FIGURES:
        known = [name not in ("total_mult_adds", "input_bytes") or result.run.kind != "none" for result in results]
        expected = [
            round(getattr(result, name) / samples(result, name)) if there else None
            for result, there in zip(results, known)
        ]
        assert result.get(name, [None] * len(results)) == expected


@LAW
@given(st.lists(summaries(), min_size=2, max_size=4), st.sampled_from(list(STYLES)), st.sampled_from([None, 0, 1]))
def test_each_layer_stands_in_one_row_and_in_order(results: list[ModelSummary], style: str, depth: int | None) -> None:
    comparison = compare(*results, style=style, depth=depth)
    for place, (result, entry) in enumerate(zip(results, comparison.entries)):
        lines = STYLES[style](result, depth)
        column = [row[place] for row in comparison.aligned() if row[place] is not None]
        assert column == [line.row.index for line in lines]
        cells = [row.cells[1 + 2 * place : 3 + 2 * place] for row in comparison.tables(layers=True)[1].rows]
        params = [pair[1].value for pair in cells if pair[1].text]
        assert sum(params) == entry.report.total_params == result.total_params


@LAW
@given(summaries(), st.booleans())
def test_a_model_beside_itself_differs_in_nothing(result: ModelSummary, changes_only: bool) -> None:
    comparison = compare(result, result, changes_only=changes_only)
    table, layers = comparison.tables()
    assert not any(cell.best for row in table.rows for cell in row.cells)
    assert {row.cells[0].value for row in layers.rows} <= {"same"}
    assert changes_only == (not layers.rows)
    assert all(first == second for first, second in comparison.aligned())


@law(4)
@given(summaries(), summaries(), st.booleans())
def test_every_format_shows_both_tables(first: ModelSummary, second: ModelSummary, ratios: bool) -> None:
    comparison = compare(first, second, names=["<b>one|</b>", "$two$ `x`"], ratios=ratios)
    tables = comparison.tables()
    assert markdown_tables(comparison.to_markdown(), ("strong_open", "strong_close")) == [
        shown(table) for table in tables
    ]
    text = comparison.to_json()
    assert Comparison.from_json(text) == comparison and json.loads(text) == comparison.to_dict()
    jsonschema.Draft202012Validator(Comparison.json_schema()).validate(comparison.to_dict())
    for number, table in enumerate(tables):
        frame = comparison.to_dataframe(table=number)
        assert len(frame) == len(table.rows) == comparison.to_csv(table=number).count("\r\n") - 1
        assert list(frame.columns[3:]) == [field.name for field in table.fields]
    assert comparison.to_latex().isascii() and "<script" not in comparison.to_html().split("</script>")[-1]
    assert comparison.to_text() == str(comparison)


def test_changes_are_marked_as_in_a_diff() -> None:
    comparison = compare(mlp(), mlp(depth=3), mlp(act=nn.GELU), input_size=(8,), names=["a", "b", "c"])
    rows = {(row.label, row.cells[0].text) for row in comparison.tables()[1].rows}
    assert ("0 (Linear)", "") in rows and ("1 (ReLU / GELU)", "~") in rows
    assert sum(mark == "+" for _, mark in rows) == 2


def test_the_best_value_is_marked_and_ratios_are_to_the_first() -> None:
    comparison = compare(mlp(16), mlp(8), input_size=(8,), names=["large", "small"], ratios=True)
    rows = {row.path: row for row in comparison.tables()[0].rows}
    params = rows["total_params"]
    assert [cell.best for cell in params.cells] == [False, True, False]
    large, small = (int(cell.value or 0) for cell in params.cells[:2])
    assert params.cells[2].value == small / large and params.cells[2].text == f"{small / large:.2f}x"
    assert not any(cell.best for cell in rows["input_bytes"].cells)
    assert f"*{small:,}" in str(comparison) and f"**{small:,}**" in comparison.to_markdown()
    assert rf"\textbf{{{small:,}}}" in comparison.to_latex() and f"<strong>{small:,}</strong>" in comparison.to_html()


def test_a_lower_bound_is_never_the_best() -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.matrix_exp()

    comparison = compare(Odd(), nn.Linear(8, 8), input_size=(8, 8), names=["odd", "plain"])
    table = comparison.tables()[0]
    (work,) = (row for row in table.rows if row.path == "total_mult_adds")
    assert work.cells[0].text == ">=0" and not any(cell.best for cell in work.cells)
    assert any(note.startswith("Not counted in odd: ") for note in table.notes)


def test_one_model_in_several_settings() -> None:
    model = mlp()
    comparison = compare(
        model,
        {"model": model, "batch_size": 4, "memory": {"optimizer": "adamw"}},
        {"model": model, "name": "inference", "memory": {"mode": "eval", "gradient_accumulation_steps": 1}},
        {"model": nn.Conv1d(3, 8, 3), "input_size": (3, 16)},
        input_size=(8,),
        batch_size=2,
        memory={"optimizer": "sgd", "gradient_accumulation_steps": 2},
    )
    assert [entry.name for entry in comparison.entries] == ["Sequential (1)", "Sequential (2)", "inference", "Conv1d"]
    result = figures(comparison)
    sgd, adamw = (
        estimate_memory(model, (8,), batch, optimizer=name, gradient_accumulation_steps=2).peak_bytes
        for batch, name in ((2, "sgd"), (4, "adamw"))
    )
    inference = [estimate_memory(model, (8,), batch, mode="eval").peak_bytes for batch in (2, 4, 2)]
    assert result["training_peak_bytes"][:3] == [sgd, adamw, None]
    assert result["inference_peak_bytes"][:3] == inference
    assert "max_batch_size" not in result


def test_one_rank_of_many_is_compared() -> None:
    memory = {"world_size": 2, "build": mlp, "optimizer": "sgd"}
    result = figures(compare(mlp(), mlp(), input_size=(8,), memory=memory))
    training, inference = (
        estimate_memory(mlp, (8,), world_size=2, **step).peak_bytes for step in ({"optimizer": "sgd"}, {"mode": "eval"})
    )
    assert result["training_peak_bytes"] == [training] * 2 and result["inference_peak_bytes"] == [inference] * 2


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: compare(mlp(), input_size=(8,)), "only one model was given; accepted: 2 or more"),
        (lambda: compare(mlp(), mlp(), (8,)), "pass the size of their inputs as input_size="),
        (lambda: compare(mlp(), mlp(), input_size=(8,), names=["a"]), "accepted: a list of 2 different names"),
        (lambda: compare(mlp(), {"model": mlp(), "size": (8,)}, input_size=(8,)), "an entry's option is 'size'"),
        (lambda: compare(mlp(), {"input_size": (8,)}, input_size=(8,)), "model is None"),
        (lambda: compare(mlp(), mlp(), input_size=(8,), memory="fit"), "memory is 'fit'; accepted: 'train', 'eval'"),
        (lambda: compare(mlp(), mlp(), input_size=(8,)).to_csv(table=2), "table is 2; accepted: 0, 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_understood_is_refused(call: Any, told: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert told in str(caught.value)


class Positions(nn.Module):
    """A model with shapes that have no batch axis, and a batch axis that is not the first."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 12)
        self.body = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 12))
        self.rnn = nn.LSTM(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.body(x + self.embed(torch.arange(8, device=x.device)))
        states: torch.Tensor = self.rnn(result.transpose(0, 1))[0]
        return states


@pytest.mark.parametrize("batches", [(4, 32), (-1, 32), (3, -1)])
def test_summaries_at_different_batches_differ_by_nothing_else(batches: tuple[int, int]) -> None:
    first, second = (summary(Positions(), (8, 12), batch, verbose=0) for batch in batches)
    layers = compare(first, second).tables()[1]
    assert {row.cells[0].text for row in layers.rows} == {""}
    assert "Batch sizes differ; differences due only to the batch size are not marked" in layers.notes
    wider = summary(Positions(20), (8, 12), batches[1], verbose=0)
    marks = {row.label: row.cells[0].text for row in compare(first, wider).tables()[1].rows}
    assert {label for label, mark in marks.items() if mark} == {"body.0 (Linear)", "body.1 (ReLU)", "body.2 (Linear)"}


def test_a_failing_forward_names_the_model_among_several() -> None:
    with pytest.raises(ForwardError) as caught:
        compare(nn.Linear(8, 4), nn.Sequential(nn.Linear(6, 4)), input_size=(8,))
    assert "; this is model 2 of 2 (Sequential); to give a model its own inputs, pass a dict" in caught.value.hint
