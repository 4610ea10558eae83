"""An input passed twice is one tensor, for the model and for its memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
