"""Models of other libraries to record for a GPU, and how each is built and called.

Nothing is downloaded. Transformers keep their usual width but have only a few layers, so an estimate takes a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.nocuda.runtime import is_active
from benchmarks.zoo.torchvision_on_cpu import import_torchvision

Shape = tuple[tuple[int, ...], int]
"""An input without its batch axis, and the number of token ids; 0 for floats."""


@dataclass(frozen=True)
class Family:
    """A model of a library, the keyword arguments of its forward, and two batch sizes.

    A batch of graphs is a single graph with that many times the nodes, ``x``, and edges, ``edge_index``.
    """

    library: str
    name: str
    build: Callable[[], nn.Module]
    inputs: dict[str, Shape]
    batches: tuple[int, int]
    convolves: bool = False

    @property
    def is_installed(self) -> bool:
        return find_spec(self.library) is not None

    def make(self) -> nn.Module:
        """Return the model on ``meta``; one whose constructor needs numbers is built on the CPU first.

        Environment variables that its library sets are restored: monai's import sets ``CUBLAS_WORKSPACE_CONFIG``, which
        would change the cuBLAS workspaces of every later configuration in the process.
        """
        with patch.dict(os.environ):
            try:
                with torch.device("meta"):
                    return self.build()
            except (RuntimeError, NotImplementedError):
                return self.build().to("meta")

    def example(self, batch: int, device: str, dtype: torch.dtype) -> Any:
        """Return the model's input on a device: a tensor, or several by name."""
        tensors: dict[str, Tensor] = {}
        for name, (shape, tokens) in self.inputs.items():
            whole = (batch, *shape)
            if "edge_index" in self.inputs:
                whole = (2, batch * shape[0]) if name == "edge_index" else (batch * shape[0], *shape[1:])
            x = torch.zeros(whole, dtype=torch.long if tokens else dtype, device=device)
            tensors[name] = x.random_(tokens) if tokens else x
        return tensors if len(tensors) > 1 else next(iter(tensors.values()))


IMAGE = (3, 224, 224)

IMAGES: dict[str, dict[str, tuple[int, int]]] = {
    "torchvision": {
        "resnet34": (32, 96), "resnext50_32x4d": (16, 64), "wide_resnet50_2": (8, 24), "regnet_y_400mf": (32, 96),
        "efficientnet_b0": (16, 64), "mobilenet_v3_small": (32, 128), "densenet121": (8, 32), "convnext_tiny": (16, 48),
        "swin_t": (8, 32), "vit_b_32": (32, 64), "shufflenet_v2_x1_0": (64, 128), "squeezenet1_1": (32, 128),
        "alexnet": (64, 256), "mnasnet0_5": (64, 128), "vgg11_bn": (8, 32),
    },
    "timm": {
        "seresnet50": (16, 48), "resnest14d": (16, 64), "regnetx_002": (64, 128), "regnety_004": (32, 96),
        "mixer_s32_224": (64, 128), "deit_tiny_patch16_224": (32, 128), "cait_xxs24_224": (4, 16),
        "mobilevit_xxs": (16, 64), "ghostnet_050": (64, 128), "res2net50_26w_4s": (8, 32), "levit_128s": (64, 128),
        "pvt_v2_b0": (16, 64), "poolformer_s12": (16, 64), "edgenext_xx_small": (16, 64), "convnextv2_atto": (32, 96),
        "tf_efficientnetv2_b0": (16, 64), "repvgg_a0": (32, 96), "vit_tiny_r_s16_p8_224": (32, 96),
    },
}  # fmt: skip
"""Library -> models for images of 224 x 224, with their batch sizes."""


ON_TORCHVISION = ("torchvision.models", "timm", "segmentation_models_pytorch")


def made(module: str, name: str, *args: Any, **arguments: Any) -> nn.Module:
    """Return a model of a library, by the name of its class or its function."""
    if module in ON_TORCHVISION:
        import_torchvision()
    model: nn.Module = getattr(import_module(module), name)(*args, **arguments)
    return model


