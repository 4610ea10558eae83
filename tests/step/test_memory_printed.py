"""Tensors that a step prints: torch's formatting allocates memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import estimate_memory, measure_memory, summary

TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "an output": lambda y: y,
    "transposed": lambda y: y.t(),
    "strided": lambda y: y[:, ::2],
    "float16": lambda y: y.half(),
    "float64": lambda y: y.double(),
    "integers": lambda y: (y * 100).long(),
    "complex": lambda y: torch.complex(y, y),
    "conjugate": lambda y: torch.complex(y, y).conj(),
    "one number": lambda y: y.sum(),
    "expanded": lambda y: y.detach()[None].expand(3, *y.shape),
    "empty": lambda y: y[:0],
}
TEXTS: tuple[Callable[[Tensor], str], ...] = (str, repr, lambda y: f"{y}" if y.dim() else repr(y))


class Printing(nn.Linear):
    """Formats a tensor as text in its forward."""

    def __init__(self, width: int, text: Callable[[Tensor], Any]) -> None:
        super().__init__(1, width)
        self.text = text

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.text(y)
        return y


@pytest.mark.parametrize("width", [1, 8, 250, 400])
@pytest.mark.parametrize("kind", TENSORS)
def test_formatting_allocates_as_in_a_real_step(kind: str, width: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 1)
    for text in TEXTS:
        model = Printing(width, lambda y, text=text: text(TENSORS[kind](y)))
        estimate, measured = (call(model, input_data=x) for call in (estimate_memory, measure_memory))
        assert (estimate.peak_bytes, estimate.assumptions) == (measured.peak_bytes, measured.assumptions)


def test_how_much_is_printed_decides() -> None:
    x, peaks = torch.randn(4, 1), []
    try:
        for threshold in (10, 100_000):
            torch.set_printoptions(threshold=threshold)
            estimate = estimate_memory(Printing(600, str), input_data=x)
            peaks.append(estimate.peak_bytes)
            assert peaks[-1] == measure_memory(Printing(600, str), input_data=x).peak_bytes
    finally:
        torch.set_printoptions(profile="default")
    assert peaks[0] < peaks[1]


def test_a_table_has_no_rows_for_formatting() -> None:
    printing, plain = (summary(Printing(8, text), (1,), functional=True, verbose=0) for text in (str, len))
    assert [row.class_name for row in printing.rows] == [row.class_name for row in plain.rows]
