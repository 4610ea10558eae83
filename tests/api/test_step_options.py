"""StepOptions: calls accept its fields, or the object itself; options without effect are refused or named."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import InputError, StepOptions, compare, estimate_memory, max_batch_size, measure_memory, summary
from torchsummary_plus.api.step_request import StepArguments

ADAM = StepOptions(optimizer="adam", autocast=torch.bfloat16, steps=1)
KEYWORDS: dict[str, Any] = {"optimizer": "adam", "autocast": torch.bfloat16, "steps": 1}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


@pytest.mark.parametrize("call", [estimate_memory, measure_memory, max_batch_size])
def test_a_calls_signature_shows_every_option_of_a_step(call: Any) -> None:
    shown = inspect.signature(call).parameters
    for field in fields(StepOptions):
        if field.name in StepArguments.__annotations__:
            assert shown[field.name].default == field.default
            assert shown[field.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in shown.values())


def test_an_option_that_is_none_is_refused_as_python_refuses_it() -> None:
    for call, name in ((estimate_memory, "optimiser"), (measure_memory, "gpu"), (max_batch_size, "batch")):
        with pytest.raises(TypeError, match=rf"{call.__name__}\(\) got an unexpected keyword argument '{name}'"):
            call(net(), (64,), **{name: "T4"})
    with pytest.raises(TypeError, match=r"compare\(\) got an unexpected keyword argument 'size'"):
        compare(net(), net(), size=(64,))  # type: ignore[misc]
    with pytest.raises(InputError, match="options is"):
        estimate_memory(net(), (64,), options={"optimizer": "adam"})  # type: ignore[arg-type]


def test_the_object_gives_the_figures_of_its_fields() -> None:
    assert estimate_memory(net(), (64,), 4, options=ADAM) == estimate_memory(net(), (64,), 4, **KEYWORDS)
    assert measure_memory(net(), (64,), 4, options=ADAM).info == measure_memory(net(), (64,), 4, **KEYWORDS).info
    assert max_batch_size(net(), (64,), 1 << 24, device="cpu", options=ADAM) == max_batch_size(
        net(), (64,), 1 << 24, device="cpu", **KEYWORDS
    )
    own, named = (summary(net(), (64,), 4, memory=memory, verbose=0) for memory in (ADAM, KEYWORDS))
    assert own.row_memory == named.row_memory and own.memory == named.memory
    told = [str(compare(net(), net(), input_size=(64,), memory=memory)) for memory in (ADAM, KEYWORDS)]
    assert told[0] == told[1]


def test_an_argument_goes_before_the_object_and_the_device_of_the_object_before_a_default() -> None:
    on_cuda = StepOptions(optimizer="adam", device="cuda", gpu="T4")
    info = estimate_memory(net(), (64,), options=on_cuda, optimizer="sgd").info
    assert (info.optimizer, info.device, info.gpu) == ("sgd", "cuda:0", "T4")
    assert estimate_memory(net(), (64,), device="cpu", options=StepOptions(device="cuda")).info.device == "cpu"
    assert max_batch_size(net(), (64,), 1 << 24, options=StepOptions(device="cpu")).info.device == "cpu"
    assert max_batch_size(net(), (64,), 1 << 32, options=StepOptions()).info.device == "cuda:0"
    table = summary(net(), (64,), device="cpu", memory=StepOptions(device="cuda"), verbose=0)
    assert table.memory is not None and table.memory.info.device == "cuda:0"


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
