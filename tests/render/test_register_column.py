"""User-defined columns: in every format, and gone once removed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch import nn

from torchsummary_plus import InputError, compare, register_column, summary
from torchsummary_plus.api.cli.main import main
from torchsummary_plus.render.columns import COLUMNS


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU())


def reuse(line: Any, report: Any) -> float | None:
    return line.mult_adds / line.num_params if line.num_params else None


def test_a_column_is_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    with register_column("reuse", "Uses", unit="ratio", width=8)(reuse):
        s = summary(net(), (1, 8, 8), col_names=["num_params", "reuse"], verbose=0)
        for text in (s.to_text(), s.render(style="tree"), s.to_markdown(), s.to_latex(), s.to_html()):
            assert "Uses" in text and "36.00" in text
        assert "reuse" in s.to_csv() and "36.0" in s.to_csv()
        assert json.loads(s.to_json())
        both = compare(net(), net(), input_size=(1, 8, 8), col_names=["reuse"])
        assert "36.00" in str(both)
        assert main(["examples/davenet.py:Audio", "40,1024", "--columns", "reuse"]) == 0
        assert "Uses" in capsys.readouterr().out
    with pytest.raises(InputError, match="column is 'reuse'"):
        s.render()


def test_texts_whole_numbers_and_what_is_not_there() -> None:
    values = {"ReLU": "a word", "Tanh": 12345, "Sigmoid": None}
    with register_column("any_value", "Any")(lambda line, report: values[line.row.class_name]):
        s = summary(nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid()), (8,), verbose=0)
        (table,) = s.tables(columns=["any_value"])
    assert [row.cells[0].text for row in table.rows] == ["a word", "12,345", "--"]
    assert [row.cells[0].value for row in table.rows] == list(values.values())


def test_a_column_of_memory_needs_an_estimate() -> None:
    with register_column("kept", "Kept", unit="bytes", of_memory=True)(lambda line, report: line.memory.saved_bytes):
        with pytest.raises(InputError, match="needs a memory estimate"):
            summary(net(), (1, 8, 8), col_names=["kept"], verbose=0)
        s = summary(net(), (1, 8, 8), memory="train", col_names=["kept", "saved_bytes"], verbose=0)
        assert all(row.cells[0].value == row.cells[1].value for row in s.tables()[0].rows)


@pytest.mark.parametrize(
    ("name", "unit", "told"),
    [
        ("num_params", "", "column num_params already exists: Param #"),
        ("two words", "", "column name is 'two words'; accepted: an identifier"),
        (3, "", "column name is 3"),
        ("fine", "GB", "unit is 'GB'; accepted: 'bytes'"),
    ],
)
def test_other_names_and_units_are_refused(name: Any, unit: str, told: str) -> None:
    before = dict(COLUMNS)
    with pytest.raises(InputError) as caught:
        register_column(name, "Heading", unit=unit)(reuse)
    assert told in str(caught.value) and before == COLUMNS
