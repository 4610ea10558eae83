"""Generation accepts the options of other steps, in one object."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from torchsummary_plus import StepOptions, estimate_memory, max_context

transformers: Any = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    sizes = {"vocab_size": 99, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()


def test_max_context_takes_options(model: nn.Module) -> None:
    shared = StepOptions(device="cpu", autocast="bf16")
    assert max_context(model, "4MB", options=shared) == max_context(model, "4MB", device="cpu", autocast="bf16")
    assert max_context(model, "4MB", options=shared, autocast="fp16").info.autocast == "float16"


def test_a_loss_and_an_optimizer_do_not_matter(model: nn.Module) -> None:
    plain = StepOptions(mode="generate", device="cpu")
    training = replace(plain, optimizer="adamw", loss="causal_lm", gradient_accumulation_steps=2)
    peaks = [estimate_memory(model, options=options, prompt=4).peak_bytes for options in (plain, training)]
    assert peaks[0] == peaks[1]
