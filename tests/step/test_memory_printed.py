"""What a step does that is not followed, and said: tensors that it prints."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import estimate_memory, summary

TEXTS: tuple[Callable[[Tensor], str], ...] = (str, repr, lambda y: f"{y}" if y.dim() else repr(y))


class Printing(nn.Linear):
    def __init__(self, width: int, text: Callable[[Tensor], Any]) -> None:
        super().__init__(1, width)
        self.text = text

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.text(y)
        return y


@pytest.mark.parametrize("text", TEXTS, ids=["str", "repr", "format"])
def test_what_printing_allocates_is_said_not_to_be_counted(text: Callable[[Tensor], str]) -> None:
    x = torch.randn(4, 1)
    estimates = [estimate_memory(Printing(64, each), input_data=x, mode="eval") for each in (text, len)]
    assert estimates[0].peak_bytes == estimates[1].peak_bytes
    assert any("printing a tensor" in line for line in estimates[0].assumptions) and not estimates[1].assumptions


def test_a_table_has_no_rows_for_formatting() -> None:
    printing, plain = (summary(Printing(8, text), (1,), functional=True, verbose=0) for text in (str, len))
    assert [row.class_name for row in printing.rows] == [row.class_name for row in plain.rows]
