"""Every public call refuses an unknown keyword argument with an error that names the cure."""

import inspect
from typing import Any

import pytest
from torch import nn

import torchsummary_plus
from torchsummary_plus import InputError, StepOptions, compare, estimate_memory, graph, max_context, summary
from torchsummary_plus.data.arguments import OptionError

MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
TAKES_ANY = {"from_config"}
"""Calls whose keyword arguments are another library's."""

CALLS = sorted(
    name
    for name in torchsummary_plus.__all__
    if inspect.isfunction(getattr(torchsummary_plus, name)) and name not in TAKES_ANY
)


@pytest.mark.parametrize("name", [*CALLS, "StepOptions", "MemTracker"])
def test_unknown_argument_is_an_input_error_and_a_type_error(name: str) -> None:
    call: Any = getattr(torchsummary_plus, name)
    arguments = {"compare": (MODEL, MODEL), "weights": ("a.gguf",)}.get(name, (MODEL,))
    inputs: dict[str, Any] = {"gpu": "T4"} if name == "estimate_time" else {}
    if name in ("compare", "summary", "explain", "explain_batch"):
        inputs = {"input_size": (8,)}
    with pytest.raises(OptionError, match="zzz") as caught:
        call(*arguments, **inputs, zzz=1)
    assert isinstance(caught.value, InputError) and isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: graph(MODEL, (8,), max_depth=2), "; write depth="),
        (lambda: graph(MODEL, (8,), repeat="fold"), "; similar names: repeats"),
        (lambda: max_context(MODEL, max_new_tokens=2), "; write new_tokens="),
        (lambda: StepOptions(optim="adam"), '; write optimizer="adamw"'),
        (lambda: torchsummary_plus.explain_batch(MODEL, (8,), engine=False, optim="sgd"), "explain_batch.* optimizer="),
        (lambda: torchsummary_plus.summary_string(MODEL, (8,), depth=1), "write str.summary"),
    ],
)
def test_message_names_the_cure(call: Any, expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        call()


@pytest.mark.parametrize("view", ["to_text", "to_csv"])
@pytest.mark.parametrize("result", ["summary", "estimate", "graph", "comparison"])
def test_no_view_ignores_an_unknown_option(result: str, view: str) -> None:
    results: dict[str, Any] = {
        "summary": lambda: summary(MODEL, (8,), verbose=0),
        "estimate": lambda: estimate_memory(MODEL, (8,), 2),
        "graph": lambda: graph(MODEL, (8,)),
        "comparison": lambda: compare(MODEL, MODEL, input_size=(8,)),
    }
    with pytest.raises(OptionError, match="no option 'col_names'; write columns="):
        getattr(results[result](), view)(col_names=["num_params"])
