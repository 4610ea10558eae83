"""Where torchsummary 1.5.1 is wrong, `summary` is right: one case for each fault reported by its users.

The numbers in the names are issues and pull requests of sksq96/pytorch-summary.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import summary
from torchsummary_plus.data.records import tensors


@of_parts(lambda function: {"function": function})
def Fn(self, *inputs: Any) -> Any:
    return self.function(*inputs)


class Around(nn.Module):
    def __init__(self, function: Callable[..., Any], out: int = 4, **parts: Any) -> None:
        super().__init__()
        self.fc, self.function = nn.Linear(4, out), function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


class OddlyNamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.offsets = nn.Parameter(torch.rand(4, 3)), nn.ParameterList([torch.rand(3), torch.rand(1)])

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kernel + self.offsets[0] * self.offsets[1]


def recurrent(kind: type[nn.RNNBase]) -> nn.Module:
    return nn.Sequential(kind(4, 6, batch_first=True), Fn(lambda pair: pair[0]), nn.Linear(6, 2))


def talking(what: Callable[[Tensor], Any]) -> nn.Module:
    """An inner module whose output is not a tensor, in a model whose is."""

    def forward(model: Any, x: Tensor) -> Any:
        model.talk(x)
        return model.fc(x)

    return Around(forward, 2, talk=Fn(what))


def only_batch(batch: int) -> nn.Module:
    return Around(lambda model, x: model.fc(x).reshape(batch, 2, 1).squeeze(2), 2)


def integers() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))


INTEGERS = ["Embedding-1 [-1, 3, 4] 40", "Flatten-2 [-1, 12] 0", "Linear-3 [-1, 2] 26"]
RECURSIVE = ["Linear-1 [-1, 4] 20", "Linear-2 [-1, 4] (recursive)", "Linear-3 [-1, 4] (recursive)"]
CASES: dict[str, tuple[nn.Module, Any, dict[str, Any], list[str]]] = {
    "37, 79, 127: a shared module counts once": (Around(lambda m, x: m.fc(m.fc(m.fc(x)))), (4,), {}, RECURSIVE),
    "65, 95, 148: parameters of any name": (
        *(nn.Sequential(OddlyNamed(), nn.ReLU()), (4,), {}),
        ["OddlyNamed-1 [-1, 3] 16", "ReLU-2 [-1, 3] 0"],
    ),
    "42, 64, 77: integers by dtype": (integers(), (3,), {"dtypes": [torch.long]}, INTEGERS),
    "42, 64, 77: integers by the embedding": (integers(), (3,), {}, INTEGERS),
    "56, 130: an LSTM": (
        *(recurrent(nn.LSTM), (5, 4), {}),
        ["LSTM-1 [[-1, 5, 6], [[1, -1, 6], [1, -1, 6]]] 288", "Fn-2 [-1, 5, 6] 0", "Linear-3 [-1, 5, 2] 14"],
    ),
    "56, 130: a GRU": (
        *(recurrent(nn.GRU), (5, 4), {}),
        ["GRU-1 [[-1, 5, 6], [1, -1, 6]] 216", "Fn-2 [-1, 5, 6] 0", "Linear-3 [-1, 5, 2] 14"],
    ),
    **{
        f"110, 154, 185: an output of {cell}": (talking(what), (4,), {}, [f"Fn-1 {cell} 0", "Linear-2 [-1, 2] 10"])
        for what, cell in (
            (lambda x: 3, "--"),
            (lambda x: {"a": x, "b": x[:, :1]}, "{a: [-1, 4], b: [-1, 1]}"),
            (lambda x: (x[:, :3], x[:, 3:]), "[[-1, 3], [-1, 1]]"),
        )
    },
    "76, 123: a list into a layer": (
        *(Around(lambda m, x: m.cat([m.fc(x), x]), cat=Fn(lambda xs: torch.cat(xs, 1))), (4,), {}),
        ["Linear-1 [-1, 4] 20", "Fn-2 [-1, 8] 0"],
    ),
    "134: no parameters": (
        *(nn.Sequential(nn.ReLU(), nn.MaxPool1d(2)), (3, 8), {}),
        ["ReLU-1 [-1, 3, 8] 0", "MaxPool1d-2 [-1, 3, 4] 0"],
    ),
    "78: parameters on the root": (
        *(Around(lambda m, x: m.fc(x + m.cls), 2, cls=nn.Parameter(torch.rand(4))), (4,), {}),
        ["Linear-1 [-1, 2] 10", "Around-2 [-1, 2] 4"],
    ),
    "151, 168: the batch that was asked for runs": (only_batch(5), (4,), {"batch_size": 5}, ["Linear-1 [5, 2] 10"]),
}


def rows_printed(text: str) -> list[str]:
    body = re.split(r"^=+$", text, flags=re.MULTILINE)[1]
    return [" ".join(line.split()) for line in body.strip("\n").splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_the_rows_are_right(name: str) -> None:
    model, size, options, expected = CASES[name]
    result = summary(model, size, verbose=0, **options)
    assert rows_printed(str(result)) == expected
    assert result.total_params == sum(parameter.numel() for parameter in model.parameters())
    assert {type(n) for n in (result.total_params, result.trainable_params, result.input_bytes)} == {int}


def test_71_90_166_204_sizes_of_several_inputs_add_up() -> None:
    model = Fn(lambda a, b: a.flatten(1).sum(1) + b.flatten(1).sum(1))
    s = summary(model, [(3, 64, 64), (64,)], verbose=0)
    assert s.input_bytes == 4 * (3 * 64 * 64 + 64) and "Input size (MB): 0.05\n" in str(s)
    assert summary(model, [(3, 64, 64), (64,)], batch_size=10, verbose=0).input_bytes == 10 * s.input_bytes


@pytest.mark.parametrize("device", ["cpu", "cuda:1", torch.device("cuda", 3)])
def test_199_any_device_by_name_or_object(device: Any) -> None:
    model = nn.Linear(4, 2)
    s = summary(model, (4,), device=device, run="fake", verbose=0)
    assert torch.device(s.run.device).type == torch.device(device).type
    assert model.weight.device.type == "cpu"


def test_120_152_198_functions_can_be_seen() -> None:
    model = Around(lambda m, x: torch.cat([F.relu(m.fc(x)), x], 1) @ torch.ones(8, 3))
    assert rows_printed(str(summary(model, (4,), verbose=0))) == ["Linear-1 [-1, 4] 20"]
    s = summary(model, (4,), functional=True, verbose=0)
    functions = [row for row in s.rows if row.kind == "function"]
    assert [next(tensors(row.outputs)).shown for row in functions] == [[-1, 4], [-1, 8], [-1, 3]]
    assert [row.class_name for row in functions][:2] == ["relu", "cat"] and "matmul" in functions[2].class_name


def test_203_a_column_says_what_is_trainable() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU())
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    s = summary(model, (4,), col_names=("output_size", "num_params", "trainable"), verbose=0)
    assert [row.trainable_params for row in s.rows] == [0, 0, 4, 0]
    assert (s.trainable_params, s.non_trainable_params) == (4, 36)
    cells = [line.split()[-1] for line in rows_printed(str(s))]
    assert len(set(cells)) == 3, f"frozen, partly trainable and without parameters read {cells}"
