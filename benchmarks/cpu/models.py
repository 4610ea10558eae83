"""Small models of every family, whose CPU memory is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


def pairs(*shape: int) -> Example:
    """Return two tensors of standard normal numbers."""
    return lambda batch: (torch.randn(batch, *shape), torch.randn(batch, *shape))


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


def gated() -> nn.Module:
    return seq(nn.Linear(64, 512), nn.GLU(), nn.Linear(256, 512), nn.GLU(), nn.Linear(256, 10))


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


def residual3d() -> nn.Module:
    block = [nn.Conv3d(8, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(True), nn.Conv3d(8, 8, 3, padding=1)]
    return seq(
        nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(True), Skip(*block), nn.MaxPool3d(2),
        nn.Conv3d(8, 16, 3, 2, 1), nn.ReLU(True), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


def wavenet() -> nn.Module:
    blocks = [Skip(nn.Conv1d(16, 32, 3, padding=2**i, dilation=2**i), nn.GLU(1)) for i in range(4)]
    return seq(nn.Conv1d(1, 16, 1), *blocks, nn.ReLU(), nn.Conv1d(16, 8, 1))


def sound() -> nn.Module:
    stages = [(1, 16, 80, 4), (16, 16, 3, 1), (16, 32, 3, 1)]
    layers = [seq(nn.Conv1d(i, o, k, s), nn.BatchNorm1d(o), nn.ReLU(), nn.MaxPool1d(4)) for i, o, k, s in stages]
    return seq(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 10))


def squeezed(width: int) -> nn.Module:
    """A squeeze-and-excitation block."""
    gate = seq(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.ReLU(), nn.Conv2d(width // 4, width, 1))
    return Through(lambda inner, x: x * inner(x).sigmoid(), gate)


def excited() -> nn.Module:
    return seq(conv(3, 32), squeezed(32), conv(32, 32), squeezed(32), *head(32))


def separable() -> nn.Module:
    return seq(conv(3, 32), conv(32, 32, groups=32), conv(32, 64, 1), conv(64, 64, 3, 2, 64), *head(64))


def dense() -> nn.Module:
    return seq(conv(3, 16), Skip(conv(16, 16), join=1), Skip(conv(32, 32), join=1), *head(64))


def style() -> nn.Module:
    def layer(i: int, o: int, stride: int = 1) -> nn.Module:
        return seq(nn.ReflectionPad2d(1), nn.Conv2d(i, o, 3, stride), nn.InstanceNorm2d(o, affine=True), nn.ReLU())

    up = nn.Upsample(scale_factor=2)
    return seq(layer(3, 8), layer(8, 16, 2), Skip(layer(16, 16)), up, layer(16, 8), nn.Conv2d(8, 3, 1), nn.Tanh())


def enlarged() -> nn.Module:
    body = [Skip(nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(True), nn.Conv2d(24, 24, 3, padding=1)) for _ in range(2)]
    tail = [nn.Conv2d(24, 96, 3, padding=1), nn.PixelShuffle(2), nn.PReLU(24), nn.Conv2d(24, 3, 3, padding=1)]
    return seq(nn.Conv2d(3, 24, 3, padding=1), *body, *tail)


def pyramid() -> nn.Module:
    def forward(stem: nn.Module, down: nn.Module, side: nn.Module, top: nn.Module, out: nn.Module, x: Tensor) -> Tensor:
        a = stem(x)
        b = down(a)
        up = F.interpolate(top(b), size=a.shape[-2:], mode="nearest")
        merged: Tensor = out(side(a) + up)
        return merged.flatten(1).sum(1) + out(top(b)).flatten(1).sum(1)

    return Through(
        forward, conv(3, 16, 3, 2), conv(16, 32, 3, 2), nn.Conv2d(16, 16, 1), nn.Conv2d(32, 16, 1),
        nn.Conv2d(16, 16, 3, padding=1),
    )  # fmt: skip


def autoencoder() -> nn.Module:
    down = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 8, 3, 1, 1)]
    up = [nn.ConvTranspose2d(8, 16, 2, 2), nn.ReLU(), nn.ConvTranspose2d(16, 3, 2, 2), nn.Sigmoid()]
    return Through(lambda inner, x: F.mse_loss(inner(x), x), seq(*down, *up))


def encoder(norm_first: bool = False) -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, norm_first=norm_first, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def translator() -> nn.Module:
    return Through(lambda inner, a, b: inner(a, b), nn.Transformer(64, 4, 1, 1, 128, batch_first=True))


def adapted() -> nn.Module:
    return seq(nets.Adapted(64, 256), nn.GELU(), nets.Adapted(256, 256), nn.GELU(), nets.Adapted(256, 10))


def frozen() -> nn.Module:
    body = seq(conv(3, 16), conv(16, 32, 3, 2), conv(32, 32))
    body.requires_grad_(False)
    return seq(body, *head(32))


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

MLPS: dict[str, tuple[Callable[[], nn.Module], Example]] = {
    "mlp": (mlp, floats(64)), "mlp_wide": (partial(mlp, 256, nn.Tanh), floats(256)),
    "mlp_norm": (normalised, floats(64)), "mlp_residual": (residual, floats(64)), "mlp_gated": (gated, floats(64)),
    "mlp_double": (lambda: mlp().double(), lambda batch: (torch.randn(batch, 64, dtype=torch.float64),)),
    "mlp_adapted": (adapted, floats(64)), "vae": (nets.VAE, floats(256)),
    "radiance_field": (nets.Field, floats(100, 3)), "experts": (nets.Experts, floats(20, 48)),
    "graph": (nets.Graph, floats(30, 32)), "recommender": (recommender, words(4)), "mixer": (nets.Mixer, IMAGE),
    "timm_gmlp": (partial(timm_model, "gmlp_ti16_224", img_size=32), IMAGE),
    "timm_resmlp": (partial(timm_model, "resmlp_12_224", img_size=32), IMAGE),
}  # fmt: skip

CNNS: dict[str, tuple[Callable[[], nn.Module], Example]] = {
    "vgg": (vgg, IMAGE), "vgg_channels_last": (channels_last(vgg), IMAGE), "squeeze_excite": (excited, IMAGE),
    "separable": (separable, IMAGE), "dense_block": (dense, IMAGE), "frozen_body": (frozen, IMAGE),
    "spatial_transformer": (nets.Transformed, IMAGE), "feature_pyramid": (pyramid, IMAGE),
    "style_transfer": (style, IMAGE), "super_resolution": (enlarged, IMAGE), "conv_autoencoder": (autoencoder, IMAGE),
    "gan": (nets.GAN, floats(32, 1, 1)), "fourier_operator": (nets.Spectral, floats(1, 32, 32)),
    "resnet18": (partial(vision, "resnet18"), LARGE),
    "resnet18_channels_last": (channels_last(partial(vision, "resnet18")), LARGE),
    "resnet50": (partial(vision, "resnet50"), LARGE),
    "resnext50": (partial(vision, "resnext50_32x4d"), LARGE),
    "densenet121": (partial(vision, "densenet121"), LARGE),
    "googlenet": (partial(vision, "googlenet", aux_logits=False, init_weights=False), LARGE),
    "squeezenet": (partial(vision, "squeezenet1_1"), LARGE),
    "mobilenet_v2": (partial(vision, "mobilenet_v2"), LARGE),
    "mobilenet_v3": (partial(vision, "mobilenet_v3_small"), LARGE),
    "shufflenet": (partial(vision, "shufflenet_v2_x0_5"), LARGE),
    "mnasnet": (partial(vision, "mnasnet0_5"), LARGE),
    "efficientnet_b0": (partial(vision, "efficientnet_b0"), LARGE),
    "regnet": (partial(vision, "regnet_y_400mf"), LARGE),
    "convnext": (partial(timm_model, "convnext_atto"), LARGE),
    "unet": (nets.UNet, IMAGE),
    "unet_bilinear": (partial(nets.UNet, "bilinear"), IMAGE),
    "unet_channels_last": (channels_last(nets.UNet), IMAGE), "diffusion_unet": (nets.DiffusionUNet, noisy),
    "resnet3d": (residual3d, floats(1, 8, 16, 16)), "wavenet": (wavenet, floats(1, 400)),
    "sound": (sound, floats(1, 4000)),
}  # fmt: skip

RNNS: dict[str, tuple[Callable[[], nn.Module], Example]] = {
    "rnn": (recurrent(nn.RNN, 1), words(24)),
    "gru": (recurrent(nn.GRU, 2), words(24)),
    "lstm": (recurrent(nn.LSTM, 1), words(24)),
    "lstm_two_ways": (recurrent(nn.LSTM, 2, dropout=0.1, bidirectional=True), words(24)),
    "lstm_attention": (nets.Translator, words(20)),
    "lstm_cell": (lambda: nets.CellByCell(nn.LSTMCell(24, 32), 32), floats(8, 24)),
    "gru_cell": (lambda: nets.CellByCell(nn.GRUCell(24, 32), 32), floats(8, 24)),
}

TRANSFORMERS: dict[str, tuple[Callable[[], nn.Module], Example]] = {
    "vit": (transformer_nets.ViT, IMAGE),
    "vit_plain": (partial(transformer_nets.ViT, kind="plain"), IMAGE),
    "vit_twins": (lambda: nets.Contrastive(transformer_nets.ViT()), pairs(3, 32, 32)),
    "vit_torchvision": (partial(vision, "VisionTransformer", **PATCHES), LARGE),
    "vit_timm": (partial(timm_model, "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3), IMAGE),
    "vit_transformers": (hugging("ViT", "ForImageClassification", "image", SIGHT), IMAGE),
    "swin_timm": (partial(timm_model, "swin_tiny_patch4_window7_224", **SWIN), floats(3, 56, 56)),
    "gpt": (transformer_nets.GPT, words(48)),
    "gpt_plain": (partial(transformer_nets.GPT, "plain"), words(48)),
    "gpt_checkpointed": (partial(transformer_nets.GPT, saves=True), words(48)),
    "gpt2": (hugging("GPT2", "LMHeadModel", "text", GPT2), IDS),
    "gpt_neox": (hugging("GPTNeoX", "ForCausalLM", "text", WIDE), IDS),
    "opt": (hugging("OPT", "ForCausalLM", "text", OPT), IDS),
    "llama": (transformer_nets.Llama, words(48)),
    "llama_transformers": (hugging("Llama", "ForCausalLM", "text", GROUPED), IDS),
    "mistral": (hugging("Mistral", "ForCausalLM", "text", GROUPED), IDS),
    "qwen2": (hugging("Qwen2", "ForCausalLM", "text", GROUPED), IDS),
    "bert": (hugging("Bert", "ForMaskedLM", "text", WIDE), IDS),
    "roberta": (hugging("Roberta", "ForSequenceClassification", "logits", WIDE), IDS),
    "distilbert": (hugging("DistilBert", "ForMaskedLM", "text", DISTILLED), IDS),
    "albert": (hugging("Albert", "ForMaskedLM", "text", NARROW), IDS),
    "electra": (hugging("Electra", "ForTokenClassification", "logits", NARROW), IDS),
    "t5": (hugging("T5", "ForConditionalGeneration", "text", T5), IDS),
    "bart": (hugging("Bart", "ForConditionalGeneration", "text", PAIR), IDS),
    "whisper": (hugging("Whisper", "ForConditionalGeneration", "sound", WHISPER), floats(16, 48)),
    "encoder": (encoder, floats(32, 64)),
    "encoder_norm_first": (partial(encoder, True), floats(32, 64)),
    "encoder_decoder": (translator, pairs(24, 64)),
}

HALVES: dict[str, tuple[Callable[[], nn.Module], Example]] = {
    "mlp_autocast": (partial(mlp, 128), floats(128)),
    "resnet18_autocast": (partial(vision, "resnet18"), LARGE),
    "gpt_autocast": (transformer_nets.GPT, words(48)),
}
"""Models whose forward runs under autocast to bfloat16."""

SUBJECTS = tuple(
    Subject(name, family, build, example, torch.bfloat16 if family == "autocast" else None)
    for family, members in (
        ("mlp", MLPS), ("cnn", CNNS), ("rnn", RNNS), ("transformer", TRANSFORMERS), ("autocast", HALVES),
    )
    for name, (build, example) in members.items()
)  # fmt: skip
"""The data file refers to these names, so a model that changes needs a new one."""
