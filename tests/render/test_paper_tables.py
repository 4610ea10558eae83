"""Tables as papers print them: units by figure, decimals, titles, FLOPs and shapes, the same in every format."""

from typing import Any

import pytest
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import Comparison, InputError, ModelSummary, compare, estimate_memory, summary


def network(width: int = 512) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(width * 49, 1000))


PARAMS = 512 * 28 + 512 * 49 * 1000 + 1000
MACS = 512 * 27 * 49 + 512 * 49 * 1000

PAPER: dict[str, Any] = {
    "columns": ["output_size", "params", "macs"],
    "units": {"params": "M", "mult_adds": "G"},
    "titles": {"layer": "Block", "params": "Weights (M)"},
    "digits": 3,
    "shapes": "channels_last",
}


@pytest.fixture(scope="module")
def result() -> ModelSummary:
    return summary(network(), (3, 14, 14), style="tree", verbose=0)


@pytest.fixture(scope="module")
def pair() -> Comparison:
    return compare({"small": network(256), "large": network()}, input_size=(3, 14, 14), ratios=True)


@pytest.mark.parametrize("view", ["to_text", "to_markdown", "to_latex", "to_html", "render"])
def test_every_format_writes_the_same_figures(result: ModelSummary, view: str) -> None:
    options = {"col_names" if view == "render" and name == "columns" else name: PAPER[name] for name in PAPER}
    text = getattr(result, view)(**options).replace(r"$\times$", "x")
    for shown in ("Block", "Weights (M)", "Mult-Adds (G)", "7 x 7 x 512", f"{PARAMS / 1e6:.3f}", f"{MACS / 1e9:.3f}"):
        assert shown in text
    assert f"{PARAMS:,}" not in text and "[-1" not in text


def test_flops_are_two_a_multiply_add_and_named_so(result: ModelSummary, pair: Comparison) -> None:
    text = result.to_text(columns=["mult_adds"], flops=True)
    assert (
        f"Total FLOPs: {2 * MACS:,}" in text
        and "FLOPs: 2 x multiply-adds" in text
        and "ult-" not in text.replace("2 x multiply-adds", "")
    )
    assert f"{2 * MACS:,}" in result.to_csv(columns=["flops"]).replace(f"{2 * MACS}", f"{2 * MACS:,}")
    table = pair.tables(flops=True, units={"mult_adds": "auto"}, digits=1)[0]
    (row,) = [row for row in table.rows if row.path == "total_mult_adds"]
    assert row.label == "FLOPs per sample" and row.cells[1].text == f"{2 * MACS / 1e6:.1f} M"
    assert row.cells[1].value == 2 * MACS and row.cells[2].text == "2.0x"


def test_shapes_lose_the_batch_axis_and_no_other() -> None:
    @of_parts(lambda: {"rnn": nn.GRU(4, 8, num_layers=2)})
    def Recurrent(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]

    for batch in (-1, 5):
        table = summary(Recurrent(), (3, 4), batch, batch_dim=1, verbose=0).tables(shapes="sample")[0]
        assert [row.cells[0].text for row in table.rows] == ["[3 x 8, 2 x 8]"]
    done = summary(network(), (3, 14, 14), 2, col_names=["output_size", "kernel_size"], verbose=0)
    texts = [[cell.text for cell in row.cells] for row in done.tables(shapes="sample")[0].rows]
    assert texts[0] == ["512 x 7 x 7", "3 x 3"] and texts[-1] == ["1000", "--"]


def test_a_comparison_and_an_estimate_take_them_too(pair: Comparison) -> None:
    figures, layers = pair.tables(units={"params": "M"}, titles={"params": "Params", "num_params": "P"}, digits=1)
    assert figures.rows[0].label == "Params" and figures.rows[0].cells[1].text == f"{PARAMS / 1e6:.1f}"
    assert [field.heading for field in layers.fields][2::2] == ["small: P", "large: P"]
    step = estimate_memory(network(16), (3, 14, 14), device="cpu")
    (table,) = step.tables(units={"bytes": "KiB"}, digits=0, columns=["bytes"])
    assert table.rows[0].cells[0].text == f"{step.at_peak['parameters'] / 1024:.0f}"
    assert f"{step.at_peak['parameters'] / 1024:.2f} KiB" in step.to_text(units={"bytes": "KiB"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": {"params": "MiB"}}, r"units\['params'\] is 'MiB'; accepted: 'K', 'M', 'G', 'T', 'B', 'auto'"),
        ({"units": {"weights": "M"}}, "figure of units is 'weights'; accepted: 'params', 'mult_adds', 'bytes'"),
        ({"titles": {"parms": "P"}}, "column of titles is 'parms'; accepted: 'layer', "),
        ({"shapes": "nhwc"}, "shapes is 'nhwc'; accepted: None, 'sample', 'channels_last'"),
    ],
)
def test_an_unknown_choice_names_the_known_ones(result: ModelSummary, options: dict[str, Any], message: str) -> None:
    for view in (result.to_text, result.to_markdown):
        with pytest.raises(InputError, match=message):
            view(**options)


def test_models_are_rows_with_the_figures_of_a_paper(pair: Comparison) -> None:
    look: dict[str, Any] = {"orient": "models", "figures": ["params", "macs"], "layers": False}
    (table,) = pair.tables(**look, units={"params": "M", "mult_adds": "M"}, titles={"model": "Net"})
    assert [table.labels, *(field.heading for field in table.fields)] == [
        "Net", "Total params (M)", "Total params / small", "Mult-adds per sample (M)", "Mult-adds per sample / small",
    ]  # fmt: skip
    assert [row.label for row in table.rows] == ["small", "large"]
    assert [cell.text for cell in table.rows[1].cells[::2]] == [f"{PARAMS / 1e6:.2f}", f"{MACS / 1e6:.2f}"]
    assert f"large & {PARAMS / 1e6:.2f} & 2.00x" in pair.to_latex(**look, units={"params": "M"})
    csv = pair.to_csv(orient="models", figures="params")
    assert csv.splitlines()[2].startswith(f"large,large,0,{PARAMS},1.99")
    with pytest.raises(InputError, match="orient is 'rows'; accepted: 'figures', 'models'"):
        pair.to_text(orient="rows")
    with pytest.raises(InputError, match="figure is 'parms'; accepted: 'total_params', 'trainable_params'"):
        pair.to_markdown(figures=["parms"])


def test_a_comparison_counts_multiply_adds_per_sample_and_says_so() -> None:
    nets, columns = {"a": network(4), "b": network(8)}, ["mult_adds", "flops"]
    one, eight = (compare(nets, input_size=(3, 14, 14), batch_size=n, col_names=columns) for n in (1, 8))
    for result in (one, eight):
        text, page = result.to_text(figures=["macs", "flops"]), result.to_html()
        assert "Mult-adds per sample" in text and "FLOPs per sample" in text and "Mult-adds per sample" in page
        assert "a: Mult-Adds per sample" in text
    ones, eights = ([[cell.value for cell in row.cells[1:]] for row in c.tables()[1].rows] for c in (one, eight))
    assert ones == eights and all(flops == 2 * work for row in ones for work, flops in zip(row[::2], row[1::2]))
    assert one.tables(figures="macs")[0].rows[0].cells == eight.tables(figures="macs")[0].rows[0].cells
