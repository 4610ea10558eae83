"""The call: columns, depth, style and functions of the table."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.api.test_call import COLUMNS, body, cnn, quiet
from tests.parts import of_parts
from torchsummary_plus.data.records import tensors


def test_every_column_in_any_order() -> None:
    s = quiet(cnn(), (4, 8, 8))
    for style in ("torchsummary", "tree"):
        headings = [s.render(style=style, col_names=(name,)).splitlines()[1].split()[2:] for name in COLUMNS]
        assert len({tuple(h) for h in headings}) == len(COLUMNS)
        together = s.render(style=style, col_names=COLUMNS[::-1]).splitlines()[1].split()[2:]
        assert together == [word for h in headings[::-1] for word in h]


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("input_size", ["[-1, 4, 8, 8]", "[-1, 6, 6, 6]", "[-1, 6, 6, 6]", "[-1, 6, 6, 6]", "[-1, 216]"]),
        ("output_size", ["[-1, 6, 6, 6]", "[-1, 6, 6, 6]", "[-1, 6, 6, 6]", "[-1, 216]", "[-1, 3]"]),
        ("num_params", ["114", "0", "12", "0", "651"]),
        ("kernel_size", ["[3, 3]", "--", "--", "--", "--"]),
        ("groups", ["2", "--", "--", "--", "--"]),
        ("mult_adds", [str(f"{36 * 6 * 2 * 9:,}"), "0", "0", "0", "648"]),
        ("dtype", ["float32"] * 5),
        ("output_bytes", ["864", "864", "864", "864", "12"]),
        ("var_name", ["0", "1", "0", "1", "3"]),
    ],
)
def test_cells_of_each_column(column: str, cells: list[str]) -> None:
    text = quiet(cnn(), (4, 8, 8), col_names=(column,)).render()
    assert [line.split(maxsplit=1)[1].strip() for line in body(text)] == cells


@of_parts(lambda: {"q": nn.Linear(4, 4), "block": Inner()})
def Mixed(self, x: Tensor) -> Tensor:
    x = F.relu(self.q(x))
    x = torch.cat([self.block(x), x], dim=1)
    return F.scaled_dot_product_attention(x, x, x)


@of_parts(lambda: {"fc": nn.Linear(4, 4)})
def Inner(self, x: Tensor) -> Tensor:
    return torch.tanh(self.fc(x)) @ torch.ones(4, 4)


def test_functions_in_call_order_in_both_styles() -> None:
    s = quiet(Mixed(), (5, 4), functional=True)
    names = [row.class_name for row in s.rows]
    assert names[:6] == ["Mixed", "Linear", "relu", "Inner", "Linear", "tanh"]
    assert "matmul" in names[6] and names[-2:] == ["cat", "scaled_dot_product_attention"]
    assert [row.depth for row in s.rows][:7] == [0, 1, 1, 1, 2, 2, 2]
    tree, flat = s.render(style="tree"), s.render()
    order = ["relu", "tanh", "matmul", "cat", "scaled_dot_product_attention"]
    for text in (tree, flat):
        places = [text.index(name) for name in order]
        assert places == sorted(places)
    assert flat.index("matmul") < flat.index("Inner-") < flat.index("cat-")
    assert tree.index("Inner") < tree.index("tanh")
    (attention,) = [row for row in s.rows if row.class_name == "scaled_dot_product_attention"]
    assert attention.mult_adds == 2 * 10 * 10 * 4
    assert [spec.shown for spec in tensors(attention.outputs)] == [[-1, 10, 4]]
