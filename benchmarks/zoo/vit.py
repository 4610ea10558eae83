"""Models of vit_pytorch: each file that builds with the usual arguments of a vision transformer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.cases import Case, case_of

IMAGE = (3, 64, 64)
SIZES = {"image_size": 64, "patch_size": 16, "num_classes": 10}
USUAL = {**SIZES, "dim": 64, "depth": 2, "heads": 4, "mlp_dim": 128}
VIDEO = {"image_size": 32, "image_patch_size": 16, "frames": 4, "frame_patch_size": 2, "num_classes": 10}
DEEP = {"dim": 64, "heads": 4, "mlp_dim": 128}
MODELS: dict[str, tuple[dict[str, Any], Any]] = {
    "vit.ViT": (USUAL, IMAGE), "simple_vit.SimpleViT": (USUAL, IMAGE),
    "simple_vit_with_patch_dropout.SimpleViT": (USUAL, IMAGE),
    "simple_vit_with_register_tokens.SimpleViT": (USUAL, IMAGE),
    "simple_vit_with_qk_norm.SimpleViT": (USUAL, IMAGE),
    "simple_vit_with_fft.SimpleViT": ({**USUAL, "freq_patch_size": 8}, IMAGE),
    "simple_vit_with_value_residual.SimpleViT": (USUAL, IMAGE),
    "simple_vit_with_hyper_connections.SimpleViT": ({**USUAL, "num_residual_streams": 2}, IMAGE),
    "simple_flash_attn_vit.SimpleViT": ({**USUAL, "use_flash": True}, IMAGE),
    "simple_vit_1d.SimpleViT": ({"seq_len": 64, "patch_size": 8, "num_classes": 10, **DEEP, "depth": 2}, (3, 64)),
    "simple_vit_3d.SimpleViT": ({**VIDEO, **DEEP, "depth": 2}, (3, 4, 32, 32)),
    "vit_1d.ViT": ({"seq_len": 64, "patch_size": 8, "num_classes": 10, **DEEP, "depth": 2}, (3, 64)),
    "vit_3d.ViT": ({**VIDEO, **DEEP, "depth": 2}, (3, 4, 32, 32)),
    "vit_with_patch_dropout.ViT": (USUAL, IMAGE),
    "vit_with_patch_merger.ViT": ({**USUAL, "patch_merge_layer": 1, "patch_merge_num_tokens": 4}, IMAGE),
    "vit_for_small_dataset.ViT": (USUAL, IMAGE), "vit_with_decorr.ViT": (USUAL, IMAGE),
    "normalized_vit.nViT": ({**SIZES, "dim": 64, "depth": 2, "heads": 4, "dim_head": 16, "mlp_dim": 128}, IMAGE),
    "deepvit.DeepViT": (USUAL, IMAGE), "cait.CaiT": ({**USUAL, "cls_depth": 1}, IMAGE),
    "parallel_vit.ViT": (USUAL, IMAGE), "rvt.RvT": (USUAL, IMAGE), "learnable_memory_vit.ViT": (USUAL, IMAGE),
    "t2t.T2TViT": ({"image_size": 64, "num_classes": 10, "dim": 64, "depth": 2, "heads": 4, "mlp_dim": 128}, IMAGE),
    "look_vit.LookViT": ({"dim": 64, "image_size": 64, "num_classes": 10, "depth": 2, "heads": 4, "patch_size": 16,
        "highres_patch_size": 8, "cross_attn_heads": 4}, IMAGE),
    "jumbo_vit.JumboViT": ({**USUAL, "num_jumbo_cls": 1, "jumbo_cls_k": 2, "jumbo_ff_mult": 1}, IMAGE),
    "levit.LeViT": ({"image_size": 64, "num_classes": 10, "stages": 2, "dim": (32, 64), "depth": 1, "heads": 4,
        "mlp_mult": 2}, IMAGE),
    "cvt.CvT": ({"num_classes": 10, "s1_emb_dim": 16, "s1_depth": 1, "s2_emb_dim": 32, "s2_heads": 2, "s2_depth": 1,
        "s3_emb_dim": 32, "s3_heads": 2, "s3_depth": 1}, IMAGE),
    "cct.CCT": ({"img_size": (64, 64), "embedding_dim": 64, "n_conv_layers": 2, "num_layers": 2, "num_heads": 4,
        "mlp_ratio": 2.0, "num_classes": 10, "positional_embedding": "learnable"}, IMAGE),
    "cct_3d.CCT": ({"img_size": 32, "num_frames": 4, "embedding_dim": 64, "n_conv_layers": 1, "num_layers": 2,
        "num_heads": 4, "mlp_ratio": 2.0, "num_classes": 10, "positional_embedding": "learnable",
        "frame_kernel_size": 3}, (3, 4, 32, 32)),
    "cross_vit.CrossViT": ({"image_size": 64, "num_classes": 10, "depth": 1, "sm_dim": 32, "sm_patch_size": 16,
        "sm_enc_depth": 1, "sm_enc_heads": 4, "sm_enc_mlp_dim": 64, "lg_dim": 64, "lg_patch_size": 32,
        "lg_enc_depth": 1, "lg_enc_heads": 4, "lg_enc_mlp_dim": 64, "cross_attn_depth": 1, "cross_attn_heads": 4},
        IMAGE),
    "pit.PiT": ({"image_size": 64, "patch_size": 8, "dim": 32, "num_classes": 10, "depth": (1, 1), "heads": 2,
        "mlp_dim": 64}, IMAGE),
    "crossformer.CrossFormer": ({"num_classes": 10, "dim": (32, 32, 64, 64), "depth": (1, 1, 1, 1)}, (3, 224, 224)),
    "regionvit.RegionViT": ({"dim": (16, 32, 32, 64), "depth": (1, 1, 1, 1), "window_size": 7, "num_classes": 10},
        (3, 224, 224)),
    "scalable_vit.ScalableViT": ({"num_classes": 10, "dim": 16, "heads": (2, 2, 2, 2), "depth": (1, 1, 1, 1),
        "ssa_dim_key": (8, 8, 8, 8), "reduction_factor": (8, 4, 2, 1), "window_size": (32, 16, None, None)},
        (3, 256, 256)),
    "sep_vit.SepViT": ({"num_classes": 10, "dim": 16, "dim_head": 8, "heads": (1, 2, 4, 8), "depth": (1, 1, 1, 1),
        "window_size": 7}, (3, 224, 224)),
    "max_vit.MaxViT": ({"num_classes": 10, "dim_conv_stem": 16, "dim": 16, "dim_head": 8, "depth": (1, 1, 1, 1),
        "window_size": 7}, (3, 224, 224)),
    "max_vit_with_registers.MaxViT": ({"num_classes": 10, "dim_conv_stem": 16, "dim": 16, "dim_head": 8,
        "depth": (1, 1), "window_size": 7}, (3, 224, 224)),
    "nest.NesT": ({"image_size": 64, "patch_size": 4, "dim": 32, "heads": 2, "num_hierarchies": 3,
        "block_repeats": (1, 1, 1), "num_classes": 10}, IMAGE),
    "mobile_vit.MobileViT": ({"image_size": (64, 64), "dims": [32, 48, 64], "num_classes": 10,
        "channels": [8, 8, 16, 16, 24, 24, 32, 32, 48, 48, 96]}, IMAGE),
    "xcit.XCiT": ({**USUAL, "cls_depth": 1, "local_patch_kernel_size": 3}, IMAGE),
    "ats_vit.ViT": ({**USUAL, "max_tokens_per_depth": (8, 4)}, IMAGE),
    "local_vit.LocalViT": (USUAL, IMAGE),
    "twins_svt.TwinsSVT": ({"num_classes": 10, "s1_emb_dim": 16, "s2_emb_dim": 32, "s3_emb_dim": 32, "s4_emb_dim": 64,
        "s3_depth": 1}, (3, 224, 224)),
    "vivit.ViViT": ({**VIDEO, "dim": 64, "spatial_depth": 1, "temporal_depth": 1, "heads": 4, "mlp_dim": 128},
        (3, 4, 32, 32)),
    "vivit.ViViT factorized": ({**VIDEO, "dim": 64, "spatial_depth": 1, "temporal_depth": 1, "heads": 4, "mlp_dim": 128,
        "variant": "factorized_self_attention"}, (3, 4, 32, 32)),
    "vaat.ViT": (USUAL, IMAGE),
    "na_vit.NaViT": (USUAL, ([[torch.rand(3, 64, 64), torch.rand(3, 32, 48)], [torch.rand(3, 48, 64)]],)),
    "na_vit_nested_tensor.NaViT": ({**USUAL, "token_dropout_prob": 0.1},
        ([torch.rand(3, 64, 64), torch.rand(3, 32, 48), torch.rand(3, 48, 64)],)),
    "mp3.ViT": ({"num_classes": 10, "image_size": 64, "patch_size": 16, "dim": 64, "depth": 2, "heads": 4,
        "mlp_dim": 128}, IMAGE),
    "efficient.ViT": (SIZES | {"dim": 64}, IMAGE),
}  # fmt: skip
"""The arguments of each model, and its input or the size of an image or a video."""


def vit_pytorch_cases() -> Iterator[Case]:
    """Yield the models above, and two self-supervised ones around a plain one."""
    for name, (arguments, given) in MODELS.items():
        yield case_of("vit_pytorch", name, partial(_build, name, arguments), given)
    for name in ("mae.MAE", "simmim.SimMIM"):
        yield Case("vit_pytorch", name, partial(_masked, name), size=IMAGE)


def _build(name: str, arguments: dict[str, Any]) -> nn.Module:
    module, _, kind = name.partition(" ")[0].rpartition(".")
    arguments = dict(arguments)
    if name == "efficient.ViT":
        arguments["transformer"] = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
    model: nn.Module = getattr(import_module(f"vit_pytorch.{module}"), kind)(**arguments)
    return model


def _masked(name: str) -> nn.Module:
    from vit_pytorch import ViT

    module, _, kind = name.rpartition(".")
    more = {"decoder_dim": 32, "decoder_depth": 1, "masking_ratio": 0.75} if kind == "MAE" else {"masking_ratio": 0.5}
    model: nn.Module = getattr(import_module(f"vit_pytorch.{module}"), kind)(encoder=ViT(**USUAL), **more)
    return model
