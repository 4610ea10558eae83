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
    "DynUNet": ({**PLAIN, **LAYERS, "filters": (8, 16, 32)}, VOLUME),
    "SegResNet": ({**PLAIN, "init_filters": 8}, VOLUME),
    "UNETR": ({"in_channels": 1, "out_channels": 2, "img_size": VOLUME[1:], "feature_size": 8, "hidden_size": 48,
        "mlp_dim": 96, "num_heads": 4}, VOLUME),
    "ViT": ({"in_channels": 1, "img_size": VOLUME[1:], "patch_size": 8, "hidden_size": 48, "mlp_dim": 96,
        "num_layers": 2, "num_heads": 4}, VOLUME),
    "EfficientNetBN": ({"model_name": "efficientnet-b0", "spatial_dims": 2, "pretrained": False}, (3, 64, 64)),
    "resnet10": ({"spatial_dims": 3, "n_input_channels": 1, "num_classes": 4}, VOLUME),
    "AutoEncoder": ({**PLAIN, "channels": (8, 16, 32), "strides": (2, 2, 2)}, VOLUME),
    "VNet": (PLAIN, VOLUME), "MedNeXtS": (PLAIN, VOLUME), "DenseNet121": (PLAIN, VOLUME),
    "Discriminator": ({"in_shape": VOLUME, **WIDE}, VOLUME),
    "PatchDiscriminator": ({"spatial_dims": 3, "channels": 8, "in_channels": 1, "num_layers_d": 2}, VOLUME),
    "AutoencoderKL": ({**PLAIN, "channels": (8, 16), "attention_levels": (False, True), "num_res_blocks": 1,
        "norm_num_groups": 4}, (1, 16, 16, 16)),
    "DiffusionModelUNet": ({"spatial_dims": 2, "in_channels": 1, "out_channels": 1, "channels": (8, 16),
        "attention_levels": (False, True), "num_res_blocks": 1, "num_head_channels": 8, "norm_num_groups": 4},
        (torch.rand(2, 1, 16, 16), torch.tensor([1, 5]))),
}  # fmt: skip
"""The arguments of each network, and its input or the size of one, without the batch."""


def monai_cases() -> Iterator[Case]:
    return listed("monai", "monai.networks.nets", NETWORKS)
