"""Tables, from which all formats are rendered, have the text's cells and the values behind them, and users' columns."""

import json
from typing import Any

import pytest
from torch import Tensor, nn

from examples.resnet import resnet18
from examples.simple_cnn import PooledCNN
from tests.parts import of_parts
from torchsummary_plus import InputError, ModelSummary, compare, estimate_memory, register_column, summary
from torchsummary_plus.api.cli import main
from torchsummary_plus.formats.table import CellStyle, written
from torchsummary_plus.render.columns import COLUMNS
from torchsummary_plus.table.columns import summary_table


def described(functional: bool = False, memory: str | None = None) -> ModelSummary:
    model, size = (PooledCNN(), (1, 28, 28)) if functional else (resnet18(), (3, 64, 64))
    return summary(model, size, 2, functional=functional, memory=memory, verbose=0)


@pytest.mark.parametrize(("style", "depth", "functional"), [("torchsummary", None, False), ("tree", 1, True)])
def test_the_table_reads_as_the_text(style: str, functional: bool, depth: int | None) -> None:
    done = described(functional, memory="train")
    columns = [name for name, column in COLUMNS.items() if not column.of_ranks]
    (table,) = written([summary_table(done, style, depth, columns)], CellStyle())
    lines = done.render(style=style, depth=depth, col_names=columns).split("=\n")[1].splitlines()
    assert len(table.rows) == len(lines) - 1
    for row, line in zip(table.rows, lines):
        assert "".join(line.split()).lstrip("├└─│") == "".join(
            "".join([row.label, *(c.text for c in row.cells)]).split()
        )


def test_what_nobody_knows_has_no_value() -> None:
    table = summary_table(summary(resnet18(), verbose=0), "tree", None, ["output_size", "mult_adds", "output_bytes"])
    assert {cell.value for row in table.rows for cell in row.cells} == {None}
    totals = {total.field.name: total.cell for total in table.totals}
    assert totals["total_mult_adds"].value is None and totals["input_bytes"].text == "N/A"
    assert totals["param_bytes"].value == 46_758_048


def test_a_frame_of_estimates_has_their_times() -> None:
    """Whole numbers and a time are in one column."""
    steps = {name: estimate_memory(nn.Linear(8, 8), (8,), gpu="A100 80GB", optimizer=name) for name in ("adam", "sgd")}
    frame = compare(steps).to_dataframe().set_index("figure")
    assert 0 < frame.loc["Time (ms)", "sgd"] < frame.loc["Time (ms)", "adam"] < 1
    assert frame.loc["Peak", "adam"] == steps["adam"].peak_bytes


def test_unregistered_layers_are_marked_in_every_format() -> None:
    @of_parts(lambda: {"layers": [nn.Linear(8, 1000)], "out": nn.Linear(1000, 1)})
    def Unregistered(self, x: Tensor) -> Tensor:
        return self.out(self.layers[0](x))

    done = summary(Unregistered(), (8,), verbose=0)
    for text in (done.render(), done.to_markdown(), done.to_latex(), done.to_html()):
        assert "(9,000)" in text and "9,000 parameters in layers; .to(), " in text
    assert done.to_csv().splitlines()[0].endswith(",num_params,unregistered_params")
    assert [line[-7:] for line in done.to_csv().splitlines()[1:]] == [",0,9000", ",1001,0"]
    assert ModelSummary.from_json(done.to_json()) == done
    registered = nn.Sequential(nn.Linear(8, 1000), nn.Linear(1000, 1))
    compared = compare(Unregistered(), registered, input_size=(8,))
    assert "In Unregistered: not registered" in compared.to_text()


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
