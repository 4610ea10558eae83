"""Figures that are unknown are shown as unknown, with the reason: lazy layers, code that did not run, pruning masks."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from tests.parts import of_parts
from torchsummary_plus import compare, estimate_memory, explain, measure_memory, summary
from torchsummary_plus.data.errors import UnsupportedError
from torchsummary_plus.results.model_summary import ModelSummary


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Sequential(nn.Linear(4, 2)))


def test_parameters_without_a_shape_are_unknown() -> None:
    result = summary(lazy(), verbose=0)
    assert result.uninitialised_params == 4 and result.total_params == 10
    text = str(result)
    assert "Not counted: 4 parameters of lazy modules without a shape; pass input_size= or input_data=" in text
    assert "Total params: >=10" in text and "Non-trainable params: N/A" in text and "Params size (MB): N/A" in text
    rows = result.to_dataframe(columns=["num_params", "params_percent", "param_bytes"], style="torchsummary")
    assert rows["num_params"].isna().tolist() == [True, True, False] and rows["params_percent"].isna().all()
    assert ModelSummary.from_json(result.to_json()) == result


def test_lazy_layers_alone_have_no_count() -> None:
    text = str(summary(nn.LazyLinear(4), verbose=0))
    assert "Total params: N/A" in text and " 0" not in text
    assert "unknown params" in summary(nn.Sequential(nn.LazyLinear(4)), verbose=0).to_mermaid()
    assert "(not counted: 4 without a shape)" in str(explain(lazy()))
    both = compare(nn.LazyLinear(4), nn.Linear(2, 2))
    assert "Not counted in LazyLinear: 2 parameters" in str(both) and "*6" not in str(both)


def test_a_lazy_layer_that_the_forward_leaves_out_stays_unknown() -> None:
    @of_parts(lambda: {"used": nn.LazyLinear(4), "unused": nn.LazyLinear(4)})
    def Leaves(self, x: torch.Tensor) -> torch.Tensor:
        used: torch.Tensor = self.used(x)
        return used

    result = summary(Leaves(), (3,), verbose=0)
    assert result.total_params == 16 and result.uninitialised_params == 2
    assert "2 parameters of lazy modules without a shape; the forward does not use them" in str(result)
    assert summary(lazy(), (3,), verbose=0).uninitialised_params == 0
    with pytest.raises(UnsupportedError, match=r"^unused \(LazyLinear\) has parameters without a shape"):
        estimate_memory(Leaves(), (3,))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


class Generator(Base):
    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(3):
            yield self.layer(x)


class Coroutine(Base):
    async def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


class AsyncGenerator(Base):
    async def forward(self, x: torch.Tensor) -> Any:
        yield self.layer(x)


class Consumer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(self.inner(x), self.layer(x))


class Keeper(Consumer):
    def forward(self, x: torch.Tensor) -> Any:
        return {"first": self.layer(x), "rest": self.inner(x)}


NOT_RUN = {
    Generator: "a generator",
    Coroutine: "a coroutine",
    AsyncGenerator: "an async generator",
    Keeper: "a generator",
}


@pytest.mark.parametrize("kind", NOT_RUN, ids=lambda kind: kind.__name__)
def test_code_that_did_not_run_is_unknown(kind: type[Base]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = summary(kind(), (4,), verbose=0)
        text = result.render(col_names=["mult_adds"])
    known = 16 if kind is Keeper else 0
    assert f"Total mult-adds: >={known} (not counted: {NOT_RUN[kind].split(' ', 1)[1]} x 1)" in text
    assert f"The forward returned {NOT_RUN[kind]}, whose code did not run; wrap the model" in text
    assert "Forward/backward pass size (MB): N/A" in text and NOT_RUN[kind] in result.run.reason
    assert all(row.unknown_ops for row in result.rows if row.called and row.class_name == kind.__name__)


def test_a_generator_that_the_forward_consumes_is_known() -> None:
    result = summary(Consumer(), (4,), verbose=0)
    assert result.total_mult_adds == 64 and not result.unknown_ops and not result.run.note


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("memory", [estimate_memory, measure_memory])
def test_the_memory_of_code_that_did_not_run_is_unknown(mode: str, memory: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"returned a generator.*train_step"):
        memory(Generator(), (4,), mode=mode)
    assert any("a generator" in line for line in memory(Keeper(), (4,), mode=mode).assumptions)
    consumed = memory(Generator(), (4,), mode="eval", train_step=lambda model, x: list(model(x)))
    assert consumed.peak_bytes > 0 and not any("a generator" in line for line in consumed.assumptions)


def masked() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Conv1d(2, 4, 3))
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.random_unstructured(model[0], "bias", amount=3)
    prune.ln_structured(model[1], "weight", amount=1, n=2, dim=0)
    prune.l1_unstructured(model[1], "weight", amount=2)
    return model


def test_pruning_masks_are_counted_beside_the_parameters() -> None:
    model = masked()
    left = sum(int(mask.count_nonzero()) for mask in model.buffers())
    result = summary(model, verbose=0)
    assert (result.total_params, result.pruned_params) == (100, 32 + 3 + 6 + 2)
    unmasked = 100 - sum(mask.numel() for mask in model.buffers())
    assert f"Params after pruning: {left + unmasked} (43 are masked)" in str(result)
    assert "Total params: 100" in str(result)
    assert "after pruning" not in str(summary(nn.Linear(2, 2), verbose=0))
