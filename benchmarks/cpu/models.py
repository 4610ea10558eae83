"""Small models of every family, whose CPU memory is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cpu import nets
from benchmarks.cpu import transformers as transformer_nets
from benchmarks.cpu.nets import Skip, Through, conv
from benchmarks.zoo.torchvision_on_cpu import import_torchvision

Example = Callable[[int], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Subject:
    """A model and its input for a batch size; ``autocast`` is the dtype of its forward."""

    name: str
    family: str
    build: Callable[[], nn.Module]
    example: Example
    autocast: torch.dtype | None = None


def floats(*shape: int) -> Example:
    """Return standard normal numbers."""
    return lambda batch: (torch.randn(batch, *shape),)


def words(length: int, count: int = 190) -> Example:
    """Return token ids."""
    return lambda batch: (torch.randint(1, count, (batch, length)),)


def seq(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


def mlp(width: int = 64, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    hidden = 4 * width
    return seq(
        nn.Linear(width, hidden), act(), nn.Dropout(0.1), nn.Linear(hidden, hidden), act(), nn.Linear(hidden, 10)
    )


def normalised() -> nn.Module:
    return seq(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10))


def residual() -> nn.Module:
    body = [Skip(nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128)) for _ in range(3)]
    return seq(nn.Linear(64, 128), *body, nn.Linear(128, 10))


def recommender() -> nn.Module:
    return Through(lambda table, inner, x: inner(table(x).flatten(1)), nn.Embedding(190, 16), mlp(64))


def recurrent(kind: Any, layers: int, **options: Any) -> Callable[[], nn.Module]:
    """Return a recurrent layer of 48 features between an embedding and a head."""
    width = 96 if options.get("bidirectional") else 48
    return lambda: nets.Recurrent(kind(32, 48, layers, batch_first=True, **options), width)


def noisy(batch: int) -> tuple[Tensor, ...]:
    """Return images and the time steps of their noise."""
    return torch.randn(batch, 3, 32, 32), torch.randint(0, 100, (batch,))


def head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]


def vgg() -> nn.Module:
    pool = nn.MaxPool2d(2)
    body = [conv(3, 16), conv(16, 16), pool, conv(16, 32), conv(32, 32), pool, nn.Flatten()]
    return seq(*body, nn.Linear(32 * 64, 64), nn.ReLU(True), nn.Dropout(), nn.Linear(64, 10))


def channels_last(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A model that first converts its images to channels-last."""

    def build_in_channels_last() -> nn.Module:
        model: Any = build()
        model.to(memory_format=torch.channels_last)
        return Through(lambda inner, x: inner(x.contiguous(memory_format=torch.channels_last)), model)

    return build_in_channels_last


def wavenet() -> nn.Module:
    blocks = [Skip(nn.Conv1d(16, 32, 3, padding=2**i, dilation=2**i), nn.GLU(1)) for i in range(4)]
    return seq(nn.Conv1d(1, 16, 1), *blocks, nn.ReLU(), nn.Conv1d(16, 8, 1))


def encoder(norm_first: bool = False) -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, norm_first=norm_first, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def vision(name: str, **options: Any) -> nn.Module:
    """Return a torchvision model with random weights."""
    import_torchvision()
    from torchvision import models

    if name.islower():
        options["weights"] = None
    model: nn.Module = getattr(models, name)(num_classes=10, **options)
    return model


def timm_model(name: str, **options: Any) -> nn.Module:
    """Return a timm model with random weights."""
    import_torchvision()
    import timm

    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=10, **options)
    return model


