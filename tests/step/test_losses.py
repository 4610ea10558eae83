"""The loss of a step: by name, module or function, with targets; predictions against real steps."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.parts import of_parts
from tests.step.step_parts import truth
from torchsummary_plus import (
    InputError,
    MemoryEstimate,
    compare,
    estimate_memory,
    max_batch_size,
    measure_memory,
    summary,
)
from torchsummary_plus.api.cli import main
from torchsummary_plus.data.memory_records import SUMMED
from torchsummary_plus.step.training import LOSSES


def net(bounded: bool = False) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10), *([nn.Sigmoid()] if bounded else []))


@of_parts(lambda: {"embed": nn.Embedding(500, 16), "head": nn.Linear(16, 500)})
def Tokens(self, ids: Tensor) -> Tensor:
    """A language model: (N, T) tokens -> (N, T, vocabulary) scores."""
    scores: Tensor = self.head(self.embed(ids))
    return scores


class Output(dict):  # type: ignore[type-arg]
    """What transformers' models return: by name and by attribute."""

    __getattr__ = dict.__getitem__


class Labelled(Tokens):
    """As transformers do it: with labels also the loss."""

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        scores = super().forward(ids)
        output = Output(logits=scores, loss=None)
        if labels is not None:
            shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
            output["loss"] = F.cross_entropy(scores.float().view(-1, 500), shifted.view(-1), ignore_index=-100)
        return output


def same(predicted: MemoryEstimate, measured: MemoryEstimate) -> None:
    assert predicted.peak_bytes == measured.peak_bytes
    assert predicted.at_peak == measured.at_peak
    assert predicted.phase_peaks == measured.phase_peaks
    assert predicted.steady_bytes == measured.steady_bytes
    assert predicted.assumptions[:1] == measured.assumptions[:1]


@pytest.mark.parametrize("name", LOSSES)
def test_each_named_loss_is_predicted_to_the_byte(name: str) -> None:
    if name == "causal_lm":
        model, size, dtypes = Tokens(), (12,), torch.long
    else:
        model, size, dtypes = net(bounded=name == "bce"), (16,), None  # type: ignore[assignment]
    options: dict[str, Any] = {"batch_size": 32, "dtypes": dtypes, "loss": name, "optimizer": "adamw"}
    predicted = estimate_memory(model, size, **options)
    same(predicted, measure_memory(model, size, **options))
    assert predicted.info.loss == name and SUMMED not in predicted.assumptions


def test_the_step_is_the_one_that_a_loop_runs() -> None:
    x, classes = torch.rand(64, 16), torch.zeros(64, dtype=torch.int64)
    predicted = estimate_memory(net(), input_data=x, loss="cross_entropy")
    assert predicted.peak_bytes == truth(net(), x, F.cross_entropy, classes)
    weighted = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert estimate_memory(net(), input_data=x, loss=weighted).peak_bytes == truth(net(), x, weighted, classes)


LIKE_TORCH: list[tuple[Any, str]] = [
    ("MSELoss", "mse"),
    (nn.CrossEntropyLoss(), "cross_entropy"),
    (F.cross_entropy, "cross_entropy"),
    (partial(F.mse_loss, reduction="sum"), "mse"),
]


@pytest.mark.parametrize(("loss", "name"), LIKE_TORCH, ids=[str(loss)[:30] for loss, _ in LIKE_TORCH])
def test_torchs_names_modules_and_functions_mean_the_same(loss: Any, name: str) -> None:
    first, second = (estimate_memory(net(), (16,), 32, loss=loss) for loss in (loss, name))
    assert first.peak_bytes == second.peak_bytes and first.at_peak == second.at_peak


def squared(output: Tensor, target: Any) -> Tensor:
    parts = target.values() if isinstance(target, dict) else target if isinstance(target, list) else [target]
    return sum((output.square().sum() + part.float().sum() for part in parts), torch.zeros(()))


TARGETS: dict[str, tuple[Any, int]] = {
    "a tensor": (torch.zeros(8, 3), 8 * 3 * 4),
    "a number": (7, 8 * 7 * 4),
    "a list": ([(3,), ((2, 2), torch.int32)], 8 * 3 * 4 + 8 * 4 * 4),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_inputs_and_grow_with_the_batch(name: str) -> None:
    targets, nbytes = TARGETS[name]
    for batch in (8, 24):
        options = {"batch_size": batch, "loss": squared, "targets": targets}
        predicted = estimate_memory(net(), (16,), **options)
        same(predicted, measure_memory(net(), (16,), **options))
        assert predicted.at_peak["inputs"] == batch * 16 * 4 + nbytes * batch // 8
    limit = max_batch_size(net(), (16,), 1 << 20, device="cpu", loss=squared, targets=targets)
    assert limit.is_proved
    peaks = [
        estimate_memory(net(), (16,), limit.batch_size + more, loss=squared, targets=targets).peak_bytes
        for more in (0, 1)
    ]
    assert peaks == [limit.peak_bytes, limit.next_peak_bytes]


def test_a_language_models_classes_are_its_last_axis() -> None:
    ids = torch.randint(0, 500, (4, 12))
    bare = estimate_memory(Tokens(), input_data=ids, loss="cross_entropy")
    assert bare.at_peak["inputs"] == 2 * ids.nbytes
    assert bare.assumptions == ("targets of cross_entropy: int64 [4, 12], of 500 classes (axis 2)",)
    named = estimate_memory(Labelled(), input_data=ids, loss="cross_entropy")
    assert named.assumptions == bare.assumptions and named.at_peak == bare.at_peak

    def flat(scores: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(scores.view(-1, 500), targets.view(-1))

    assert bare.peak_bytes == truth(Tokens(), ids, flat, ids.clone())


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(10, 10))
        self.register_buffer("scale", torch.ones(10))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output @ self.centres * self.scale, target)


