"""Explanations: the arithmetic yields the row's own figures for every common layer, and published examples."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn

from examples.cnn3d import CNN3d
from examples.gpt2 import GPT2, Config
from examples.resnet import resnet18
from examples.simple_cnn import PooledCNN
from tests.parts import of_parts
from tests.trace.zoo import ZOO
from torchsummary_plus import InputError, explain, explain_batch, summary
from torchsummary_plus.data.records import tensors
from torchsummary_plus.render.explain import RULES, Arithmetic, product

LAYERS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "Conv1d": (lambda: nn.Conv1d(6, 4, 5, stride=2, padding=3), (6, 21)),
    "Conv2d": (lambda: nn.Conv2d(3, 8, (3, 5), stride=(1, 2), padding=(0, 1), dilation=(2, 1)), (3, 17, 19)),
    "Conv2d, grouped": (lambda: nn.Conv2d(8, 12, 3, groups=4, bias=False), (8, 9, 9)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 3, stride=2), (2, 7, 8, 9)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(8, 4, 4, 2, 1, output_padding=1), (8, 8, 8)),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1), (3, 11, 12)),
    "MaxPool2d, ceil": (lambda: nn.MaxPool2d(3, 2, dilation=2, ceil_mode=True), (3, 12, 12)),
    "Linear": (lambda: nn.Linear(5, 7), (5,)),
    "Embedding": (lambda: nn.Embedding(100, 16), (12,)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(6), (6, 4, 4)),
    "LayerNorm": (lambda: nn.LayerNorm((3, 4)), (5, 3, 4)),
    "RMSNorm": (lambda: nn.RMSNorm(8), (5, 8)),
    "LSTM": (lambda: nn.LSTM(6, 8, batch_first=True), (5, 6)),
    "GRU": (lambda: nn.GRU(6, 8, 2, bidirectional=True), (5, 6)),
    "LSTMCell": (lambda: nn.LSTMCell(4, 8), (4,)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), (8, 3, 3)),
    "double": (lambda: nn.Linear(5, 7, dtype=torch.float64), (5,)),
}


def value(text: str) -> int:
    """Evaluate an arithmetic expression with Python."""
    names = {"floor": lambda x: x.__floor__(), "ceil": lambda x: x.__ceil__()}
    fractions = re.sub(r"(\d+)", r"F(\1)", text.replace(",", "").replace(" x ", " * "))
    result = eval(fractions, {"F": Fraction, "__builtins__": {}}, names)
    assert result == int(result)
    return int(result)


@pytest.mark.parametrize("name", LAYERS)
def test_the_explained_numbers_are_the_rows(name: str) -> None:
    """Every step says what Python makes of it; every figure is the row's, and has its arithmetic."""
    build, size = LAYERS[name]
    row = summary(build(), size, 2, verbose=0).rows[0]
    told = explain(row)
    for step in told.steps:
        assert value(step.expr.text) == step.expr.value == told[step.name]
    assert told.get("parameters", 0) == row.num_params
    assert told.get("parameter_bytes", 0) == sum(p.numel() * p.element_size() for p in build().parameters())
    assert told["output_bytes"] == row.output_bytes
    assert told["mult_adds"] == row.own_mult_adds
    shape = next(iter(tensors(row.outputs))).shape
    for step in told.steps:
        if step.name.startswith("axis_"):
            assert step.expr.value == shape[int(step.name[5:])]
    if name.startswith(("Conv", "MaxPool", "AvgPool", "LPPool")):
        assert sum(step.name.startswith("axis_") for step in told.steps) == len(shape) - 2
    if row.own_mult_adds:
        assert next(step for step in told.steps if step.name == "mult_adds").expr.rank, "an arithmetic, not a number"


@pytest.mark.parametrize(
    ("options", "batch_first"),
    [({}, False), ({"kdim": 12, "vdim": 20}, True), ({"add_bias_kv": True, "add_zero_attn": True}, True)],
)
def test_attention_with_its_own_widths(options: dict[str, Any], batch_first: bool) -> None:
    layer = nn.MultiheadAttention(16, 4, batch_first=batch_first, **options)
    query, key, width = (2, 5, 16), (2, 7, options.get("kdim", 16)), options.get("vdim", 16)
    inputs = [torch.zeros(shape) for shape in (query, key, (*key[:2], width))]
    if not batch_first:
        inputs = [x.transpose(0, 1).contiguous() for x in inputs]
    row = summary(layer, input_data=tuple(inputs), verbose=0).rows[0]
    told = explain(row)
    assert told["parameters"] == row.num_params
    assert told["mult_adds"] == row.own_mult_adds
    steps = {step.name: step.expr for step in told.steps}
    assert steps["parameters"].rank and steps["mult_adds"].rank
    assert value(steps["mult_adds"].text) == row.own_mult_adds


@pytest.mark.parametrize("build", [lambda: GPT2(Config(32, 2, 4, 50, 16)), PooledCNN])
def test_every_row_of_a_model_is_explained(build: Callable[[], nn.Module]) -> None:
    size = {"ResNet": (3, 64, 64), "GPT2": (12,), "PooledCNN": (1, 28, 28)}[type(build()).__name__]
    result = summary(build(), size, functional=True, verbose=0)
    for row in result.rows:
        told = explain(row)
        if row.called:
            assert told["mult_adds"] == row.own_mult_adds and told.get("output_bytes", 0) == row.output_bytes
        if row.num_params:
            assert told["parameters"] == row.num_params
    assert sum(explain(row).get("mult_adds", 0) for row in result.rows) == result.total_mult_adds


