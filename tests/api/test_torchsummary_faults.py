"""Where torchsummary 1.5.1 is wrong, `summary` is right: one test for each fault reported by its users.

The numbers in the names are issues and pull requests of sksq96/pytorch-summary.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchsummary_plus import summary
from torchsummary_plus.data.records import tensors


def rows_printed(text: str) -> list[str]:
    """The lines of the table's body, with single spaces."""
    body = re.split(r"^=+$", text, flags=re.MULTILINE)[1]
    return [" ".join(line.split()) for line in body.strip("\n").splitlines()]


def lines(model: nn.Module, size: Any = None, **options: Any) -> list[str]:
    return rows_printed(str(summary(model, size, verbose=0, **options)))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.fc(self.fc(x)))


def test_37_79_127_shared_module_is_counted_once() -> None:
    s = summary(Shared(), (4,), verbose=0)
    assert s.total_params == 20
    assert rows_printed(str(s)) == [
        "Linear-1 [-1, 4] 20",
        "Linear-2 [-1, 4] (recursive)",
        "Linear-3 [-1, 4] (recursive)",
    ]
    assert "Total params: 20\n" in str(s)
    assert [row.repeated for row in s.rows] == [False, False, True, True]


class OddlyNamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.offsets = nn.Parameter(torch.rand(4, 3)), nn.ParameterList([torch.rand(3), torch.rand(1)])

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kernel + self.offsets[0] * self.offsets[1]


def test_65_95_148_every_parameter_counts_whatever_its_name() -> None:
    assert lines(nn.Sequential(OddlyNamed(), nn.ReLU()), (4,)) == ["OddlyNamed-1 [-1, 3] 16", "ReLU-2 [-1, 3] 0"]
    assert summary(nn.LSTM(4, 6, batch_first=True), (5, 4), verbose=0).total_params == 4 * 6 * (4 + 6 + 2)
    assert summary(nn.MultiheadAttention(8, 2), input_data=(torch.rand(3, 2, 8),) * 3, verbose=0).total_params == 288


class Sum(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a.flatten(1).sum(1) + b.flatten(1).sum(1)


def test_71_166_204_sizes_of_several_inputs_add_up() -> None:
    s = summary(Sum(), [(3, 64, 64), (1, 64, 64)], verbose=0)
    assert s.input_bytes == 4 * (3 * 64 * 64 + 64 * 64)
    assert "Input size (MB): 0.06\n" in str(s)
    assert summary(Sum(), [(3, 64, 64), (1, 64, 64)], batch_size=10, verbose=0).input_bytes == 10 * s.input_bytes


def test_46_90_inputs_of_different_ranks() -> None:
    s = summary(Sum(), [(3, 8, 8), (5,)], verbose=0)
    assert s.input_bytes == 4 * (192 + 5)


def test_42_64_77_integer_inputs() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    expected = ["Embedding-1 [-1, 3, 4] 40", "Flatten-2 [-1, 12] 0", "Linear-3 [-1, 2] 26"]
    assert lines(model, (3,), dtypes=[torch.long]) == expected
    assert lines(model, (3,), dtypes=[torch.LongTensor]) == expected
    assert lines(model, (3,)) == expected
    assert summary(model, (3,), dtypes=[torch.int32], verbose=0).input_bytes == 12


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn, self.out = kind(4, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0])


def test_56_130_recurrent_outputs() -> None:
    assert lines(Recurrent(nn.LSTM), (5, 4)) == [
        "LSTM-1 [[-1, 5, 6], [[1, -1, 6], [1, -1, 6]]] 288",
        "Linear-2 [-1, 5, 2] 14",
    ]
    assert lines(Recurrent(nn.GRU), (5, 4))[0] == "GRU-1 [[-1, 5, 6], [1, -1, 6]] 216"


