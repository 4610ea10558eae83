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
    "UNet3DConditionModel": ({**CROSS, "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
        "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")}, (VIDEO, STEP, TEXT)),
    "DiTTransformer2DModel": ({**HEADS, "in_channels": 4, "num_layers": 2, "sample_size": 16, "norm_num_groups": 4},
        {"hidden_states": LATENT, "timestep": STEP, "class_labels": torch.tensor([1, 2])}),
    "SD3Transformer2DModel": ({**HEADS, "sample_size": 16, "in_channels": 4, "out_channels": 4, "num_layers": 2,
        "joint_attention_dim": 32, "caption_projection_dim": 32, "pooled_projection_dim": 32, "pos_embed_max_size": 16},
        (LATENT, TEXT, torch.rand(2, 32), STEP)),
    "FluxTransformer2DModel": ({**HEADS, "in_channels": 4, "num_layers": 1, "num_single_layers": 1,
        "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)},
        {"hidden_states": torch.rand(2, 16, 4), "encoder_hidden_states": TEXT, "timestep": torch.rand(2),
        "pooled_projections": torch.rand(2, 32), "img_ids": torch.rand(16, 3), "txt_ids": torch.rand(8, 3)}),
    "WanTransformer3DModel": ({**HEADS, "in_channels": 4, "out_channels": 4, "text_dim": 32, "freq_dim": 16,
        "ffn_dim": 64, "num_layers": 2}, (VIDEO, STEP, TEXT)),
    "AutoencoderKL": (CODER, (IMAGE,)),
    "AutoencoderTiny": ({"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16),
        "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}, (IMAGE,)),
    "VQModel": ({**CODER, "num_vq_embeddings": 32, "latent_channels": 3}, (IMAGE,)),
    "AutoencoderKLWan": ({"base_dim": 8, "z_dim": 4, "dim_mult": [1, 1], "num_res_blocks": 1,
        "temperal_downsample": [True], "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4},
        (torch.rand(1, 3, 5, 16, 16),)),
}  # fmt: skip
"""The arguments of each model, and its input."""


def diffusers_cases() -> Iterator[Case]:
    return listed("diffusers", "diffusers", MODELS)
