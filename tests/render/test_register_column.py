"""User-defined columns: in every format, and gone once removed."""

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


@pytest.mark.parametrize(
    ("name", "unit", "told"),
    [
        ("num_params", "", "column num_params already exists: Param #"),
        ("two words", "", "column name is 'two words'; accepted: an identifier"),
        ("fine", "GB", "unit is 'GB'; accepted: 'bytes'"),
    ],
)
def test_other_names_and_units_are_refused(name: Any, unit: str, told: str) -> None:
    before = dict(COLUMNS)
    with pytest.raises(InputError) as caught:
        register_column(name, "Heading", unit=unit)(reuse)
    assert told in str(caught.value) and before == COLUMNS