class Returns(nn.Module):
    """An inner module whose output is not a tensor, in a model whose is."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.talk, self.fc = _Talk(what), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.talk(x)
        return self.fc(x)


class _Talk(nn.Module):
    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Any:
        return self.what(x)


@pytest.mark.parametrize(
    ("what", "cell"),
    [
        (lambda x: 3, "--"),
        (lambda x: None, "--"),
        (lambda x: "text", "--"),
        (lambda x: {"a": x, "b": x[:, :1]}, "{a: [-1, 4], b: [-1, 1]}"),
    ],
    ids=["int", "None", "str", "dict"],
)
def test_110_154_185_outputs_that_are_no_tensors(what: Any, cell: str) -> None:
    assert lines(Returns(what), (4,)) == [f"_Talk-1 {cell} 0", "Linear-2 [-1, 2] 10"]


class TakesList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cat, self.fc = _Cat(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.cat([x, x]))


class _Cat(nn.Module):
    def forward(self, xs: list[Tensor]) -> Tensor:
        return torch.cat(xs, 1)


def test_76_123_lists_into_a_layer() -> None:
    s = summary(TakesList(), (4,), verbose=0)
    assert rows_printed(str(s)) == ["_Cat-1 [-1, 8] 0", "Linear-2 [-1, 2] 18"]
    assert [spec.shown for spec in tensors(s.rows[1].inputs)] == [[-1, 4], [-1, 4]]


def test_134_models_of_no_parameters() -> None:
    s = summary(nn.Sequential(nn.ReLU(), nn.MaxPool1d(2)), (3, 8), verbose=0)
    assert rows_printed(str(s)) == ["ReLU-1 [-1, 3, 8] 0", "MaxPool1d-2 [-1, 3, 4] 0"]
    assert "Total params: 0\nTrainable params: 0\nNon-trainable params: 0\n" in str(s)
    assert "Params size (MB): 0.00\n" in str(s)


class RootParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls, self.fc = nn.Parameter(torch.rand(4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x + self.cls)


def test_78_parameters_on_the_root() -> None:
    assert lines(RootParameter(), (4,)) == ["Linear-1 [-1, 2] 10", "RootParameter-2 [-1, 2] 4"]
    assert summary(RootParameter(), (4,), verbose=0).total_params == 14


@pytest.mark.parametrize(
    "device", ["cpu", "cuda", "cuda:1", torch.device("cpu"), torch.device("cuda:1"), torch.device("cuda", 3)]
)
def test_199_any_device_by_name_or_object(device: Any) -> None:
    model = nn.Linear(4, 2)
    s = summary(model, (4,), device=device, run="fake", verbose=0)
    assert torch.device(s.run.device).type == torch.device(device).type
    assert model.weight.device.type == "cpu"


class OnlyBatch(nn.Module):
    """Works for one batch size only."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch, self.fc = batch, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).reshape(self.batch, 2, 1).squeeze(2)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_151_168_the_pass_runs_the_batch_that_was_asked(batch: int) -> None:
    assert lines(OnlyBatch(batch), (4,), batch_size=batch) == [f"Linear-1 [{batch}, 2] 10"]


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([F.relu(self.fc(x)), x], 1) @ torch.ones(8, 3)


def test_120_152_198_functions_can_be_seen() -> None:
    assert lines(Functional(), (4,)) == ["Linear-1 [-1, 4] 20"]
    s = summary(Functional(), (4,), functional=True, verbose=0)
    functions = [row for row in s.rows if row.kind == "function"]
    assert [next(tensors(row.outputs)).shown for row in functions] == [[-1, 4], [-1, 8], [-1, 3]]
    assert [row.class_name for row in functions][:2] == ["relu", "cat"]
    assert "matmul" in functions[2].class_name
    assert len(rows_printed(str(s))) == 4


def test_203_a_column_says_what_is_trainable() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU())
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    s = summary(model, (4,), col_names=("output_size", "num_params", "trainable"), verbose=0)
    assert [row.trainable_params for row in s.rows] == [0, 0, 4, 0]
    assert (s.trainable_params, s.non_trainable_params) == (4, 36)
    cells = [line.split()[-1] for line in rows_printed(str(s))]
    assert len(set(cells)) == 3, f"frozen, partly trainable and without parameters read {cells}"


class AnExtraordinarilyLongClassName(nn.Linear):
    pass


def test_pr_144_long_names_widen_the_column() -> None:
    text = str(summary(nn.Sequential(AnExtraordinarilyLongClassName(4, 4), nn.ReLU()), (4,), verbose=0))
    table = text.splitlines()
    ends = {len(line.rstrip()) for line in table if re.search(r"-\d+ |Layer \(type\)", line)}
    assert len(ends) == 1
    assert {len(line) - 1 for line in table if re.fullmatch("[-=]+", line)} == ends


class TwoOutputs(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :3], x[:, 3:]


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split = TwoOutputs()

    def forward(self, x: Tensor) -> Tensor:
        return self.split(x)[0]


def test_sizes_of_a_tuple_of_outputs_add_up() -> None:
    s = summary(Split(), (8,), batch_size=4, verbose=0)
    assert s.rows[1].output_bytes == 4 * 4 * (3 + 5)
    assert s.forward_backward_bytes == 2 * s.rows[1].output_bytes
    assert rows_printed(str(s)) == ["TwoOutputs-1 [[4, 3], [4, 5]] 0"]


def test_numbers_are_pythons() -> None:
    s = summary(Shared(), (4,), verbose=0)
    assert {type(n) for n in (s.total_params, s.trainable_params, s.input_bytes, s.total_bytes)} == {int}