TEXT: dict[str, tuple[str, dict[str, Any], dict[str, Shape], tuple[int, int]]] = {
    "bert": ("BertForMaskedLM", {"num_hidden_layers": 3}, {"input_ids": ((384,), 30_522), "labels": ((384,), 30_522)},
        (8, 24)),
    "distilbert": ("DistilBertForSequenceClassification", {"n_layers": 3},
        {"input_ids": ((256,), 30_522), "labels": ((), 2)}, (16, 48)),
    "electra": ("ElectraModel", {"num_hidden_layers": 3}, {"input_ids": ((256,), 30_522)}, (16, 64)),
    "albert": ("AlbertModel", {"num_hidden_layers": 3}, {"input_ids": ((256,), 30_000)}, (2, 8)),
    "gpt2": ("GPT2LMHeadModel", {"n_layer": 3}, {"input_ids": ((512,), 50_257), "labels": ((512,), 50_257)}, (4, 8)),
    "gpt_neox": ("GPTNeoXForCausalLM", {"num_hidden_layers": 2, "hidden_size": 1024, "num_attention_heads": 16,
        "intermediate_size": 4096}, {"input_ids": ((512,), 50_432), "labels": ((512,), 50_432)}, (2, 8)),
    "opt": ("OPTForCausalLM", {"num_hidden_layers": 2}, {"input_ids": ((512,), 50_272)}, (4, 8)),
    "llama": ("LlamaForCausalLM", {"num_hidden_layers": 2, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 4, "intermediate_size": 5632},
        {"input_ids": ((1024,), 32_000), "labels": ((1024,), 32_000)}, (2, 4)),
    "mistral": ("MistralModel", {"num_hidden_layers": 2, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 8, "intermediate_size": 7168}, {"input_ids": ((1024,), 32_000)}, (2, 4)),
    "qwen2": ("Qwen2ForCausalLM", {"num_hidden_layers": 3, "hidden_size": 896, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True},
        {"input_ids": ((512,), 151_936), "labels": ((512,), 151_936)}, (2, 4)),
    "gemma": ("GemmaModel", {"num_hidden_layers": 2, "hidden_size": 2048, "num_attention_heads": 8,
        "num_key_value_heads": 1, "intermediate_size": 8192, "head_dim": 256}, {"input_ids": ((512,), 256_000)},
        (2, 4)),
    "bloom": ("BloomModel", {"n_layer": 2, "hidden_size": 1024, "n_head": 16}, {"input_ids": ((256,), 250_880)},
        (4, 8)),
    "t5": ("T5Model", {"num_layers": 2, "num_decoder_layers": 2}, {"input_ids": ((256,), 32_128),
        "decoder_input_ids": ((256,), 32_128)}, (8, 16)),
    "bart": ("BartModel", {"encoder_layers": 2, "decoder_layers": 2}, {"input_ids": ((256,), 50_265)}, (8, 16)),
    "deberta-v2": ("DebertaV2Model", {"num_hidden_layers": 2, "hidden_size": 768, "num_attention_heads": 12,
        "intermediate_size": 3072}, {"input_ids": ((128,), 128_100)}, (4, 16)),
    "vit": ("ViTForImageClassification", {"num_hidden_layers": 3}, {"pixel_values": (IMAGE, 0)}, (16, 64)),
    "whisper": ("WhisperModel", {"encoder_layers": 2, "decoder_layers": 2, "d_model": 384, "encoder_attention_heads": 6,
        "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536},
        {"input_features": ((80, 3000), 0), "decoder_input_ids": ((64,), 51_865)}, (4, 16)),
    "segformer": ("SegformerForSemanticSegmentation", {}, {"pixel_values": ((3, 256, 256), 0)}, (4, 16)),
}  # fmt: skip
"""Model type of transformers -> its class, the changes to its usual configuration, inputs and batch sizes."""


def _transformer(kind: str) -> nn.Module:
    library = import_module("transformers")
    name, changes, *_ = TEXT[kind]
    config = library.AutoConfig.for_model(kind, **changes)
    config.use_cache = False
    masks = import_module("transformers.masking_utils").__dict__
    masks["find_packed_sequence_indices"] = _none_is_packed
    if is_active():
        masks["fast_all"] = _all_is_attended
    model: nn.Module = getattr(library, name)(config)
    return model


def _none_is_packed(position_ids: Tensor) -> None:
    """Return what a GPU would return for a plain batch: no sequences are packed.

    The no-op runtime's zeros would mean that they are, and the mask made for them changes the attention kernel.
    """


def _all_is_attended(mask: Tensor) -> bool:
    """Return what a GPU would return for a plain batch, whose mask is all ones, unlike the no-op runtime's zeros."""
    _ = mask.sum() == mask.numel()
    return True


VOLUME: dict[str, Shape] = {"x": ((1, 64, 64, 64), 0)}
IN_VOLUMES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "UNet": ({"channels": (16, 32, 64, 128), "strides": (2, 2, 2), "num_res_units": 2}, (2, 4)),
    "BasicUNet": ({"features": (16, 16, 32, 64, 128, 16)}, (1, 2)),
    "SegResNet": ({"init_filters": 8}, (1, 2)),
    "UNETR": ({"img_size": (64, 64, 64), "feature_size": 8, "hidden_size": 96, "mlp_dim": 384, "num_heads": 4}, (1, 4)),
    "DynUNet": ({"kernel_size": (3, 3, 3), "strides": (1, 2, 2), "upsample_kernel_size": (2, 2)}, (1, 2)),
    "VNet": ({}, (1, 2)),
}  # fmt: skip


