"""The words of a table, such as who counts shared parameters, and of errors."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import estimate_memory, graph, summary
from torchsummary_plus.data.errors import ForwardError, InputError


class Tied(nn.Module):
    """A head with the embedding's weight, and a block that runs twice."""

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


def test_groups_beside_tensors_are_named() -> None:
    result = summary(Tied(), (3,), dtypes=torch.long, style="tree", verbose=0)
    assert "logits: [-1, 3, 10], + cache  " in str(result)


def test_containers_show_what_is_inside_where_grey_can_be_shown() -> None:
    result = summary(nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), (4,), style="tree", verbose=0)
    assert [(row.cells[-1].text, row.cells[-1].inside) for row in result.tables()[0].rows] == [
        ("--", "20"),
        ("--", "20"),
        ("20", ""),
        ("--", ""),
    ]
    assert str(result).count(" 20") == 3  # The layer's, the total, and the trainable ones.
    assert result.to_html().count('class="tsp-inside" data-v="0">20</td>') == 2


class Mismatched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


@pytest.mark.parametrize("call", [summary, estimate_memory, graph])
def test_an_error_shows_the_callers_code_and_the_models_alone(call: Any) -> None:
    with pytest.raises(ForwardError) as raised:
        call(Mismatched(), (8,))
    assert [entry.path.name for entry in raised.traceback] == ["test_call_words.py", "public.py"]
    cause = raised.value.__cause__
    assert cause is not None
    assert [entry.name for entry in traceback.extract_tb(cause.__traceback__)] == ["forward"]


class Reads(nn.Module):
    """A model of tokens, as transformers' are."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        batch, length = input_ids.shape
        out: Tensor = self.embedding(input_ids).view(batch, length, 4)
        return out


@pytest.mark.parametrize("dtypes", [None, torch.long])
def test_an_image_for_a_model_of_tokens_says_what_it_takes(dtypes: torch.dtype | None) -> None:
    with pytest.raises(ForwardError, match=r"input_ids takes the numbers of tokens: .* input_size=\(128,\)"):
        summary(Reads(), (3, 224, 224), dtypes=dtypes)


@pytest.mark.parametrize("call", [summary, estimate_memory])
def test_checkpointing_is_the_models_switch(call: Any) -> None:
    with pytest.raises(InputError, match=r"write model\.gradient_checkpointing_enable\(\) before the call"):
        call(Reads(), (8,), gradient_checkpointing=True)
