"""Every format, parsed, has the summary's data, for random models with hostile names."""

import io
import json
import re
from typing import Any

import jsonschema
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from torch import nn

from tests.truth.random_models import HOSTILE, Branches, law, looks, summaries
from torchsummary_plus import InputError, MemoryEstimate, ModelSummary, summary
from torchsummary_plus.data.units import UNITS, one_line
from torchsummary_plus.formats.data import VERSION
from torchsummary_plus.formats.table import Table, for_text

LAW = law(7)
MEMORY = law(3)


def plain(text: str) -> str:
    """A text as a page shows it: spaces run together."""
    return " ".join(text.split())


def shown(table: Table) -> list[list[str]]:
    """What a table shows, line by line, without its nesting."""
    headings = [table.labels, *(field.heading for field in table.fields)]
    rows = [[one_line(row.label), *(one_line(cell.text) for cell in row.cells)] for row in table.rows]
    return [list(map(plain, line)) for line in [headings, *rows]]


def markdown_tables(text: str, markup: tuple[str, ...] = ()) -> list[list[list[str]]]:
    """The tables of a Markdown document, as a parser with the tables of GitHub reads them; no other markup is there."""
    tables: list[list[list[str]]] = []
    for token in (tokens := MarkdownIt("commonmark").enable("table").parse(text)):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type == "inline" and tokens[tokens.index(token) - 1].type in ("th_open", "td_open"):
            assert {child.type for child in token.children or ()} <= {"text", "text_special", *markup}
            tables[-1][-1].append(plain("".join(child.content for child in token.children or ())))
    return tables


@LAW
@given(summaries(), looks, st.sampled_from(UNITS))
def test_markdown_shows_the_table_and_nothing_in_it_is_markup(result: ModelSummary, look: Any, units: str) -> None:
    tables = result.tables(**look, units=units)
    text = result.to_markdown(**look, units=units)
    assert markdown_tables(text) == [shown(for_text(table)) for table in tables]
    items = [plain(line[2:]) for line in text.splitlines() if line.startswith("- ")]
    assert len(items) == sum(len(table.totals) + len(table.notes) for table in tables)


def in_csv(value: Any) -> str:
    """A value as a cell: text has no NUL, and an apostrophe in front of what would be a formula."""
    text = str(value).replace("\0", "\ufffd")
    return f"'{text}" if isinstance(value, str) and re.match(r"[=+\-@\t\r]", text) else text


def of_rows(table: Table) -> list[list[Any]]:
    return [[row.label, row.path, row.level, *(cell.value for cell in row.cells)] for row in table.rows]


@LAW
@given(summaries(), looks)
def test_pandas_reads_the_csv_and_gets_the_frame(result: ModelSummary, look: Any) -> None:
    look = {"columns": None, **look}
    frame = result.to_dataframe(**look).drop(columns="type")
    for name in frame:
        if frame[name].dtype == object:
            frame[name] = _as_text(frame[name])
    words = {name: "string" for name in frame if frame[name].dtype == "string"}
    text = result.to_csv(**look)
    assert text.endswith("\r\n") and len(re.findall(r'[^"\r\n]*(?:"[^"]*"[^"\r\n]*)*\r\n', text)) == len(frame) + 1
    read = pandas.read_csv(
        io.StringIO(text, newline=""),
        dtype=dict(frame.dtypes),
        keep_default_na=False,
        na_values={name: [""] for name in frame if name not in ("layer", "path")},
    )
    assert set(frame.dtypes.astype(str)) <= {"string", "Int64", "Float64"} and {"layer", "path"} <= set(words)
    assert [[None if pandas.isna(v) else v for v in row] for row in frame.itertuples(index=False)] == of_rows(
        result.tables(**look)[0]
    )
    for name in words:
        frame[name] = pandas.array([None if pandas.isna(v) else in_csv(v) for v in frame[name]], "string")
    pandas.testing.assert_frame_equal(read, frame)


def _as_text(shapes: Any) -> Any:
    """Shapes as the CSV has them."""
    texts = [None if shape is None else _shape_text(shape) for shape in shapes]
    return pandas.array(texts, "string")


