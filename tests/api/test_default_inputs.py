"""Inputs that follow from the model: the dtype of sizes, the batch that runs, dicts as one argument, and hints."""

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.parts import of_parts
from torchsummary_plus import compare, estimate_memory, measure_memory, summary
from torchsummary_plus.data.errors import ForwardError, SummaryError
from torchsummary_plus.data.records import TensorSpec, tensors


@of_parts(lambda: {"weight": nn.Parameter(torch.rand(2, 2, 5, dtype=torch.cfloat))})
def Fourier(self, x: torch.Tensor) -> torch.Tensor:
    return torch.fft.irfft(torch.einsum("bix,iox->box", torch.fft.rfft(x), self.weight), n=8)


@of_parts(lambda: {"spectral": Fourier(), "skip": nn.Conv1d(2, 2, 1, dtype=torch.float32)})
def Operator(self, x: torch.Tensor) -> torch.Tensor:
    return torch.add(self.spectral(x), self.skip(x))


@of_parts(lambda: {"first": nn.Linear(8, 4, dtype=torch.cfloat), "last": nn.Linear(4, 2)})
def Complex(self, x: torch.Tensor) -> torch.Tensor:
    """A layer that only complex inputs pass, although a later parameter is real."""
    return torch.as_tensor(self.last(self.first(x * x.imag).abs()))


@pytest.mark.parametrize(
    ("model", "size", "dtype"),
    [
        (Fourier(), (2, 8), "float32"),
        (Operator(), (2, 8), "float32"),
        (Complex(), (8,), "complex64"),
        (nn.Linear(8, 4, dtype=torch.cdouble), (8,), "complex128"),
    ],
    ids=["complex weights", "first complex", "complex inputs", "complex alone"],
)
def test_inputs_are_real_unless_only_complex_ones_run(model: nn.Module, size: tuple[int, ...], dtype: str) -> None:
    assert isinstance(spec := summary(model, size, verbose=0).inputs, TensorSpec) and spec.dtype == dtype
    step: dict[str, Any] = {"batch_size": 4, "mode": "eval"}
    assert estimate_memory(model, size, **step).peak_bytes == measure_memory(model, size, **step).peak_bytes


