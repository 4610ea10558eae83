"""Networks of monai, most of them on small volumes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.zoo.cases import Case, listed

VOLUME = (1, 32, 32, 32)
WIDE = {"channels": (8, 16, 32), "strides": (2, 2)}
PLAIN = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
LAYERS = {"kernel_size": (3, 3, 3), "strides": (1, 2, 2), "upsample_kernel_size": (2, 2)}
NETWORKS: dict[str, tuple[dict[str, Any], Any]] = {
    "UNet": ({**PLAIN, **WIDE, "num_res_units": 2}, VOLUME),
    "BasicUNet": ({**PLAIN, "features": (8, 8, 16, 16, 32, 8)}, VOLUME),
    "BasicUNetPlusPlus": ({**PLAIN, "features": (8, 8, 16, 16, 32, 8)}, VOLUME),
    "AttentionUnet": ({**PLAIN, **WIDE}, VOLUME),
    "DynUNet": ({**PLAIN, **LAYERS, "filters": (8, 16, 32)}, VOLUME),
    "SegResNet": ({**PLAIN, "init_filters": 8}, VOLUME),
    "SegResNetVAE": ({"input_image_size": VOLUME[1:], "in_channels": 1, "out_channels": 2, "init_filters": 8}, VOLUME),
    "SegResNetDS": ({**PLAIN, "init_filters": 8, "dsdepth": 2}, VOLUME),
    "VNet": ({**PLAIN}, VOLUME), "HighResNet": ({**PLAIN}, (1, 16, 16, 16)),
    "UNETR": ({"in_channels": 1, "out_channels": 2, "img_size": VOLUME[1:], "feature_size": 8, "hidden_size": 48,
        "mlp_dim": 96, "num_heads": 4}, VOLUME),
    "SwinUNETR": ({"in_channels": 1, "out_channels": 2, "feature_size": 12}, (1, 64, 64, 64)),
    "ViT": ({"in_channels": 1, "img_size": VOLUME[1:], "patch_size": 8, "hidden_size": 48, "mlp_dim": 96,
        "num_layers": 2, "num_heads": 4}, VOLUME),
    "ViTAutoEnc": ({"in_channels": 1, "img_size": VOLUME[1:], "patch_size": 16, "hidden_size": 48, "mlp_dim": 96,
        "num_layers": 2, "num_heads": 4}, VOLUME),
    "DenseNet121": ({**PLAIN}, VOLUME),
    "EfficientNetBN": ({"model_name": "efficientnet-b0", "spatial_dims": 2, "pretrained": False}, (3, 64, 64)),
    "SENet154": ({"spatial_dims": 2, "in_channels": 3, "num_classes": 4}, (3, 64, 64)),
    "SEResNet50": ({"spatial_dims": 3, "in_channels": 1, "num_classes": 4}, VOLUME),
    "resnet10": ({"spatial_dims": 3, "n_input_channels": 1, "num_classes": 4}, VOLUME),
    "resnet50": ({"spatial_dims": 3, "n_input_channels": 1, "num_classes": 4}, VOLUME),
    "Quicknat": ({"num_filters": 16}, (1, 64, 64)),
    "FlexibleUNet": ({"in_channels": 3, "out_channels": 2, "backbone": "efficientnet-b0"}, (3, 64, 64)),
    "MedNeXtS": (PLAIN, VOLUME),
    "AHNet": ({"spatial_dims": 3, "upsample_mode": "trilinear"}, (1, 128, 128, 32)),
    "AutoEncoder": ({**PLAIN, "channels": (8, 16, 32), "strides": (2, 2, 2)}, VOLUME),
    "VarAutoEncoder": ({"spatial_dims": 3, "in_shape": VOLUME, "out_channels": 2, "latent_size": 8,
        "channels": (8, 16, 32), "strides": (2, 2, 2)}, VOLUME),
    "Regressor": ({"in_shape": VOLUME, "out_shape": (4,), **WIDE}, VOLUME),
    "Classifier": ({"in_shape": VOLUME, "classes": 4, **WIDE}, VOLUME),
    "Discriminator": ({"in_shape": VOLUME, **WIDE}, VOLUME), "Critic": ({"in_shape": VOLUME, **WIDE}, VOLUME),
    "Generator": ({"latent_shape": (32,), "start_shape": (8, 4, 4, 4), **WIDE}, (32,)),
    "FullyConnectedNet": ({"in_channels": 16, "out_channels": 4, "hidden_channels": (32, 32)}, (16,)),
    "VarFullyConnectedNet": ({"in_channels": 16, "out_channels": 4, "latent_size": 4, "encode_channels": (32,),
        "decode_channels": (32,)}, (16,)),
    "GlobalNet": ({"image_size": VOLUME[1:], "spatial_dims": 3, "in_channels": 1, "num_channel_initial": 8, "depth": 2},
        VOLUME),
    "LocalNet": ({"spatial_dims": 3, "in_channels": 2, "out_channels": 3, "num_channel_initial": 8,
        "extract_levels": (0, 2)}, (2, 32, 32, 32)),
    "RegUNet": ({"spatial_dims": 3, "in_channels": 2, "num_channel_initial": 8, "depth": 2}, (2, 32, 32, 32)),
    "VoxelMorphUNet": ({"spatial_dims": 3, "in_channels": 2, "unet_out_channels": 8, "channels": (8, 8, 8, 8, 8, 8),
        "final_conv_channels": (8, 8)}, (2, 32, 32, 32)),
    "VoxelMorph": ({}, [VOLUME, VOLUME]), "HoVerNet": ({"mode": "fast"}, (torch.rand(1, 3, 256, 256),)),
    "MILModel": ({"num_classes": 2, "pretrained": False, "mil_mode": "att_trans"}, (3, 3, 64, 64)),
    "TorchVisionFCModel": ({"model_name": "resnet18", "num_classes": 4}, (3, 224, 224)),
    "PatchDiscriminator": ({"spatial_dims": 3, "channels": 8, "in_channels": 1, "num_layers_d": 2}, VOLUME),
    "MultiScalePatchDiscriminator": ({"num_d": 2, "num_layers_d": 2, "spatial_dims": 2, "channels": 8,
        "in_channels": 1}, (1, 64, 64)),
    "AutoencoderKL": ({**PLAIN, "channels": (8, 16), "attention_levels": (False, True), "num_res_blocks": 1,
        "norm_num_groups": 4}, (1, 16, 16, 16)),
    "VQVAE": ({**PLAIN, "channels": (8, 8, 16), "num_res_channels": (8, 8, 16), "num_embeddings": 16,
        "embedding_dim": 8}, VOLUME),
    "DecoderOnlyTransformer": ({"num_tokens": 50, "max_seq_len": 16, "attn_layers_dim": 32, "attn_layers_depth": 2,
        "attn_layers_heads": 4}, (torch.arange(32).reshape(2, 16) % 50,)),
    "DiffusionModelUNet": ({"spatial_dims": 2, "in_channels": 1, "out_channels": 1, "channels": (8, 16),
        "attention_levels": (False, True), "num_res_blocks": 1, "num_head_channels": 8, "norm_num_groups": 4},
        (torch.rand(2, 1, 16, 16), torch.tensor([1, 5]))),
    "DAF3D": ({"in_channels": 1, "out_channels": 2}, VOLUME),
}  # fmt: skip
"""The arguments of each network, and its input or the size of one, without the batch."""


def monai_cases() -> Iterator[Case]:
    return listed("monai", "monai.networks.nets", NETWORKS)
