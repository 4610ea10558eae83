"""Options that would have no effect beside others are refused or named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import InputError, StepOptions, estimate_memory, measure_memory, summary

CALLS: tuple[Callable[..., Any], ...] = (estimate_memory, measure_memory)
BY_OWN_STEP = {
    "optimizer": ("adam", "step the optimizer in train_step"),
    "autocast": (torch.bfloat16, "use torch.autocast in train_step"),
    "keep_output": (True, "keep the output in train_step"),
}
NO_LOSSES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "None": (lambda output: None, "returned None"),
    "a tuple": (lambda output: (output.sum(), 1), "returned a tuple"),
    "a number": (lambda output: 1.0, "returned a float"),
    "detached": (lambda output: output.detach().sum(), "returned a tensor without a gradient"),
}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def own_step(model: nn.Module, x: Tensor) -> None:
    model(x).sum().backward()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", BY_OWN_STEP)
def test_a_users_own_step_takes_no_options_of_a_loop(name: str, call: Callable[..., Any]) -> None:
    value, cure = BY_OWN_STEP[name]
    with pytest.raises(InputError, match=f"{name} is .*; accepted with train_step, .*; {cure}"):
        call(net(), (64,), 4, train_step=own_step, **{name: value})
    shared = StepOptions(**{name: value})
    call(net(), (64,), 4, options=shared, train_step=own_step, **{name: None})


@pytest.mark.parametrize("call", CALLS)
def test_an_inference_says_which_options_are_of_training(call: Callable[..., Any]) -> None:
    plain = call(net(), (64,), 4, mode="eval")
    given = call(net(), (64,), 4, mode="eval", optimizer="adam", loss="mse")
    assert given.peak_bytes == plain.peak_bytes and plain.assumptions == ()
    assert given.assumptions == ('optimizer and loss have no effect: mode "eval" is a forward alone',)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("what", NO_LOSSES)
def test_a_loss_without_a_gradient_is_refused(what: str, call: Callable[..., Any]) -> None:
    loss, told = NO_LOSSES[what]
    with pytest.raises(InputError, match=told):
        call(net(), (64,), 4, loss=loss)


def test_data_come_with_their_own_batch_and_dtype() -> None:
    data = torch.randn(2, 64)
    for call in (estimate_memory, measure_memory, summary):
        quiet: dict[str, Any] = {"verbose": 0} if call is summary else {}
        for batch in (1, 2):
            call(net(), input_data=data, batch_size=batch, dtypes=torch.float32, **quiet)
        with pytest.raises(InputError, match=r"batch_size is 64, but the batch of input_data, .*, is 2"):
            call(net(), input_data=data, batch_size=64, **quiet)
        with pytest.raises(InputError, match=r"dtypes has torch.float16, but input_data has torch.float32"):
            call(net(), input_data=data, dtypes=[torch.float16], **quiet)
    assert summary(net(), input_data=data, batch_size=-1, verbose=0).run.batch_size == 2
    with pytest.raises(InputError, match="batch_size is 8"):
        summary(net(), input_data=data, memory={"batch_size": 8}, verbose=0)
