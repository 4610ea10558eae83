"""A transformers model wrapped as in a script that uses accelerate."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn


def under_accelerate(version: int) -> Callable[[], nn.Module]:
    """What builds it under a version of the FSDP plugin; skips the test where a library is missing."""
    accelerate, transformers = pytest.importorskip("accelerate"), pytest.importorskip("transformers")

    def build() -> nn.Module:
        plugin = accelerate.FullyShardedDataParallelPlugin(
            fsdp_version=version,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        )
        accelerator = accelerate.Accelerator(fsdp_plugin=plugin, mixed_precision="bf16")
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 128}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2, **sizes))
        model, _ = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        whole: nn.Module = model
        return whole

    return build
