"""The words of a table, such as who counts shared parameters, and of errors."""

import traceback
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parts import of_parts
from torchsummary_plus import estimate_memory, graph, summary
from torchsummary_plus.data.errors import ForwardError, InputError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.body, self.head = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = self.body(self.body(self.wte(x)))
        return {"logits": self.head(hidden), "cache": {"keys": hidden, "values": hidden}}


def test_only_a_second_call_is_recursive_and_tied_layers_name_the_one_that_counts() -> None:
    result = summary(Tied(), torch.zeros(2, 3, dtype=torch.long), verbose=0)
    assert [row.cells[-1].text for row in result.tables()[0].rows] == ["40", "20", "(recursive)", "(tied: wte)"]
    assert "(tied: wte)" in result.to_text(style="tree")


@of_parts(lambda: {"first": nn.Linear(8, 4), "second": nn.Linear(5, 2)})
def Mismatched(self, x: Tensor) -> Tensor:
    out: Tensor = self.second(self.first(x))
    return out


@pytest.mark.parametrize("call", [summary, estimate_memory, graph])
def test_an_error_shows_the_callers_code_and_the_models_alone(call: Any) -> None:
    with pytest.raises(ForwardError) as raised:
        call(Mismatched(), (8,))
    assert [entry.path.name for entry in raised.traceback] == ["test_call_words.py", "public.py"]
    cause = raised.value.__cause__
    assert cause is not None
    assert [entry.name for entry in traceback.extract_tb(cause.__traceback__)] == ["Mismatched"]


@of_parts(lambda: {"embedding": nn.Embedding(10, 4)})
def Reads(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """A model of tokens, as transformers' are."""
    batch, length = input_ids.shape
    out: Tensor = self.embedding(input_ids).view(batch, length, 4)
    return out


@pytest.mark.parametrize("call", [summary, estimate_memory])
def test_checkpointing_is_the_models_switch(call: Any) -> None:
    with pytest.raises(InputError, match=r"write model\.gradient_checkpointing_enable\(\) before the call"):
        call(Reads(), (8,), gradient_checkpointing=True)