def test_the_tensors_of_a_loss_are_booked_and_trained() -> None:
    loss = Weighted()
    copies = [tensor.clone() for tensor in (*loss.parameters(), *loss.buffers())]
    options = {"batch_size": 32, "loss": loss, "targets": ((), torch.long), "optimizer": "adamw"}
    predicted = estimate_memory(net(), (16,), **options)
    same(predicted, measure_memory(net(), (16,), **options))
    plain = estimate_memory(net(), (16,), 32, loss="cross_entropy", optimizer="adamw")
    assert predicted.at_peak["parameters"] - plain.at_peak["parameters"] == 400
    assert predicted.at_peak["buffers"] == 40
    assert predicted.at_peak["optimizer_state"] - plain.at_peak["optimizer_state"] == 804
    assert all(map(torch.equal, copies, (*loss.parameters(), *loss.buffers())))
    assert all(p.grad is None for p in loss.parameters())
    on_card = estimate_memory(net(), (16,), gpu="T4", **options)
    assert on_card.info.device == "cuda:0"


def test_a_sum_that_stands_in_is_said_everywhere() -> None:
    estimate = estimate_memory(net(), (16,), 32)
    assert estimate.assumptions == (SUMMED,) and estimate.info.loss == "the output's sum"
    for text in (str(estimate), estimate.to_markdown(), estimate.to_latex(caption="A step"), estimate.to_html()):
        assert "no loss was given" in text
    assert SUMMED not in estimate_memory(net(), (16,), mode="eval").assumptions
    prediction = estimate_memory(net(), (16,), 32, loss=lambda out: out.sum())
    assert prediction.assumptions == () and prediction.peak_bytes == estimate.peak_bytes


def with_target(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).sum()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"loss": "msee"}, "loss is 'msee'; accepted: 'cross_entropy'"),
    ({"loss": with_target}, "loss with_target takes an output and targets"),
    ({"loss": "mse", "targets": "x"}, "targets is 'x'; accepted"),
    ({"loss": "mse", "train_step": print}, "loss or targets were given together with train_step"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_be_a_loss_is_named(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimate_memory(net(), (16,), 2, **words)


SETTINGS = ("RTX 3060 12GB", "AdamW", "autocast to bfloat16", "mse")


def test_every_result_says_what_its_step_is() -> None:
    options: dict[str, Any] = {"gpu": "RTX 3060", "optimizer": "adamw", "loss": "mse", "autocast": "bfloat16"}
    step = estimate_memory(net(), (16,), 32, **options)
    table = summary(net(), (16,), 32, memory=options, verbose=0)
    models = compare(net(), net(), input_size=(16,), memory=options, names=["a", "b"])
    steps = compare(step, step, names=["one", "two"])
    for result in (step, table, models, steps):
        shown = (str(result), result.to_markdown(), result.to_html(), result.to_latex(caption="Ours"))
        for text in shown:
            assert [word for word in SETTINGS if word not in text] == []
        info = {"gpu": "RTX 3060 12GB", "device": "cuda:0", "optimizer": "adamw", "loss": "mse", "dtype": "float32"}
        for name, value in {**info, "autocast": "bfloat16"}.items():
            assert f'"{name}":"{value}"' in result.to_json()
    peaks = models.entries[0].peaks
    assert peaks is not None and (peaks.gpu, peaks.info.loss, peaks.batch_size) == ("RTX 3060", "mse", 1)
    assert [word for word in ("float32", "CPU", "no optimizer") if word not in str(estimate_memory(net(), (16,)))] == []


@pytest.mark.parametrize("command", [[], ["compare"]])
def test_the_shell_takes_a_loss_and_a_card(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    models = ["examples/simple_cnn.py:PooledCNN"] * (2 if command else 1)
    words = [*command, *models, "1,28,28", "--batch-size", "2", "--loss", "cross_entropy"]
    assert main([*words, "--gpu", "T4"]) == 0
    assert "batch 2, no optimizer, float32, cross_entropy, on a T4" in capsys.readouterr().out
    assert main([*words, "--gpu", "T4", "--device", "cpu"]) == 2
    assert "accepted with a GPU: device='cuda'" in capsys.readouterr().err
    assert main([*words[:-1], "cross"]) == 2


def test_pixels_have_their_classes_in_axis_1() -> None:
    options: dict[str, Any] = {"batch_size": 2, "loss": "cross_entropy"}
    model = nn.Conv2d(3, 5, 3, padding=1)
    predicted = estimate_memory(model, (3, 12, 12), **options)
    assert predicted.assumptions == ("targets of cross_entropy: int64 [2, 12, 12], of 5 classes (axis 1)",)
    assert predicted.at_peak["inputs"] == 2 * 3 * 12 * 12 * 4 + 2 * 12 * 12 * 8
