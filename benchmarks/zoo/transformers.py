"""Models of transformers, reduced in size by general rules for any configuration class."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.cases import Case

DEPTH = (
    "num_hidden_layers encoder_layers decoder_layers num_layers num_decoder_layers n_layer n_layers num_encoder_layers"
)
EXPERTS = "num_experts num_local_experts n_routed_experts"
CHOSEN = "num_experts_per_tok top_k num_key_value_heads num_kv_heads"
HEADS = "num_attention_heads num_heads n_head n_heads encoder_attention_heads decoder_attention_heads"
HEAD_SIZE = "head_dim d_kv"
WIDTH = "hidden_size d_model n_embd embed_dim dim encoder_hidden_size decoder_hidden_size"
INNER_WIDTH = "intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner ffn_hidden_size"
FORMS = (
    {DEPTH: 2, EXPERTS: 4, CHOSEN: 2, HEADS: 4, HEAD_SIZE: 16, WIDTH: 64, INNER_WIDTH: 128},
    {DEPTH: 2, EXPERTS: 4, CHOSEN: 2, HEADS: 4, WIDTH: 64, INNER_WIDTH: 128},
    {DEPTH: 2, EXPERTS: 4},
)
"""Tiny sizes to try, by the names that configurations use for them; other names keep their defaults."""

MOST_PARAMETERS = 300_000_000


def transformers_cases(chosen: str = "") -> Iterator[Case]:
    """Yield every model type that can be built and run in a tiny size."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    for name in MODEL_MAPPING_NAMES:
        if chosen in name:
            with redirect_stdout(io.StringIO()):
                case = next(filter(None, (_case(name, form) for form in FORMS)), None)
            if case is not None:
                yield case


def _case(name: str, form: Mapping[str, int]) -> Case | None:
    """Return a model of one size with an input on which it runs; None if it cannot be built or no input fits."""
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.for_model(name)
        shrink(config, form)
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())
        if size > MOST_PARAMETERS:
            return None
        probe = AutoModel.from_config(config).eval()
        data = next((data for data in candidates(probe, config) if runs(probe, data)), None)
    except Exception:
        return None
    return None if data is None else Case("transformers", name, partial(AutoModel.from_config, config), data=data)


def shrink(config: Any, form: Mapping[str, int]) -> None:
    """Reduce a configuration, and those inside it, to a size, with a layer of each of its first two kinds."""
    for names, value in form.items():
        for name in names.split():
            if isinstance(getattr(config, name, None), int):
                _set(config, name, value)
    for name in ("layer_types", "mlp_layer_types"):
        kinds = getattr(config, name, None)
        if isinstance(kinds, list) and kinds:
            _set(config, name, [kinds[0], next((kind for kind in kinds if kind != kinds[0]), kinds[0])])
    for inner in list(vars(config).values()):
        if hasattr(inner, "model_type"):
            shrink(inner, form)


def _set(config: Any, name: str, value: Any) -> None:
    """Set an attribute if possible; some settings are derived from others."""
    with suppress(AttributeError):
        setattr(config, name, value)


def candidates(model: nn.Module, config: Any) -> Iterator[dict[str, Any]]:
    """Yield inputs suggested by the names of forward's arguments: the main one, then with another one, then all."""
    accepted = inspect.signature(model.forward).parameters
    known = {name: value for name, value in inputs(config).items() if name in accepted}
    main = getattr(model, "main_input_name", "input_ids")
    if isinstance(main, str) and main in known:
        yield {main: known[main]}
        for other in known:
            if other != main:
                yield {main: known[main], other: known[other]}
    yield known


def runs(model: nn.Module, data: dict[str, Any]) -> bool:
    """Return whether a forward succeeds."""
    try:
        with torch.no_grad():
            model(**data)
    except Exception:
        return False
    return bool(data)


def inputs(config: Any) -> dict[str, Tensor]:
    """Return tensors of the usual shapes for arguments of these names, for a batch of 2."""
    ids = torch.arange(32).reshape(2, 16) % 7 + 5
    side, channels = _first(config, ("image_size",), 224), _first(config, ("num_channels", "in_channels"), 3)
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    mels = _first(config, ("num_mel_bins", "input_feat_per_channel", "feature_size"), 80)
    frames = 2 * _first(config, ("max_source_positions",), 32)
    return {
        "input_ids": ids, "decoder_input_ids": ids, "pixel_values": torch.rand(2, channels, height, width),
        "input_values": torch.rand(2, 16000), "input_features": torch.rand(2, mels, frames),
        "attention_mask": torch.ones_like(ids), "bbox": torch.zeros(2, 16, 4, dtype=torch.long),
        "pixel_values_videos": torch.rand(2, 8, channels, height, width),
    }  # fmt: skip


def _first(config: Any, names: tuple[str, ...], default: Any) -> Any:
    """Return the first of several settings that the configuration, or one inside it, has."""
    for part in (config, *(inner for inner in vars(config).values() if hasattr(inner, "model_type"))):
        for name in names:
            if isinstance(getattr(part, name, None), (int, list, tuple)):
                return getattr(part, name)
    return default
