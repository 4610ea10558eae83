"""`from_config`: build a transformers model from its ``config.json``, without weights and without running its code."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules

from ..data.errors import InputError, UnsupportedError, need_extra, warn
from ..data.units import describe, one_line
from ..data.untrusted_files import MOST_BYTES, checked, content, offline, parsed_object, quantisation

MOST_MODULES = 100_000  # Maximum number of modules of a model that a config describes.


def from_config(path: str | Path, **changes: Any) -> nn.Module:
    """Return the transformers model that a folder's ``config.json`` describes, on the meta device: it has no weights.

    ``changes`` replace entries of the config. The dtype is the config's. A ``quantization_config`` is left out, with a
    warning (for the stored bytes, call :func:`weights` on the folder), and flash attention packages are replaced by
    torch's own. Weight files are not opened, code in the folder is not run, and nothing is downloaded: entries that
    name repositories or files are refused. Raises :class:`InputError` for a config that is malformed, has entries that
    transformers refuses, or describes more than 100,000 modules, :class:`UnsupportedError` for a model that
    transformers does not have, and :class:`MissingExtraError` without transformers.

    >>> import json, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2}
    ...     _ = pathlib.Path(folder, "config.json").write_text(json.dumps(config))
    ...     model = from_config(folder, n_layer=1)
    >>> sum(parameter.numel() for parameter in model.parameters()), next(model.parameters()).device.type
    (3332096, 'meta')
    """
    place = Path(path) if Path(path).name == "config.json" else Path(path) / "config.json"
    download = "AutoConfig.from_pretrained(name).save_pretrained(folder) downloads a config"
    data = content(place, MOST_BYTES, hint=f"; it is a local folder: {download}")
    try:
        entries = parsed_object(data)
    except ValueError as error:
        raise InputError(f"{place} is not valid JSON: {error}") from None
    return _described(str(place), entries, changes)


def from_hub(name: str, **changes: Any) -> nn.Module:
    """Return the model of a repository on the Hugging Face Hub, as :func:`from_config` does that of a folder.

    transformers reads the config, from its cache or online. Nothing else is downloaded, and the repository's code is
    never run. Raises :class:`InputError` if there is no such config, :class:`UnsupportedError` for a model that only
    the repository's code can build, and what :func:`from_config` raises.
    """
    transformers = need_extra("transformers", "transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        why = " ".join(str(error).split())
        if "trust_remote_code" in why:
            raise UnsupportedError(
                f"{name} needs custom code of its repository, which is never run: build the model in Python"
            ) from error
        raise InputError(
            f"{name} is no file or folder here (a model in a file is file.py:NAME), and transformers cannot read its "
            f"config from the Hugging Face Hub or its cache: {why}"
        ) from error
    return _described(name, parsed_object(config.to_json_string().encode()), changes)


def _described(place: str, entries: dict[str, Any], changes: dict[str, Any]) -> nn.Module:
    """Return the model that the entries of a config describe; ``place`` is where they are from, for messages."""
    transformers = need_extra("transformers", "transformers")
    kind = entries.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        cure = "a newer release may have it"
        if "auto_map" in entries:
            cure = "its custom code (auto_map) is never run: build the model in Python"
        raise UnsupportedError(
            f"{place}: transformers {transformers.__version__} has no model type {describe(kind)}; {cure}"
        )
    if unknown := sorted(set(changes) & {"trust_remote_code", "auto_map", "model_type"}):
        raise InputError(f"{unknown[0]} cannot be changed; accepted: entries of {place}")
    packed, _ = quantisation(entries)
    if packed:
        warn(
            f"{one_line(place)}: {packed} is left out: every parameter is unpacked, in the config's dtype; "
            "weights(folder) counts the stored bytes"
        )
    try:
        entries = checked({**entries, **changes}, MOST_MODULES)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    with offline() as attempts:
        try:
            return _built(transformers, transformers.CONFIG_MAPPING[kind].from_dict(entries)).eval()
        except Exception as error:
            if isinstance(error, InputError) and not attempts:
                raise
            why = f"it needs a download, {attempts[0]}" if attempts else f"{type(error).__name__}: {error}"
            raise InputError(f"no model can be built from {place}: {why}") from error


def _built(transformers: Any, config: Any) -> nn.Module:
    """Build the model class that the config names, else the bare model of its type."""
    named = getattr(config, "architectures", None) or ()
    classes = (getattr(transformers, str(name), None) for name in named)
    own = next(
        (kind for kind in classes if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)), None
    )
    build: Any = transformers.AutoModel.from_config if own is None else getattr(own, "_from_config")  # noqa: B009
    number = count(1)

    def registered(*_: Any) -> None:
        if next(number) > MOST_MODULES:
            raise InputError(f"the config describes more than {MOST_MODULES:,} modules")

    with torch.device("meta"), modules.register_module_module_registration_hook(registered):
        built: nn.Module = build(config)
    return built