class Lossy(nn.Module):
    """A transformers model that takes one tensor and returns its loss, or its logits."""

    def __init__(self, model: Any, call: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.call(self.model, x)
        return result


CALLS: dict[str, Callable[[Any, Tensor], Any]] = {
    "text": lambda model, ids: model(input_ids=ids, labels=ids).loss,
    "logits": lambda model, ids: model(input_ids=ids).logits,
    "image": lambda model, x: model(pixel_values=x).logits,
    "sound": lambda model, x: model(input_features=x, labels=torch.arange(10).repeat(len(x), 1).to(x.device)).loss,
}
"""How a model is called with its one tensor."""


def hugging(config: str, task: str, call: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    """Return a tiny transformers model."""

    def build_model() -> nn.Module:
        if find_spec("torchvision") is not None:
            import_torchvision()
        import transformers

        configured = getattr(transformers, f"{config}Config")(**settings)
        return Lossy(getattr(transformers, config + task)(configured), CALLS[call])

    return build_model


BASE: dict[str, Any] = {"vocab_size": 200, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
WIDE: dict[str, Any] = {**BASE, "intermediate_size": 128}
GROUPED: dict[str, Any] = {**WIDE, "num_key_value_heads": 2}
NARROW: dict[str, Any] = {**WIDE, "embedding_size": 32}
OPT: dict[str, Any] = {**BASE, "ffn_dim": 128, "word_embed_proj_dim": 64}
DISTILLED = {"vocab_size": 200, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
PAIR: dict[str, Any] = {
    "vocab_size": 200, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
}  # fmt: skip
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
WHISPER: dict[str, Any] = {**PAIR, **TOKENS, "num_mel_bins": 16, "max_source_positions": 24}
T5: dict[str, Any] = {
    "vocab_size": 200, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "vocab_size": 200, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SIGHT: dict[str, Any] = {**WIDE, "image_size": 32, "patch_size": 8}
del SIGHT["vocab_size"]
PATCHES = {"image_size": 64, "patch_size": 16, "num_layers": 2, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}
SWIN = {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (3, 6)}

IMAGE, LARGE, IDS = floats(3, 32, 32), floats(3, 64, 64), words(32)

Models = dict[str, tuple[Callable[[], nn.Module], Example]]

MLPS: Models = {
    "mlp": (mlp, floats(64)), "mlp_wide": (partial(mlp, 256, nn.Tanh), floats(256)),
    "mlp_norm": (normalised, floats(64)), "mlp_residual": (residual, floats(64)),
    "mlp_double": (lambda: mlp().double(), lambda batch: (torch.randn(batch, 64, dtype=torch.float64),)),
    "experts": (nets.Experts, floats(20, 48)), "recommender": (recommender, words(4)),
    "timm_gmlp": (partial(timm_model, "gmlp_ti16_224", img_size=32), IMAGE),
    "timm_resmlp": (partial(timm_model, "resmlp_12_224", img_size=32), IMAGE),
}  # fmt: skip
VISION = {
    "resnet18": "resnet18", "resnet50": "resnet50", "resnext50": "resnext50_32x4d", "densenet121": "densenet121",
    "squeezenet": "squeezenet1_1", "mobilenet_v2": "mobilenet_v2", "mobilenet_v3": "mobilenet_v3_small",
    "shufflenet": "shufflenet_v2_x0_5", "mnasnet": "mnasnet0_5", "efficientnet_b0": "efficientnet_b0",
    "regnet": "regnet_y_400mf",
}  # fmt: skip
CNNS: Models = {
    "vgg": (vgg, IMAGE), "vgg_channels_last": (channels_last(vgg), IMAGE), "wavenet": (wavenet, floats(1, 400)),
    **{name: (partial(vision, full), LARGE) for name, full in VISION.items()},
    "resnet18_channels_last": (channels_last(partial(vision, "resnet18")), LARGE),
    "googlenet": (partial(vision, "googlenet", aux_logits=False, init_weights=False), LARGE),
    "convnext": (partial(timm_model, "convnext_atto"), LARGE), "unet": (nets.UNet, IMAGE),
    "unet_bilinear": (partial(nets.UNet, "bilinear"), IMAGE),
    "unet_channels_last": (channels_last(nets.UNet), IMAGE), "diffusion_unet": (nets.DiffusionUNet, noisy),
}  # fmt: skip
RNNS: Models = {
    "rnn": (recurrent(nn.RNN, 1), words(24)), "gru": (recurrent(nn.GRU, 2), words(24)),
    "lstm": (recurrent(nn.LSTM, 1), words(24)),
    "lstm_two_ways": (recurrent(nn.LSTM, 2, dropout=0.1, bidirectional=True), words(24)),
}  # fmt: skip
HUGGING: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2", "LMHeadModel", "text", GPT2), "gpt_neox": ("GPTNeoX", "ForCausalLM", "text", WIDE),
    "opt": ("OPT", "ForCausalLM", "text", OPT), "llama_transformers": ("Llama", "ForCausalLM", "text", GROUPED),
    "mistral": ("Mistral", "ForCausalLM", "text", GROUPED), "qwen2": ("Qwen2", "ForCausalLM", "text", GROUPED),
    "bert": ("Bert", "ForMaskedLM", "text", WIDE), "distilbert": ("DistilBert", "ForMaskedLM", "text", DISTILLED),
    "roberta": ("Roberta", "ForSequenceClassification", "logits", WIDE),
    "albert": ("Albert", "ForMaskedLM", "text", NARROW), "t5": ("T5", "ForConditionalGeneration", "text", T5),
    "electra": ("Electra", "ForTokenClassification", "logits", NARROW),
    "bart": ("Bart", "ForConditionalGeneration", "text", PAIR),
}  # fmt: skip
TRANSFORMERS: Models = {
    "vit": (transformer_nets.ViT, IMAGE), "vit_plain": (partial(transformer_nets.ViT, kind="plain"), IMAGE),
    "vit_torchvision": (partial(vision, "VisionTransformer", **PATCHES), LARGE),
    "vit_timm": (partial(timm_model, "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3), IMAGE),
    "vit_transformers": (hugging("ViT", "ForImageClassification", "image", SIGHT), IMAGE),
    "swin_timm": (partial(timm_model, "swin_tiny_patch4_window7_224", **SWIN), floats(3, 56, 56)),
    "gpt": (transformer_nets.GPT, words(48)), "gpt_plain": (partial(transformer_nets.GPT, "plain"), words(48)),
    "gpt_checkpointed": (partial(transformer_nets.GPT, saves=True), words(48)),
    "llama": (transformer_nets.Llama, words(48)), **{name: (hugging(*how), IDS) for name, how in HUGGING.items()},
    "whisper": (hugging("Whisper", "ForConditionalGeneration", "sound", WHISPER), floats(16, 48)),
    "encoder": (encoder, floats(32, 64)), "encoder_norm_first": (partial(encoder, True), floats(32, 64)),
}  # fmt: skip
HALVES: Models = {
    "mlp_autocast": (partial(mlp, 128), floats(128)), "resnet18_autocast": CNNS["resnet18"],
    "gpt_autocast": TRANSFORMERS["gpt"],
}  # fmt: skip
"""Models whose forward runs under autocast to bfloat16."""

SUBJECTS = tuple(
    Subject(name, family, build, example, torch.bfloat16 if family == "autocast" else None)
    for family, members in (
        ("mlp", MLPS), ("cnn", CNNS), ("rnn", RNNS), ("transformer", TRANSFORMERS), ("autocast", HALVES),
    )
    for name, (build, example) in members.items()
)  # fmt: skip
"""The data file refers to these names, so a model that changes needs a new one."""