MAPS: dict[str, tuple[str, str, tuple[int, int]]] = {
    "unet_resnet18": ("Unet", "resnet18", (4, 16)), "fpn_resnet18": ("FPN", "resnet18", (4, 16)),
    "unetplusplus_mobilenet_v2": ("UnetPlusPlus", "mobilenet_v2", (4, 8)),
    "deeplabv3plus_resnet34": ("DeepLabV3Plus", "resnet34", (4, 16)),
    "pspnet_resnet18": ("PSPNet", "resnet18", (8, 16)),
}  # fmt: skip


BLOCKS = {"layers_per_block": 1, "block_out_channels": (64, 128), "norm_num_groups": 32}
DIFFUSION: dict[str, tuple[str, dict[str, Any], dict[str, Shape], tuple[int, int]]] = {
    "unet2d": ("UNet2DModel", {**BLOCKS, "sample_size": 32, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}, {"sample": ((3, 32, 32), 0), "timestep": ((), 1000)},
        (16, 64)),
    "unet2d_conditioned": ("UNet2DConditionModel", {**BLOCKS, "sample_size": 32, "cross_attention_dim": 256,
        "attention_head_dim": 8, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}, {"sample": ((4, 32, 32), 0), "timestep": ((), 1000),
        "encoder_hidden_states": ((77, 256), 0)}, (4, 16)),
    "autoencoder": ("AutoencoderKL", {**BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2}, {"sample": ((3, 128, 128), 0)}, (2, 8)),
}  # fmt: skip


GRAPH = {"x": ((4096, 128), 0), "edge_index": ((32_768,), 4096)}
GRAPHS = ("GraphSAGE", "GIN", "EdgeCNN")
OF_GRAPHS = {"in_channels": 128, "hidden_channels": 256, "num_layers": 3, "out_channels": 64}


def installed() -> dict[str, str]:
    """Return the installed libraries' versions, since a model of one version may need other memory in the next."""
    names = sorted({family.library for family in families().values()} - {"torch"})
    return {name: version(name) for name in names if find_spec(name) is not None}


def families() -> dict[str, Family]:
    """All families by name."""
    return {family.name: family for family in _families()}


def _families() -> Iterator[Family]:
    for library, place in (("torchvision", ("torchvision.models", "get_model")), ("timm", ("timm", "create_model"))):
        for name, batches in IMAGES[library].items():
            yield Family(library, name, partial(made, *place, name), {"x": (IMAGE, 0)}, batches, True)
    for kind, (_, _, inputs, batches) in TEXT.items():
        yield Family("transformers", f"hf_{kind}", partial(_transformer, kind), inputs, batches)
    for name, (arguments, batches) in IN_VOLUMES.items():
        sizes = {"in_channels": 1, "out_channels": 2, **({} if name == "UNETR" else {"spatial_dims": 3}), **arguments}
        make = partial(made, "monai.networks.nets", name, **sizes)
        yield Family("monai", f"monai_{name}", make, VOLUME, batches, True)
    library, maps = "segmentation_models_pytorch", {"x": ((3, 128, 128), 0)}
    for name, (decoder, encoder, batches) in MAPS.items():
        make = partial(made, library, decoder, encoder, encoder_weights=None, classes=3)
        yield Family(library, f"smp_{name}", make, maps, batches, True)
    for name, (kind, arguments, inputs, batches) in DIFFUSION.items():
        make = partial(made, "diffusers", kind, **arguments)
        yield Family("diffusers", f"diffusers_{name}", make, inputs, batches, True)
    for name in GRAPHS:
        make = partial(made, "torch_geometric.nn", name, **OF_GRAPHS)
        yield Family("torch_geometric", f"pyg_{name}", make, GRAPH, (1, 4))
