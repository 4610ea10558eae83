"""Small models of torchaudio. Its PyPI wheel is built for CUDA and imports without its compiled library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.cases import Case

WAVE: dict[str, Any] = {
    "extractor_mode": "group_norm",
    "extractor_conv_layer_config": [(32, 10, 5), (32, 3, 2), (32, 3, 2), (32, 2, 2)],
    "extractor_conv_bias": False, "encoder_embed_dim": 64, "encoder_projection_dropout": 0.1,
    "encoder_pos_conv_kernel": 16, "encoder_pos_conv_groups": 4, "encoder_num_layers": 2, "encoder_num_heads": 4,
    "encoder_attention_dropout": 0.1, "encoder_ff_interm_features": 128, "encoder_ff_interm_dropout": 0.1,
    "encoder_dropout": 0.1, "encoder_layer_norm_first": False, "encoder_layer_drop": 0.0, "aux_num_out": 12,
}  # fmt: skip
LENGTHS = torch.tensor([40, 32])
SOUND = torch.rand(2, 16000)
SEGMENTS: dict[str, Any] = {"segment_length": 8, "right_context_length": 4}
MODELS: dict[str, tuple[dict[str, Any], Any]] = {
    "ConvTasNet": ({"msk_num_feats": 16, "msk_num_hidden_feats": 32, "msk_num_layers": 3, "msk_num_stacks": 1},
        (torch.rand(2, 1, 8000),)),
    "DeepSpeech": ({"n_feature": 40, "n_hidden": 64, "n_class": 12}, (torch.rand(2, 1, 30, 40),)),
    "Wav2Letter": ({"num_classes": 12, "input_type": "mfcc", "num_features": 13}, (torch.rand(2, 13, 200),)),
    "WaveRNN": ({"upsample_scales": [5, 5, 8], "n_classes": 32, "hop_length": 200, "n_res_block": 2, "n_rnn": 32,
        "n_fc": 32, "n_freq": 20, "n_hidden": 16, "n_output": 16, "kernel_size": 5},
        (torch.rand(2, 1, 1600), torch.rand(2, 1, 20, 12))),
    "Conformer": ({"input_dim": 32, "num_heads": 4, "ffn_dim": 64, "num_layers": 2, "depthwise_conv_kernel_size": 7},
        (torch.rand(2, 40, 32), LENGTHS)),
    "Emformer": ({"input_dim": 32, "num_heads": 4, "ffn_dim": 64, "num_layers": 2, **SEGMENTS},
        (torch.rand(2, 44, 32), LENGTHS)),
    "Tacotron2": ({"n_mels": 20, "n_symbol": 40, "symbol_embedding_dim": 32, "encoder_embedding_dim": 32,
        "decoder_rnn_dim": 32, "attention_rnn_dim": 32, "prenet_dim": 16, "postnet_embedding_dim": 32},
        (torch.randint(0, 40, (2, 12)), torch.tensor([12, 10]), torch.rand(2, 20, 8), torch.tensor([8, 6]))),
    "HDemucs": ({"sources": ["a", "b"], "channels": 8, "nfft": 1024, "depth": 5}, (torch.rand(1, 2, 16384),)),
    "wav2vec2_model": (WAVE, (SOUND,)),
    "wav2vec2_model_lengths": (WAVE, (SOUND, torch.tensor([16000, 12000]))),
    "wav2vec2_model_layer_norm": ({**WAVE, "extractor_mode": "layer_norm", "encoder_layer_norm_first": True}, (SOUND,)),
    "wavlm_model": ({**WAVE, "encoder_num_buckets": 32, "encoder_max_distance": 80}, (SOUND,)),
    "emformer_rnnt_model": ({"input_dim": 20, "encoding_dim": 32, "num_symbols": 40, "segment_length": 8,
        "right_context_length": 4, "time_reduction_input_dim": 16, "time_reduction_stride": 2,
        "transformer_num_heads": 4, "transformer_ffn_dim": 64, "transformer_num_layers": 2, "transformer_dropout": 0.1,
        "transformer_activation": "gelu", "transformer_left_context_length": 4, "transformer_max_memory_size": 0,
        "transformer_weight_init_scale_strategy": "depthwise", "transformer_tanh_on_mem": False,
        "symbol_embedding_dim": 16, "num_lstm_layers": 1, "lstm_layer_norm": True, "lstm_layer_norm_epsilon": 1e-5,
        "lstm_dropout": 0.1}, (torch.rand(2, 44, 20), LENGTHS, torch.randint(0, 40, (2, 6)), torch.tensor([6, 5]))),
    "SquimObjective": ({}, (SOUND[:, :8000],)),
}  # fmt: skip
"""The arguments of each model, and its input. A suffix distinguishes models of one function."""

FACTORIES = {
    "emformer_rnnt_model": "rnnt:emformer_rnnt_model",
    "SquimObjective": "squim:squim_objective_base",
}
"""Constructors that ``torchaudio.models`` keeps in other modules."""


def torchaudio_cases() -> Iterator[Case]:
    for name, (arguments, data) in MODELS.items():
        yield Case("torchaudio", name, partial(_build, name, arguments), data=data)


def _build(name: str, arguments: dict[str, Any]) -> nn.Module:
    module, _, function = FACTORIES.get(name, f":{name}").partition(":")
    models = import_module(f"torchaudio.models.{module}".rstrip("."))
    while not hasattr(models, function) and "_" in function:
        function = function.rpartition("_")[0]
    make: Callable[..., nn.Module] = getattr(models, function)
    return make(**arguments)
