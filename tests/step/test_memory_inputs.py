"""How a step's inputs are given: a tensor passed twice is one, keywords of functions change nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.parts import of_parts
from torchsummary_plus import estimate_memory, max_batch_size, measure_memory, summary
from torchsummary_plus.data.memory_records import WITHOUT_GRAPH
from torchsummary_plus.results.memory_estimate import MemoryEstimate

pytestmark = pytest.mark.usefixtures("threads")


@of_parts(lambda: {"linear": nn.Linear(16, 64)})
def Told(self, left: Tensor, right: list[Tensor]) -> Tensor:
    """Its work doubles where its inputs are two tensors."""
    own = self.linear(left)
    return own if right[0] is left else torch.cat([own, self.linear(right[0])])


@pytest.mark.parametrize(("mode", "batch_first", "need_weights"), [("train", False, True), ("eval", True, False)])
def test_attention_of_a_tensor_to_itself(mode: str, batch_first: bool, need_weights: bool) -> None:
    x = torch.rand(2, 16, 32)
    settings: dict[str, Any] = {"query": x, "key": x, "value": x, "need_weights": need_weights}
    layer = nn.MultiheadAttention(32, 4, batch_first=batch_first)
    options: dict[str, Any] = {"input_data": settings, "mode": mode, "loss": lambda out: out[0].sum()}
    if mode == "eval":
        del options["loss"]
    predicted, measured = (call(layer, **options).peak_bytes for call in (estimate_memory, measure_memory))

    assert predicted == measured


def test_at_any_batch_size_and_in_a_table() -> None:
    x = torch.rand(4, 16)
    limit = max_batch_size(Told(), memory=1 << 20, input_data=(x, [x]), device="cpu", mode="eval")
    grown = torch.rand(limit.batch_size, 16)

    assert summary(Told(), input_data=(x, [x]), verbose=0).total_mult_adds == 4 * 16 * 64
    assert limit.peak_bytes == measure_memory(Told(), input_data=(grown, [grown]), mode="eval").peak_bytes


def test_an_input_with_a_graph_is_said_to_be_used_without_it() -> None:
    model, features = nn.Linear(8, 4), nn.Linear(16, 8)(torch.ones(2, 16))
    measured: list[Callable[..., MemoryEstimate]] = [estimate_memory, measure_memory]
    for measure in measured:
        assert WITHOUT_GRAPH in measure(model, input_data=features).assumptions
        assert WITHOUT_GRAPH not in measure(model, input_data=features.detach()).assumptions


Call = Callable[..., Any]
LENGTHS = torch.full((4,), 16), torch.full((4,), 3)


def attention(x: Tensor) -> dict[str, Any]:
    heads = x.unflatten(-1, (4, 16)).transpose(1, 2)
    return {"query": heads, "key": heads, "value": heads}


def normalised(x: Tensor) -> dict[str, Any]:
    return {"log_probs": x.transpose(0, 1).log_softmax(-1), "targets": torch.ones(4, 3, dtype=torch.long)}


CALLS: dict[str, tuple[Call, Callable[[Tensor], dict[str, Any]]]] = {
    "attention": (F.scaled_dot_product_attention, attention),
    "attention with a mask": (
        F.scaled_dot_product_attention,
        lambda x: {**attention(x), "attn_mask": x.new_ones(16, 16)},
    ),
    "ctc": (torch.ctc_loss, lambda x: {**normalised(x), "input_lengths": LENGTHS[0], "target_lengths": LENGTHS[1]}),
    "product": (torch.prod, lambda x: {"input": x}),
    "batch norm": (F.batch_norm, lambda x: {"input": x, "running_mean": x.new_ones(16), "running_var": x.new_ones(16)}),
    "classes": (F.one_hot, lambda x: {"input": (x > 0).long(), "num_classes": 5}),
    "times a number": (torch.mul, lambda x: {"input": x, "other": 2.0}),
    "dropout": (F.dropout, lambda x: {"input": x, "p": 0.5}),
    "embedding": (F.embedding, lambda x: {"input": (x > 0).long(), "weight": x[0]}),
}


class Caller(nn.Module):
    def __init__(self, name: str, by_keyword: bool) -> None:
        super().__init__()
        self.function, self.arguments = CALLS[name]
        self.scale = nn.Parameter(torch.ones(64))
        self.by_keyword = by_keyword

    def forward(self, x: Tensor) -> Tensor:
        given = self.arguments(x * self.scale)
        out = self.function(**given) if self.by_keyword else self.function(*given.values())
        out = out.abs() if out.is_complex() else out
        return (out.float().sum() if out.requires_grad else out.float().sum() * self.scale.sum()) * 1.0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CALLS)
def test_keywords_change_nothing(name: str, device: str) -> None:
    options: dict[str, Any] = {"device": "cuda", "gpu": "A100 40GB"} if device == "cuda" else {}
    x = torch.randn(4, 16, 64)
    by_keyword, by_position = (estimate_memory(Caller(name, how), input_data=x, **options) for how in (True, False))
    assert by_keyword.peak_bytes == by_position.peak_bytes
    assert by_keyword.unknown == by_position.unknown
    assert by_keyword.assumptions == by_position.assumptions


class Aligned(nn.Linear):
    """With lengths that live no longer than its forward."""

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x).transpose(0, 1).log_softmax(-1)
        lengths = torch.full((len(x),), 16), torch.full((len(x),), 3)
        loss: Tensor = F.ctc_loss(scores, torch.ones(len(x), 3).long(), *lengths)
        return loss


def test_the_lengths_that_ctc_reads_are_not_kept() -> None:
    model, x = Aligned(8, 8), torch.randn(512, 16, 8)
    predicted, measured = estimate_memory(model, input_data=x), measure_memory(model, input_data=x)
    assert predicted.peak_bytes == measured.peak_bytes
