"""Options of a step known from trainers: accepted, or refused with a cure."""

from typing import Any

import pytest
import torch
from torch import nn

from torchsummary_plus import InputError, StepOptions, estimate_memory, max_batch_size, measure_memory, summary


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"autocast": True}, "no optimizer, autocast to bfloat16, loss: the output's sum, on the CPU"),
        ({"amp": True}, "no optimizer, autocast to bfloat16, loss: the output's sum, on the CPU"),
        ({"amp": True, "gpu": "T4"}, "no optimizer, autocast to float16, loss: the output's sum, on a T4"),
        ({"loss": nn.CrossEntropyLoss()}, "float32, CrossEntropyLoss, on the CPU"),
    ],
)
def test_what_trainers_call_it_is_taken(options: dict[str, Any], said: str) -> None:
    assert said in str(estimate_memory(net(), (256,), 8, **options).info)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accumulate_grad_batches": 4}, "write gradient_accumulation_steps=, with batch_size= of one micro-batch"),
        ({"optimzer": "sgd"}, "unexpected keyword argument 'optimzer'; similar names: optimizer"),
        ({"loss_fn": "mse"}, "write loss="),
    ],
)
def test_other_options_are_answered_with_the_cure(options: dict[str, Any], said: str) -> None:
    for ask in (estimate_memory, measure_memory):
        with pytest.raises(InputError, match=said):
            ask(net(), (256,), 8, **options)
    with pytest.raises(InputError, match=said):
        max_batch_size(net(), (256,), "1GiB", device="cpu", **options)
    with pytest.raises(InputError):
        summary(net(), (256,), memory=options, verbose=0)


def test_the_largest_batch_takes_a_card_as_the_memory_or_by_name() -> None:
    """`gpu=` names the GPU as in every other call; a memory size beside it would contradict it."""
    named, positional = max_batch_size(net(), (256,), gpu="RTX 3060 8GB"), max_batch_size(net(), (256,), "RTX 3060 8GB")
    assert str(named) == str(positional) and "RTX 3060 8GB" in str(named)
    by_options = max_batch_size(net(), (256,), options=StepOptions(gpu="RTX 3060 8GB"))
    assert str(by_options) == str(named)
    with pytest.raises(InputError, match="memory is '6GiB' and gpu is 'RTX 3060 8GB'; pass only one of them"):
        max_batch_size(net(), (256,), "6GiB", gpu="RTX 3060 8GB")
    with pytest.raises(InputError, match="memory is 0"):
        max_batch_size(net(), (256,), 0)


def test_a_fit_is_asked_of_the_card_that_was_named() -> None:
    named = estimate_memory(net(), (256,), 8, gpu="T4")
    assert named.fits() and named.fits() == named.fits("T4")
    with pytest.raises(InputError, match=r"no GPU was named; accepted: fits\('24GiB'\)"):
        estimate_memory(net(), (256,), 8).fits()


def test_an_optimizer_that_is_there_already() -> None:
    model = net()
    result = torch.optim.AdamW(model.parameters(), lr=1e-4, amsgrad=True)
    estimate = estimate_memory(model, (256,), 8, optimizer=result)
    measured = measure_memory(model, (256,), 8, optimizer=result)
    assert estimate.peak_bytes == measured.peak_bytes and "AdamW" in str(estimate.info)
    plain = estimate_memory(model, (256,), 8, optimizer="adamw").at_peak["optimizer_state"]
    assert estimate.at_peak["optimizer_state"] > plain and not result.state
    with pytest.raises(InputError, match="the optimizer has 2 parameters, none of them the model's, of which 4"):
        estimate_memory(model, (256,), 8, optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters()))


def test_an_optimizer_of_some_parameters() -> None:
    model: Any = net()
    optimizer = torch.optim.Adam([{"params": [model[2].weight], "amsgrad": True}, {"params": [model[2].bias]}])
    predicted, measured = (f(model, (256,), 8, optimizer=optimizer) for f in (estimate_memory, measure_memory))
    assert predicted.at_peak == measured.at_peak and predicted.assumptions == measured.assumptions
    (line,) = [line for line in predicted.assumptions if "the optimizer trains" in line]
    assert line.startswith("the optimizer trains 2 of 4 parameters that require gradients; ")
    weight, bias = model[2].weight.nbytes, model[2].bias.nbytes
    assert predicted.at_peak["optimizer_state"] == 3 * weight + 2 * bias + 2 * 4
    assert predicted.steady_bytes >= sum(p.nbytes for p in model.parameters()) + sum(
        p.nbytes for p in model[0].parameters()
    )
    assert not optimizer.state


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw8bit", "AdamW8bit"), ("paged_adamw_8bit", ""), ("lion8bit", "Lion8bit")]
)
def test_eight_bit_states_are_those_of_bitsandbytes(name: str, kind: str) -> None:
    states = 1 if "lion" in name else 2
    weights, others = 256 * 64, 64 + 64 * 10 + 10
    state_bytes = states * (weights + 4 * (weights // 256) + 4 * 256 + 4 * others)
    estimate = estimate_memory(net(), (256,), 8, optimizer=name)
    assert sum(row.own.optimizer_bytes for row in estimate.by_module) in (state_bytes, state_bytes - states * 1024)
    assert estimate.at_peak["optimizer_state"] == state_bytes
    if kind:
        library = pytest.importorskip("bitsandbytes")
        measured = measure_memory(net(), (256,), 8, optimizer=getattr(library.optim, kind))
        assert measured.at_peak["optimizer_state"] == state_bytes
