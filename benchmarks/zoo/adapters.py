"""A language model with the adapters of peft."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.cases import Case

IDS = torch.arange(64).reshape(2, 32) % 50 + 1

ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"]}),
    "LoRA_all": ("LoraConfig", {"r": 4, "target_modules": "all-linear", "lora_dropout": 0.1, "bias": "all"}),
    "DoRA": ("LoraConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"], "use_dora": True}),
    "LoRA_saved": ("LoraConfig", {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["norm"]}),
    "AdaLoRA": ("AdaLoraConfig", {"init_r": 6, "target_r": 4, "total_step": 10, "target_modules": ["q_proj"]}),
    "IA3": ("IA3Config", {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
    "LoHa": ("LoHaConfig", {"r": 4, "target_modules": ["q_proj"]}),
    "LoKr": ("LoKrConfig", {"r": 4, "target_modules": ["q_proj"]}),
    "OFT": ("OFTConfig", {"r": 0, "oft_block_size": 8, "target_modules": ["q_proj"]}),
    "VeRA": ("VeraConfig", {"r": 4, "target_modules": ["q_proj"]}),
    "LNTuning": ("LNTuningConfig", {"target_modules": ["input_layernorm"]}),
    "MiSS": ("MissConfig", {"r": 8, "target_modules": ["q_proj"]}),
    "PromptTuning": ("PromptTuningConfig", {"task_type": "CAUSAL_LM", "num_virtual_tokens": 4}),
    "PTuning": ("PromptEncoderConfig", {"task_type": "CAUSAL_LM", "num_virtual_tokens": 4, "encoder_hidden_size": 32}),
    "PrefixTuning": ("PrefixTuningConfig", {"task_type": "CAUSAL_LM", "num_virtual_tokens": 4}),
    "AdaptionPrompt": ("AdaptionPromptConfig", {"task_type": "CAUSAL_LM", "adapter_len": 4, "adapter_layers": 1}),
    "TrainableTokens": ("TrainableTokensConfig", {"token_indices": [1, 2, 3]}),
}  # fmt: skip


def peft_cases() -> Iterator[Case]:
    """Yield a tiny Llama with each kind of adapter."""
    import peft

    data: dict[str, Tensor] = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "labels": IDS}
    for name, (config, arguments) in ADAPTERS.items():
        if hasattr(peft, config):
            yield Case("peft", name, partial(_adapted, config, arguments), data=data)


def _adapted(config: str, arguments: dict[str, Any]) -> nn.Module:
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=100, num_key_value_heads=4, **sizes))
    model: nn.Module = peft.get_peft_model(base, getattr(peft, config)(**arguments))
    return model