def _shape_text(shape: Any) -> str:
    if isinstance(shape, dict):
        return "{" + ", ".join(f"{name}: {_shape_text(axes)}" for name, axes in shape.items()) + "}"
    if isinstance(shape, tuple):
        return "[" + ", ".join(map(_shape_text, shape)) + "]"
    return str(shape)


def test_a_frame_has_types_shapes_bytes_and_dtypes() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    frame = summary(net, (3, 8, 8), verbose=0).to_dataframe()
    assert list(frame) == [
        "layer", "type", "path", "level", "input_size", "output_size", "num_params", "mult_adds", "output_bytes",
        "dtype",
    ]  # fmt: skip
    assert frame[frame["type"] == "Linear"]["output_size"].tolist() == [(-1, 10)]
    assert frame["output_size"].map(lambda shape: shape[1]).tolist() == [8, 8, 288, 10]
    assert frame["output_bytes"].sum() == 4 * (8 * 36 * 3 + 10) and set(frame["dtype"]) == {"float32"}
    assert list(summary(net, (3, 8, 8), verbose=0).to_dataframe(columns=["num_params"]))[4:] == ["num_params"]
    trained = summary(net, (3, 8, 8), memory="train", verbose=0)
    assert {"saved_bytes", "peak_bytes"} <= set(trained.to_dataframe())


@LAW
@given(summaries())
def test_json_gives_an_equal_summary_back(result: ModelSummary) -> None:
    assert_comes_back(result)


@MEMORY
@given(summaries(("train", "eval")))
def test_json_gives_an_equal_estimate_back_with_its_log(result: ModelSummary) -> None:
    assert_comes_back(result)
    if result.memory is not None:
        assert_comes_back(result.memory)
        assert MemoryEstimate.from_json(result.memory.to_json()).timeline == result.memory.timeline


def assert_comes_back(result: Any) -> None:
    text = result.to_json()
    back = type(result).from_json(text)
    assert back == result and back.to_json() == text and str(back) == str(result)
    assert json.loads(text) == result.to_dict()
    jsonschema.Draft202012Validator(type(result).json_schema()).validate(result.to_dict())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda data: data.update(type="Estimate"),
            f"is of 'Estimate', version {VERSION}; accepted: ModelSummary, {VERSION} or another 1.x",
        ),
        (lambda data: data.pop("rows"), "is not a ModelSummary; its fields: rows, "),
        (lambda data: data.update(total_params="many"), "'many' is not of type int"),
        (lambda data: data.update(unknown_ops=[["aten::x"]]), "does not have 2 items"),
    ],
    ids=["type", "missing", "value", "tuple"],
)
def test_json_of_another_kind_is_refused(change: Any, told: str) -> None:
    data = summary(nn.Linear(2, 2), (2,), verbose=0).to_dict()
    change(data)
    with pytest.raises(InputError, match=re.escape(told)):
        ModelSummary.from_json(json.dumps(data))
    with pytest.raises(InputError, match="not valid JSON"):
        ModelSummary.from_json("{")


def hostile() -> nn.Module:
    """A model whose every name is hostile."""
    model = Branches()
    for name in HOSTILE:
        if "." not in name:
            model.add_module(name, type(name.replace("\0", ""), (nn.Sequential,), {})(nn.Linear(4, 4)))
    return model


def test_files_of_other_minor_versions_are_read() -> None:
    result = summary(nn.Sequential(nn.Linear(4, 4)), (4,), memory="train", style="tree", verbose=0)
    data = result.to_dict()
    older = {**data, "version": 1, "view": {name: data["view"][name] for name in ("style", "depth", "col_names")}}
    assert ModelSummary.from_json(json.dumps(older)) == result
    newer = json.loads(result.to_json())
    newer.update(version="1.9", spirit="unheard of")
    newer["rows"][0]["mood"] = "good"
    newer["memory"]["info"]["weather"] = "fine"
    assert ModelSummary.from_json(json.dumps(newer)) == result
    with pytest.raises(InputError, match="its fields"):
        ModelSummary.from_json(json.dumps({**newer, "version": data["version"]}))
    with pytest.raises(InputError, match=r"version 2\.0; accepted: ModelSummary, 1\.\d+ or another 1\.x"):
        ModelSummary.from_json(json.dumps({**newer, "version": "2.0"}))
