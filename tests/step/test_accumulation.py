"""Gradient accumulation: gradients that stay across micro-batches, exact against the real step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchsummary_plus import InputError, StepOptions, estimate_memory, max_batch_size, measure_memory
from torchsummary_plus.api.cli.main import main


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.LayerNorm(256), nn.Linear(256, 10))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    model[2].weight = model[0].weight
    return model


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dense": (dense, (64,)),
    "convolutions": (convolutions, (1, 8, 8)),
    "tied": (tied, (64,)),
}


@pytest.mark.parametrize("micro_batches", [2, 5])
@pytest.mark.parametrize("optimizer", [None, "adamw"])
@pytest.mark.parametrize("name", MODELS)
def test_the_estimate_is_the_measured_step(name: str, optimizer: str | None, micro_batches: int) -> None:
    build, size = MODELS[name]
    model = build()
    options = {"optimizer": optimizer, "loss": "cross_entropy", "gradient_accumulation_steps": micro_batches}
    estimate, measured = (call(model, size, 16, **options) for call in (estimate_memory, measure_memory))
    assert (estimate.peak_bytes, estimate.steady_bytes) == (measured.peak_bytes, measured.steady_bytes)
    assert estimate.info.micro_batches == measured.info.micro_batches == micro_batches


def test_it_is_the_loop_that_people_write() -> None:
    model = dense()
    targets = torch.zeros(16, dtype=torch.long)

    def step(model: nn.Module, x: Tensor) -> None:
        for _ in range(4):
            loss = F.cross_entropy(model(x), targets) / 4
            loss.backward()
            del loss
        optimizer.step()
        optimizer.zero_grad()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = measure_memory(model, (64,), 16, train_step=step)
    estimate = estimate_memory(
        model, (64,), 16, optimizer="sgd", loss="cross_entropy", targets=((), torch.long), gradient_accumulation_steps=4
    )
    assert estimate.peak_bytes == own.peak_bytes


def test_gradients_stay_and_work_adds_up() -> None:
    once, twice = (estimate_memory(dense(), (64,), 512, gradient_accumulation_steps=number) for number in (1, 2))
    gradients = 4 * sum(p.numel() for p in dense().parameters())
    assert once.peak_bytes < twice.peak_bytes <= once.peak_bytes + gradients + 4  # The divided loss.
    assert twice.total_train_mult_adds == 2 * (once.total_train_mult_adds or 0)
    assert "gradients of 2 micro-batches" in str(twice)
    large, small = (
        max_batch_size(dense(), (64,), 1 << 24, device="cpu", gradient_accumulation_steps=number).batch_size
        for number in (1, 2)
    )
    assert small < large


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0; accepted: an integer of at least 1"),
        ({"gradient_accumulation_steps": True}, "gradient_accumulation_steps is True"),
        ({"gradient_accumulation_steps": 2, "mode": "eval"}, "is 2; accepted with mode 'eval': 1"),
        (
            {"gradient_accumulation_steps": 2, "train_step": print},
            "is 2; accepted with train_step, which runs its own",
        ),
    ],
)
def test_what_cannot_accumulate_is_refused(options: dict[str, Any], said: str) -> None:
    for call in (estimate_memory, measure_memory):
        with pytest.raises(InputError, match=said):
            call(dense(), (64,), 4, **options)


def test_options_and_the_shell_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    options = StepOptions(gradient_accumulation_steps=3)
    assert estimate_memory(dense(), (64,), 4, options=options).info.micro_batches == 3
    words = ["examples/simple_cnn.py:PooledCNN", "1,28,28", "--batch-size", "2", "--gradient-accumulation-steps", "3"]
    assert main(words) == 0
    assert "gradients of 3 micro-batches" in capsys.readouterr().out