@of_parts(lambda: {"layer": nn.Linear(4, 2)})
def Scaled(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """With two features, a batch of 2 broadcasts where 3 does not."""
    return torch.mul(self.layer(x), scale)


@of_parts(lambda least=1: {"layer": nn.Linear(4, 2), "least": least})
def Rows(self, x: torch.Tensor) -> torch.Tensor:
    if len(x) < self.least:
        raise ValueError("only more")
    return torch.stack([self.layer(row) for row in x])


@pytest.mark.parametrize(("model", "sizes"), [(Scaled(), [(4,), ()]), (Rows(), [(4,)])], ids=["broadcast", "calls"])
def test_an_open_batch_counts_as_one(model: nn.Module, sizes: list[Any]) -> None:
    result = summary(model, sizes, verbose=0)
    assert (result.total_mult_adds, result.run.batch_size, result.run.note) == (8, 1, "")
    assert next(tensors(result.inputs)).shape == (1, 4)


def test_a_table_says_which_other_batch_ran() -> None:
    result = summary(Rows(least=2), (4,), verbose=0)
    assert (result.total_mult_adds, result.run.batch_size) == (16, 2)
    assert "The figures are for a batch of 2, as a batch of 1 fails" in str(result)
    assert "In Rows: the figures are for a batch of 2" in str(compare(Rows(least=2), nn.Linear(4, 2), input_size=(4,)))


@of_parts(lambda: {"vec": nn.Linear(5, 4), "img": nn.Conv2d(3, 4, 3)})
def Observation(self, obs: Any, scale: float = 1.0) -> torch.Tensor:
    return torch.mul(self.vec(obs["vec"]) + self.img(obs["img"]).mean((2, 3)), scale)


SIZES = {"vec": (5,), "img": (3, 8, 8)}


def observed(batch: int) -> dict[str, torch.Tensor]:
    return {name: torch.rand(batch, *size) for name, size in SIZES.items()}


@pytest.mark.parametrize("given", [[SIZES], SIZES, ({**SIZES},), {"obs": SIZES}], ids=["list", "dict", "tuple", "name"])
def test_a_dict_can_be_one_argument_by_size(given: Any) -> None:
    result = summary(Observation(), given, verbose=0)
    assert result.total_mult_adds == 5 * 4 + 36 * 27 * 4 and result.rows[0].outputs == TensorSpec(
        (1, 4), "float32", 16, (0,)
    )
    assert summary(Observation(), given, verbose=0, scale=2.0).total_mult_adds == result.total_mult_adds


class Batch(collections.UserDict[str, Any]):
    """A mapping of another class than dict."""


@pytest.mark.parametrize("wrap", [dict, Batch, lambda data: (data,), lambda data: {"obs": data}])
def test_a_dict_can_be_one_argument_as_data(wrap: Callable[[Any], Any]) -> None:
    data, model = observed(6), Observation()
    result = summary(model, input_data=wrap(data), verbose=0)
    assert result.run.batch_size == 6 and next(tensors(result.inputs)).shape == (6, 5)
    assert summary(model, input_data=wrap(data), verbose=0, scale=2.0, run="real").total_mult_adds > 0
    by_size = estimate_memory(model, [SIZES], batch_size=6)
    for memory in (estimate_memory, measure_memory):
        assert memory(model, input_data=wrap(data)).peak_bytes == by_size.peak_bytes


def test_names_that_the_forward_takes_stay_keywords() -> None:
    assert summary(Scaled(), {"x": (4,), "scale": (1,)}, verbose=0).total_mult_adds == 8
    with pytest.raises(ForwardError, match="unexpected keyword argument 'other'"):
        summary(Scaled(), {"x": (4,), "other": (1,)}, verbose=0)


@of_parts(lambda: {"embedding": nn.Embedding(10, 4), "decoder": Decoder()})
def Seq2seq(self, input_ids: Any = None, pixels: Any = None, decoder_input_ids: Any = None) -> Any:
    if input_ids is None:
        raise ValueError("You must specify input_ids")
    states = self.embedding(input_ids)
    if pixels is not None:
        raise ValueError("0 tokens for 4 image features")
    return self.decoder(states, input_ids=decoder_input_ids)


class Decoder(nn.Module):
    def forward(self, states: torch.Tensor, input_ids: Any = None) -> torch.Tensor:
        if input_ids is None:
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        return states @ states.transpose(1, 2).reshape(1, 2, 3)


@pytest.mark.parametrize(
    ("size", "hint"),
    [
        ((5,), r"forward was not given decoder_input_ids; .*\{'input_ids': size, 'decoder_input_ids': size\}"),
        ({"pixels": (3, 8, 8)}, r"forward was not given input_ids; .*\{'pixels': size, 'input_ids': size\}"),
        ([(5,), (3, 8, 8)], r"input_ids given by size holds only zeros; .*\{'input_ids': tokens, 'pixels'"),
        ((3, 8, 8), r"not given decoder_input_ids"),
        ([(3, 8, 8), None], r"accepted"),
    ],
)
def test_a_hint_names_the_missing_argument(size: Any, hint: str) -> None:
    with pytest.raises(SummaryError, match=hint):
        summary(Seq2seq(), size, verbose=0)


def test_a_hint_names_the_dict() -> None:
    with pytest.raises(ForwardError, match=r"looks up names in its argument, pass a dict: input_size=\[\{'name': size"):
        summary(Observation(), (5,), verbose=0)
    with pytest.raises(ForwardError, match=r"if obs is a dict: input_size=\[\{'name': size\}\]"):
        summary(Observation(), {"scale": (1,), "vec": (5,)}, verbose=0)
