"""Gradient accumulation: gradients that stay across micro-batches, exact against the real step."""

from typing import Any

import pytest
from torch import nn

from torchsummary_plus import InputError, estimate_memory, max_batch_size, measure_memory


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.LayerNorm(256), nn.Linear(256, 10))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    model[2].weight = model[0].weight
    return model


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {"dense": (dense, (64,)), "tied": (tied, (64,))}


@pytest.mark.parametrize("optimizer", [None, "adamw"])
@pytest.mark.parametrize("name", MODELS)
def test_the_estimate_is_the_measured_step(name: str, optimizer: str | None) -> None:
    build, size = MODELS[name]
    model = build()
    options = {"optimizer": optimizer, "loss": "cross_entropy", "gradient_accumulation_steps": 3}
    estimate, measured = (call(model, size, 16, **options) for call in (estimate_memory, measure_memory))
    assert (estimate.peak_bytes, estimate.steady_bytes) == (measured.peak_bytes, measured.steady_bytes)
    assert estimate.info.micro_batches == measured.info.micro_batches == 3


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
        ({"gradient_accumulation_steps": 2, "train_step": print}, "is 2; accepted with train_step, which runs its own"),
    ],
)
def test_what_cannot_accumulate_is_refused(options: dict[str, Any], said: str) -> None:
    for call in (estimate_memory, measure_memory):
        with pytest.raises(InputError, match=said):
            call(dense(), (64,), 4, **options)
