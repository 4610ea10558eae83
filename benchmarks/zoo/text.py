"""Language and vision-language models: open_clip, x_transformers and peft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.cases import Case

IDS = torch.arange(64).reshape(2, 32) % 50 + 1
SHORTER = IDS[:, :31]
TINY_TEXT = {"context_length": 32, "vocab_size": 100, "width": 64, "heads": 4, "layers": 2}
TINY_VISION: dict[str, dict[str, Any]] = {
    "vit": {"image_size": 64, "layers": 2, "width": 64, "head_width": 16, "patch_size": 16},
    "vit_dropped": {"image_size": 64, "layers": 2, "width": 64, "head_width": 16, "patch_size": 16,
        "patch_dropout": 0.5},
    "vit_pooled": {"image_size": 64, "layers": 2, "width": 64, "head_width": 16, "patch_size": 16,
        "attentional_pool": True, "attn_pooler_queries": 8, "attn_pooler_heads": 4},
    "resnet": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None},
    "timm_resnet": {"image_size": 64, "timm_model_name": "resnet18", "timm_pool": "", "timm_proj": "linear"},
    "timm_convnext": {"image_size": 64, "timm_model_name": "convnext_atto", "timm_pool": "avg", "timm_proj": "mlp"},
}  # fmt: skip


def open_clip_cases() -> Iterator[Case]:
    """Yield CLIP with each kind of image tower, its variants of the text tower, and CoCa."""
    images, cls = torch.rand(2, 3, 64, 64), {"embed_cls": True}
    for name in TINY_VISION:
        yield Case("open_clip", f"CLIP_{name}", partial(_clip, "CLIP", name, {}), data=(images, IDS))
    yield Case("open_clip", "CustomTextCLIP", partial(_clip, "CustomTextCLIP", "vit", {}), data=(images, IDS))
    yield Case("open_clip", "CustomTextCLIP_cls", partial(_clip, "CustomTextCLIP", "vit", cls), None, (images, SHORTER))
    coca = partial(_clip, "CoCa", "vit_pooled", {**cls, "output_tokens": True})
    yield Case("open_clip", "CoCa", coca, data=(images, SHORTER))


def _clip(kind: str, vision: str, text: dict[str, Any]) -> nn.Module:
    import open_clip
    from open_clip.coca_model import MultimodalCfg

    more = {"multimodal_cfg": MultimodalCfg(**TINY_TEXT)} if kind == "CoCa" else {}
    vision_cfg = open_clip.CLIPVisionCfg(**TINY_VISION[vision], output_tokens=kind == "CoCa")
    text_cfg = open_clip.CLIPTextCfg(**{**TINY_TEXT, **text})
    model: nn.Module = getattr(open_clip, kind)(embed_dim=64, vision_cfg=vision_cfg, text_cfg=text_cfg, **more)
    return model


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "flash": {"attn_flash": True}, "rotary": {"rotary_pos_emb": True},
    "rotary_xpos": {"rotary_xpos": True}, "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "t5_bias": {"rel_pos_bias": True},
    "dynamic_bias": {"dynamic_pos_bias": True, "dynamic_pos_bias_log_distance": False},
    "glu": {"ff_glu": True, "ff_swish": True, "ff_no_bias": True},
    "relu_squared": {"ff_relu_squared": True}, "rmsnorm": {"use_rmsnorm": True},
    "simple_rmsnorm": {"use_simple_rmsnorm": True}, "scalenorm": {"use_scalenorm": True},
    "dynamic_tanh": {"use_dynamic_tanh": True}, "sandwich": {"sandwich_coef": 1}, "macaron": {"macaron": True},
    "post_norm": {"pre_norm": False}, "residual_gate": {"gate_residual": True},
    "residual_scale": {"scale_residual": True}, "memory": {"attn_num_mem_kv": 4},
    "talking_heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "sparse_topk": {"attn_sparse_topk": 4}, "one_kv_head": {"attn_one_kv_head": True}, "kv_heads": {"attn_kv_heads": 2},
    "qk_norm": {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True},
    "shift_tokens": {"shift_tokens": 1}, "on_attention": {"attn_on_attn": True},
    "value_gates": {"attn_gate_values": True}, "head_scale": {"attn_head_scale": True},
    "hybrid_cosine": {"attn_qk_norm": True, "attn_qk_norm_groups": 4},
    "hyper_connections": {"num_residual_streams": 2}, "laser": {"attn_laser": True},
    "softclamp": {"attn_softclamp_logits": True}, "weight_tie": {"weight_tie_layers": True},
    "layer_dropout": {"layer_dropout": 0.0, "attn_dropout": 0.1, "ff_dropout": 0.1},
    "polar": {"polar_pos_emb": True}, "selective": {"attn_selective": True},
    "data_dependent_alibi": {"attn_data_dependent_alibi": True},
}  # fmt: skip


def x_transformers_cases() -> Iterator[Case]:
    """Yield a decoder with each option, encoders, vision models, continuous inputs, and wrappers that return a loss."""
    import x_transformers as x

    small: dict[str, Any] = {"dim": 64, "depth": 2, "heads": 4, "attn_dim_head": 16}
    sides = {"num_tokens": 100, "depth": 2, "heads": 4, "max_seq_len": 32}
    both = {f"{side}_{name}": value for side in ("enc", "dec") for name, value in sides.items()}
    texts, rows = {"num_tokens": 100, "max_seq_len": 32}, torch.rand(2, 32, 8)
    pictures, images = torch.rand(2, 3, 64, 64), {"image_size": 64, "patch_size": 16, "num_classes": 10}

    def layers(kind: str = "Decoder", **options: Any) -> nn.Module:
        model: nn.Module = getattr(x, kind)(**small, **options)
        return model

    def texted(kind: str = "Decoder", **options: Any) -> nn.Module:
        model: nn.Module = x.TransformerWrapper(**texts, attn_layers=layers(kind, **options))
        return model

    forms: dict[str, tuple[Callable[[], nn.Module], Any]] = {
        **{f"decoder_{name}": (partial(texted, **options), (IDS,)) for name, options in OPTIONS.items()},
        "encoder": (lambda: texted("Encoder"), (IDS,)),
        "encoder_mask": (lambda: texted("Encoder"), {"x": IDS, "mask": IDS > 3}),
        "autoregressive": (lambda: x.AutoregressiveWrapper(texted()), (IDS,)),
        "non_autoregressive": (lambda: x.NonAutoregressiveWrapper(texted("Encoder"), mask_id=0), (IDS,)),
        "continuous": (lambda: x.ContinuousTransformerWrapper(dim_in=8, dim_out=8, max_seq_len=32,
            attn_layers=layers("Encoder")), (rows,)),
        "vision": (lambda: x.ViTransformerWrapper(**images, attn_layers=layers("Encoder")), (pictures,)),
        "seq2seq": (lambda: x.XTransformer(dim=64, **both), (IDS, IDS)),
        "xl_memory": (lambda: x.TransformerWrapper(**texts, max_mem_len=32, attn_layers=layers()), (IDS,)),
    }  # fmt: skip
    for name, (make, data) in forms.items():
        yield Case("x_transformers", name, make, data=data)


ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"]}),
    "LoRA_all": ("LoraConfig", {"r": 4, "target_modules": "all-linear", "lora_dropout": 0.1, "bias": "all"}),
    "DoRA": ("LoraConfig", {"r": 4, "target_modules": ["q_proj", "v_proj"], "use_dora": True}),
    "rsLoRA": ("LoraConfig", {"r": 4, "target_modules": ["q_proj"], "use_rslora": True}),
    "LoRA_embedding": ("LoraConfig", {"r": 4, "target_modules": ["embed_tokens", "q_proj"]}),
    "LoRA_saved": ("LoraConfig", {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["norm"]}),
    "AdaLoRA": ("AdaLoraConfig", {"init_r": 6, "target_r": 4, "total_step": 10, "target_modules": ["q_proj"]}),
    "IA3": ("IA3Config", {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
    "LoHa": ("LoHaConfig", {"r": 4, "target_modules": ["q_proj"]}),
    "LoKr": ("LoKrConfig", {"r": 4, "target_modules": ["q_proj"]}),
    "OFT": ("OFTConfig", {"r": 0, "oft_block_size": 8, "target_modules": ["q_proj"]}),
    "BOFT": ("BOFTConfig", {"boft_block_size": 8, "target_modules": ["q_proj"]}),
    "VeRA": ("VeraConfig", {"r": 4, "target_modules": ["q_proj"]}),
    "FourierFT": ("FourierFTConfig", {"n_frequency": 20, "target_modules": ["q_proj"]}),
    "HRA": ("HRAConfig", {"r": 4, "target_modules": ["q_proj"]}),
    "VBLoRA": ("VBLoRAConfig", {"r": 4, "num_vectors": 16, "vector_length": 16, "target_modules": ["q_proj"]}),
    "LNTuning": ("LNTuningConfig", {"target_modules": ["input_layernorm"]}),
    "Bone": ("BoneConfig", {"r": 8, "target_modules": ["q_proj"]}),
    "MiSS": ("MissConfig", {"r": 8, "target_modules": ["q_proj"]}),
    "RandLora": ("RandLoraConfig", {"r": 4, "target_modules": ["q_proj"]}),
    "SHiRA": ("ShiraConfig", {"r": 4, "target_modules": ["q_proj"]}),
    "C3A": ("C3AConfig", {"block_size": 16, "target_modules": ["q_proj"]}),
    "WaveFT": ("WaveFTConfig", {"n_frequency": 20, "target_modules": ["q_proj"]}),
    "RoAd": ("RoadConfig", {"group_size": 16, "target_modules": ["q_proj"]}),
    "DeLoRA": ("DeloraConfig", {"r": 4, "target_modules": ["q_proj"]}),
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