@pytest.mark.parametrize("name", [name for name, case in ZOO.items() if not case.needs][::6])
def test_no_layer_is_too_odd_to_be_explained(name: str) -> None:
    """Quantized, scripted, weight-normed, called with nothing: arithmetic or not, the numbers are the row's."""
    case = ZOO[name]
    for row in summary(case.build(), verbose=0, functional=True, **case.call()).rows:
        told = explain(row)
        assert told.get("mult_adds", 0) == row.own_mult_adds and told.get("output_bytes", 0) == row.output_bytes
        assert told.get("parameters", 0) >= row.num_params or row.kind == "function"
        assert str(told) and told.to_latex()


def test_the_notes_first_layer() -> None:
    """FACTS, D: 840 parameters, a feature map of 993.74 MB of 1,000,000 bytes."""
    text = str(explain(CNN3d().conv1, (1, 193, 229, 193)))
    assert "Parameters: (3 x 3 x 3 x 1 + 1) x 30 = 840\n" in text
    assert "Depth: (193 - 3) / 1 + 1 = 191\n" in text and "Height: (229 - 3) / 1 + 1 = 227\n" in text
    assert "1 x 30 x 191 x 227 x 191 x 4 = 993,742,440 bytes = 947.71 MiB = 993.74 MB\n" in text


def test_the_notes_total() -> None:
    """FACTS, D: 3,301,651 parameters are 13.21 MB, and so are their gradients."""
    with torch.device("meta"):
        layer = nn.Linear(3_301_650, 1)
    assert "Bytes of parameters: 3,301,651 x 4 = 13,206,604 bytes = 12.59 MiB = 13.21 MB" in str(explain(layer))
    told = explain_batch(layer, (3_301_650,), engine=False)
    assert told["gradient_bytes"] == told["parameter_bytes"] == 13_206_604


class OwnConvolution(nn.Conv2d):
    """It does more than its class says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return torch.cat([y, y], dim=-1)


def test_arithmetic_that_does_not_hold_is_left_out() -> None:
    row = summary(OwnConvolution(3, 4, 3), (3, 8, 8), verbose=0).rows[0]
    told = explain(row)
    assert told["parameters"] == 4 * 28 and "(3 x 3 x 3 + 1) x 4" in str(told)
    labels = [step.label for step in told.steps]
    assert "Height" in labels and "Width" not in labels
    assert told["output_bytes"] == row.output_bytes == 4 * 6 * 12 * 4
    (mixed := nn.Linear(3, 2).half()).add_module("inner", nn.Linear(3, 2))
    assert "parameter_bytes" not in explain(mixed), "of two sizes"


@pytest.mark.parametrize(("style", "depth"), [("torchsummary", None), ("tree", 1)])
def test_the_columns_of_arithmetic_give_the_columns_beside_them(style: str, depth: int | None) -> None:
    result = summary(resnet18(), (3, 64, 64), 2, verbose=0)
    names = ["num_params", "params_arithmetic", "mult_adds", "mult_adds_arithmetic"]
    table = result.tables(columns=names, style=style, depth=depth)[0]
    told = 0
    for row in table.rows:
        params, params_text, work, work_text = (cell.value for cell in row.cells)
        for count, text in ((params, params_text), (work, work_text)):
            assert text is None or value(text) == count
            told += text is not None
        if row.path == "conv1":
            assert (params_text, work_text) == ("7 x 7 x 3 x 64", "2 x 147 x 64 x 32 x 32")
    assert told > (40 if depth is None else 3)


def test_what_is_counted_elsewhere_is_said() -> None:
    gpt2 = summary(GPT2(Config(32, 2, 4, 50, 16)), (12,), verbose=0)
    head = next(row for row in gpt2.rows if row.path == "lm_head")
    assert "Parameters: 32 x 50 = 1,600 (0 of them counted in this row)" in str(explain(head))


def test_a_layer_of_ones_own_can_be_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    @of_parts(lambda: {"pairs": nn.Parameter(torch.zeros(3, 2))})
    def Doubling(self, x: torch.Tensor) -> torch.Tensor:
        return x

    assert "Parameters: 3 x 2 = 6" in str(explain(Doubling()))
    monkeypatch.setitem(RULES, "Doubling", Arithmetic(lambda layer: product(2, layer.shapes["pairs"][0])))
    assert "Parameters: 2 x 3 = 6" in str(explain(Doubling()))


def by_hooks(model: nn.Module, x: torch.Tensor) -> int:
    """The bytes of what each leaf module gives, by torch itself."""
    sizes = []
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _, __, y: sizes.append(y.numel() * y.element_size()))
    model(x)
    return sum(sizes)


def test_the_batch_formula_is_the_notes() -> None:
    model = nn.Sequential(nn.Conv3d(1, 30, 3), nn.MaxPool3d(2), nn.Conv3d(30, 8, 3), nn.Flatten(), nn.LazyLinear(1))
    with pytest.raises(InputError, match="parameters without a shape; call it on an input before"):
        explain_batch(model, (1, 15, 17, 15))
    maps = by_hooks(model, torch.zeros(1, 1, 15, 17, 15))
    told = explain_batch(model, (1, 15, 17, 15), 10, 1 << 30, engine=False)
    params = 4 * sum(p.numel() for p in model.parameters())
    sample = 15 * 17 * 15 * 4 + 2 * maps
    assert told["map_bytes"] == maps and told["sample_bytes"] == sample
    assert told["total_bytes"] == 2 * params + 10 * sample
    assert told["largest_batch"] == ((1 << 30) - 2 * params) // sample
    assert 2 * params + told["largest_batch"] * sample <= 1 << 30 < 2 * params + (told["largest_batch"] + 1) * sample
