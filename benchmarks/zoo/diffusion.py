"""Small models of diffusers: denoising networks and autoencoders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.zoo.cases import Case, listed

STEP = torch.tensor([3, 7])
IMAGE = torch.rand(2, 3, 32, 32)
LATENT = torch.rand(2, 4, 16, 16)
TEXT = torch.rand(2, 8, 32)
VIDEO = torch.rand(2, 4, 4, 16, 16)
TWO: dict[str, Any] = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
CODER: dict[str, Any] = {
    "block_out_channels": (16, 32), "layers_per_block": 1, "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2, "norm_num_groups": 4, "latent_channels": 4,
}  # fmt: skip
CROSS: dict[str, Any] = {
    **TWO,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "cross_attention_dim": 32, "attention_head_dim": 8,
}  # fmt: skip
HEADS: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16}

MODELS: dict[str, tuple[dict[str, Any], Any]] = {
    "UNet2DModel": ({**TWO, "sample_size": 32, "attention_head_dim": 8,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        (IMAGE, STEP)),
    "UNet2DConditionModel": ({**CROSS, "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}, (LATENT, STEP, TEXT)),
    "UNet1DModel": ({"sample_size": 64, "in_channels": 2, "out_channels": 2, "extra_in_channels": 32,
        "block_out_channels": (16, 32, 32)}, (torch.rand(2, 2, 64), STEP)),
    "UNet3DConditionModel": ({**CROSS, "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
        "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")}, (VIDEO, STEP, TEXT)),
    "UNetMotionModel": ({**TWO, "cross_attention_dim": 32,
        "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"), "num_attention_heads": 2,
        "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"), "motion_num_attention_heads": 2},
        (VIDEO, STEP, TEXT.repeat_interleave(4, 0))),
    "ControlNetModel": ({**CROSS, "conditioning_embedding_out_channels": (8, 16)},
        (LATENT, STEP, TEXT, torch.rand(2, 3, 32, 32))),
    "UVit2DModel": ({"hidden_size": 32, "cond_embed_dim": 32, "encoder_hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 64, "block_out_channels": 32, "in_channels": 32,
        "block_num_heads": 2, "micro_cond_encode_dim": 8, "micro_cond_embed_dim": 48, "vocab_size": 52,
        "codebook_size": 50, "num_res_blocks": 1}, (torch.randint(0, 50, (2, 8, 8)), TEXT, torch.rand(2, 32),
        torch.rand(2, 6))),
    "PriorTransformer": ({**HEADS, "num_layers": 2, "embedding_dim": 32, "num_embeddings": 8,
        "additional_embeddings": 4}, (torch.rand(2, 32), STEP, torch.rand(2, 32), TEXT)),
    "Transformer2DModel": ({**HEADS, "in_channels": 32, "norm_num_groups": 4, "cross_attention_dim": 32},
        (torch.rand(2, 32, 8, 8), TEXT)),
    "TransformerTemporalModel": ({**HEADS, "in_channels": 32, "norm_num_groups": 4}, (torch.rand(4, 32, 8, 8),)),
    "DiTTransformer2DModel": ({**HEADS, "in_channels": 4, "num_layers": 2, "sample_size": 16, "norm_num_groups": 4},
        {"hidden_states": LATENT, "timestep": STEP, "class_labels": torch.tensor([1, 2])}),
    "PixArtTransformer2DModel": ({**HEADS, "in_channels": 4, "num_layers": 2, "sample_size": 16,
        "cross_attention_dim": 32, "caption_channels": 32, "norm_num_groups": 4, "use_additional_conditions": False},
        {"hidden_states": LATENT, "encoder_hidden_states": TEXT, "timestep": STEP,
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}),
    "SanaTransformer2DModel": ({**HEADS, "in_channels": 4, "out_channels": 4, "num_layers": 2, "sample_size": 16,
        "caption_channels": 32, "num_cross_attention_heads": 2, "cross_attention_head_dim": 16,
        "cross_attention_dim": 32}, (LATENT, TEXT, STEP)),
    "SD3Transformer2DModel": ({**HEADS, "sample_size": 16, "in_channels": 4, "out_channels": 4, "num_layers": 2,
        "joint_attention_dim": 32, "caption_projection_dim": 32, "pooled_projection_dim": 32, "pos_embed_max_size": 16},
        (LATENT, TEXT, torch.rand(2, 32), STEP)),
    "FluxTransformer2DModel": ({**HEADS, "in_channels": 4, "num_layers": 1, "num_single_layers": 1,
        "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)},
        {"hidden_states": torch.rand(2, 16, 4), "encoder_hidden_states": TEXT, "timestep": torch.rand(2),
        "pooled_projections": torch.rand(2, 32), "img_ids": torch.rand(16, 3), "txt_ids": torch.rand(8, 3)}),
    "AuraFlowTransformer2DModel": ({**HEADS, "sample_size": 16, "in_channels": 4, "out_channels": 4,
        "num_mmdit_layers": 1, "num_single_dit_layers": 1, "joint_attention_dim": 32, "caption_projection_dim": 32,
        "pos_embed_max_size": 64}, (LATENT, TEXT, torch.rand(2))),
    "CogVideoXTransformer3DModel": ({**HEADS, "in_channels": 4, "out_channels": 4, "num_layers": 2, "sample_width": 16,
        "sample_height": 16, "sample_frames": 5, "text_embed_dim": 32, "max_text_seq_length": 8, "time_embed_dim": 8},
        (torch.rand(2, 2, 4, 16, 16), TEXT, STEP)),
    "LatteTransformer3DModel": ({**HEADS, "in_channels": 4, "out_channels": 8, "num_layers": 1, "sample_size": 16,
        "patch_size": 2, "cross_attention_dim": 32, "caption_channels": 32, "video_length": 4,
        "norm_type": "ada_norm_single"}, (VIDEO, STEP, TEXT)),
    "WanTransformer3DModel": ({**HEADS, "in_channels": 4, "out_channels": 4, "text_dim": 32, "freq_dim": 16,
        "ffn_dim": 64, "num_layers": 2}, (VIDEO, STEP, TEXT)),
    "LTXVideoTransformer3DModel": ({**HEADS, "in_channels": 8, "out_channels": 8, "cross_attention_dim": 32,
        "num_layers": 1, "caption_channels": 32}, {"hidden_states": torch.rand(2, 32, 8), "encoder_hidden_states": TEXT,
        "timestep": STEP, "encoder_attention_mask": torch.ones(2, 8), "num_frames": 2, "height": 4, "width": 4}),
    "MochiTransformer3DModel": ({**HEADS, "in_channels": 4, "num_layers": 2, "pooled_projection_dim": 16,
        "text_embed_dim": 32, "time_embed_dim": 8}, (VIDEO, TEXT, STEP, torch.ones(2, 8, dtype=torch.bool))),
    "StableCascadeUNet": ({"in_channels": 4, "out_channels": 4, "block_out_channels": (16, 32),
        "num_attention_heads": (0, 2), "conditioning_dim": 32, "down_num_layers_per_block": (1, 1),
        "up_num_layers_per_block": (1, 1), "down_blocks_repeat_mappers": (1, 1), "up_blocks_repeat_mappers": (1, 1),
        "dropout": (0.1, 0.1), "block_types_per_layer": (("SDCascadeResBlock", "SDCascadeTimestepBlock"),
        ("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock")), "self_attn": (True, True),
        "switch_level": (False,), "timestep_ratio_embedding_dim": 8, "patch_size": 1,
        "clip_text_pooled_in_channels": 32, "clip_seq": 1, "clip_text_in_channels": None}, {"sample": LATENT,
        "timestep_ratio": torch.rand(2), "clip_text_pooled": torch.rand(2, 1, 32)}),
    "AutoencoderKL": (CODER, (IMAGE,)),
    "AutoencoderKLTemporalDecoder": ({"block_out_channels": (32, 64), "layers_per_block": 1,
        "down_block_types": ("DownEncoderBlock2D",) * 2}, {"sample": IMAGE, "num_frames": 2}),
    "AsymmetricAutoencoderKL": ({"down_block_types": ("DownEncoderBlock2D",) * 2, "down_block_out_channels": (16, 32),
        "up_block_types": ("UpDecoderBlock2D",) * 2, "up_block_out_channels": (16, 32), "norm_num_groups": 4},
        (IMAGE,)),
    "AutoencoderTiny": ({"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16),
        "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}, (IMAGE,)),
    "AutoencoderDC": ({"in_channels": 3, "latent_channels": 4, "attention_head_dim": 8,
        "encoder_block_types": ("ResBlock", "EfficientViTBlock"), "encoder_block_out_channels": (16, 16),
        "decoder_block_types": ("ResBlock", "EfficientViTBlock"), "decoder_block_out_channels": (16, 16),
        "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1), "encoder_qkv_multiscales": ((), (5,)),
        "decoder_qkv_multiscales": ((), (5,)), "upsample_block_type": "interpolate",
        "downsample_block_type": "stride_conv", "decoder_norm_types": "rms_norm", "decoder_act_fns": "silu"}, (IMAGE,)),
    "VQModel": ({**CODER, "num_vq_embeddings": 32, "latent_channels": 3}, (IMAGE,)),
    "AutoencoderKLWan": ({"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1], "num_res_blocks": 1,
        "temperal_downsample": [True], "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4},
        (torch.rand(1, 3, 5, 16, 16),)),
    "AutoencoderKLCogVideoX": ({"block_out_channels": (16, 32), "layers_per_block": 1, "latent_channels": 4,
        "norm_num_groups": 4, "down_block_types": ("CogVideoXDownBlock3D",) * 2,
        "up_block_types": ("CogVideoXUpBlock3D",) * 2, "temporal_compression_ratio": 2},
        (torch.rand(1, 3, 5, 16, 16),)),
    "AutoencoderOobleck": ({"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "channel_multiples": [1, 2],
        "decoder_channels": 8, "decoder_input_channels": 4, "audio_channels": 2}, (torch.rand(2, 2, 256),)),
    "AutoencoderKLLTXVideo": ({"in_channels": 3, "out_channels": 3, "latent_channels": 8,
        "block_out_channels": (8, 8, 8, 8), "decoder_block_out_channels": (8, 8, 8, 8),
        "layers_per_block": (1, 1, 1, 1, 1), "decoder_layers_per_block": (1, 1, 1, 1, 1),
        "spatio_temporal_scaling": (True, True, False, False),
        "decoder_spatio_temporal_scaling": (True, True, False, False), "decoder_inject_noise": (False,) * 5,
        "patch_size": 1, "patch_size_t": 1, "encoder_causal": True, "decoder_causal": False},
        (torch.rand(1, 3, 9, 16, 16),)),
}  # fmt: skip
"""The arguments of each model, and its input."""


def diffusers_cases() -> Iterator[Case]:
    return listed("diffusers", "diffusers", MODELS)
