"""Calls by users who have not read the documentation: they work, or the error says what to write instead."""

from io import BytesIO, TextIOWrapper
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.parts import of_parts
from torchsummary_plus import MemTracker, compare, estimate_memory, from_config, measure_memory, summary, weights
from torchsummary_plus.data.errors import SummaryError, UnsupportedError

STEP: dict[str, Any] = {"optimizer": "sgd", "device": "cpu"}


def layer() -> nn.Module:
    return nn.Linear(8, 4)


@of_parts(lambda: {"inner": layer()})
def ByKeyword(self, *, x: Tensor) -> Tensor:
    out: Tensor = self.inner(x)
    return out


DATA = TensorDataset(torch.zeros(4, 8))


@pytest.mark.parametrize(
    ("call", "cure"),
    [
        (lambda: summary(layer(), input_data=np.zeros((2, 8))), "torch.as_tensor("),
        (lambda: summary(layer(), np.zeros((2, 8))), "input_data=torch.as_tensor("),
        (lambda: summary(layer(), input_data=DataLoader(DATA)), "next(iter(loader))"),
        (lambda: summary(layer(), input_data=DATA), "DataLoader(dataset, batch_size=...)"),
        (lambda: summary(ByKeyword(), (8,)), "input_size={'x': ...}"),
        (lambda: summary(layer(), (8,), dpeth=3), "similar names: depth"),
        (lambda: summary(layer(), (8,), layer_range=["a", "b"]), "write rows="),
        (lambda: summary(layer(), (8,), optimizer="adamw"), "write memory="),
        (lambda: summary(layer(), (8,), gpu="RTX 4090"), 'write memory={"gpu": "RTX 4090"}'),
        (lambda: summary(layer(), (8,), frobnicate=1), "it takes input"),
        (lambda: summary(layer(), (8,), batch_size=10**30), "2**63 bytes"),
        (lambda: estimate_memory(nn.ReLU(), (8,), 4, **STEP), 'mode="eval"'),
        (lambda: estimate_memory(layer(), (8,), 4, mode="training"), "did you mean 'train'"),
        (
            lambda: estimate_memory(layer(), (8,), 4, autocast="fp8"),
            "autocast is 'fp8'; accepted: None, True, torch.bfl",
        ),
        (lambda: estimate_memory(layer(), (8,), 4, gpu="24GB"), "amounts go to fits()"),
        (lambda: summary(layer, (8,)), "if the function builds the model, call it: layer(...)"),
        (lambda: weights("model.pt"), "torch.load(path, weights_only=True)"),
        (lambda: from_config("a-user/a-model"), "AutoConfig.from_pretrained(name).save_pretrained(folder)"),
        (lambda: estimate_memory(layer(), (8,), 4, device="H100"), "gpu="),
        (lambda: estimate_memory(layer(), (8,), 4, loss=nn.CrossEntropyLoss), "call it: CrossEntropyLoss("),
        (lambda: summary([layer(), layer()], (8,)), "compare("),
    ],
)
def test_the_error_says_what_to_type(call: Any, cure: str) -> None:
    with pytest.raises(SummaryError) as caught:
        call()
    assert cure in str(caught.value)


def test_a_gpu_may_be_given_by_its_number() -> None:
    by_name = estimate_memory(layer(), (8,), 4, device="cuda:1", optimizer="sgd")
    assert estimate_memory(layer(), (8,), 4, device=1, optimizer="sgd").peak_bytes == by_name.peak_bytes


@pytest.mark.parametrize("ask", [estimate_memory, measure_memory])
def test_a_step_has_gradients_inside_inference_mode(ask: Any) -> None:
    outside = ask(layer(), (8,), 4, **STEP).peak_bytes
    model = layer()
    with torch.inference_mode():
        assert ask(model, (8,), 4, **STEP).peak_bytes == outside
        assert torch.is_inference_mode_enabled()


def test_a_terminal_of_another_encoding_shows_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where the output of a script that goes to a file has no box-drawing characters."""
    model = nn.Sequential(layer(), nn.ReLU())
    for encoding in ("ascii", "cp1252"):
        written = BytesIO()
        stream = TextIOWrapper(written, encoding)
        monkeypatch.setattr("sys.stdout", stream)
        result = summary(model, (8,), style="tree")
        print(str(result), result, repr(compare(model, model, input_size=(8,), style="tree", names=["é", "層"])))
        tracker = MemTracker(device="cpu", stream=stream)
        tracker.track("größer ├")
        tracker.close()
        stream.flush()
        assert written.getvalue().count(b"|-0 (Linear)") >= 3 and b"`-1 (ReLU)" in written.getvalue()


def test_a_users_profile_is_not_lost() -> None:
    with torch.autograd.profiler.profile() as profile:
        with pytest.raises(UnsupportedError, match="uses torch's profiler, and a profiler is already running"):
            measure_memory(layer(), (8,))
        estimate_memory(layer(), (8,))
        torch.ones(3).exp()
    assert any(event.name == "aten::exp" for event in profile.function_events)


@pytest.mark.parametrize("ask", [summary, estimate_memory, measure_memory])
def test_a_fake_tensor_mode_is_stepped_out_of_and_its_tensors_are_refused(ask: Any) -> None:
    from torch._subclasses import FakeTensorMode

    model, quiet = layer(), {"verbose": 0} if ask is summary else {}
    outside = ask(model, (8,), **quiet)
    with FakeTensorMode():
        assert str(ask(model, (8,), **quiet)) == str(outside)
        fake, x = layer(), torch.ones(2, 8)
        for arguments in ({"model": fake, "input_size": (8,)}, {"model": model, "input_data": x}):
            with pytest.raises(UnsupportedError, match=r'fake tensors.*torch\.device\("meta"\)'):
                ask(**arguments, **quiet)
