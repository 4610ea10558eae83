"""`from_config`: build a transformers model from its ``config.json``, without weights and without running its code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules

from ..data.errors import InputError, UnsupportedError
from ..data.extras import need_extra
from ..data.units import describe

MOST_BYTES = 10_000_000
"""Maximum size of a config.json in bytes."""

DOWNLOAD = "AutoConfig.from_pretrained(name).save_pretrained(folder) downloads a config"
"""How to get a ``config.json`` of the Hub."""

MOST_MODULES = 500_000
"""Maximum number of modules of a model that a config describes."""


def is_config(path: str | Path) -> bool:
    """Return whether a path is a ``config.json``, or a folder that contains one."""
    here = Path(path)
    return (here.name == "config.json" and here.is_file()) or (here / "config.json").is_file()


def from_config(path: str | Path, **changes: Any) -> nn.Module:
    """Return the transformers model that a folder's ``config.json`` describes, on the meta device: it has no weights.

    ``changes`` replace entries of the config. The dtype is the config's; a ``quantization_config`` is not applied (for
    the stored bytes, call :func:`weights` on the files). Weight files are not opened, code in the folder is not run,
    and nothing is downloaded. Raises :class:`InputError` for a config that is malformed, has entries that transformers
    refuses, or describes more than 500,000 modules, :class:`UnsupportedError` for a model that transformers does not
    have, and :class:`MissingExtraError` without transformers.

    >>> import json, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2}
    ...     _ = pathlib.Path(folder, "config.json").write_text(json.dumps(config))
    ...     model = from_config(folder, n_layer=1)
    >>> sum(parameter.numel() for parameter in model.parameters()), next(model.parameters()).device.type
    (3332096, 'meta')
    """
    place = Path(path) if Path(path).name == "config.json" else Path(path) / "config.json"
    entries = _read(place)
    transformers = need_extra("transformers", "transformers")
    kind = entries.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        cure = "a newer release may have it"
        if "auto_map" in entries:
            cure = "its custom code (auto_map) is never run: build the model in Python"
        raise UnsupportedError(
            f"{place}: transformers {transformers.__version__} has no model type {describe(kind)}; {cure}"
        )
    unknown = sorted(set(changes) & {"trust_remote_code", "auto_map", "model_type"})
    if unknown:
        raise InputError(f"{unknown[0]} cannot be changed; accepted: entries of {place}")
    entries = {name: value for name, value in entries.items() if name not in ("auto_map", "quantization_config")}
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict({**entries, **changes})
        return _built(transformers, config).eval()
    except (InputError, UnsupportedError):
        raise
    except Exception as error:
        raise InputError(f"no model can be built from {place}: {type(error).__name__}: {error}") from error


def _read(place: Path) -> dict[str, Any]:
    try:
        size = place.stat().st_size
        if size > MOST_BYTES:
            raise InputError(f"{place} has {size:,} bytes; the limit is {MOST_BYTES:,}")
        entries = json.loads(place.read_bytes())
    except OSError as error:
        on_hub = f"; it is a local folder: {DOWNLOAD}" if isinstance(error, FileNotFoundError) else ""
        raise InputError(f"{place} cannot be read: {error.strerror or error}{on_hub}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not valid JSON: {error}") from None
    if not isinstance(entries, Mapping):
        raise InputError(f"{place} is not a JSON object")
    return dict(entries)


def _built(transformers: Any, config: Any) -> nn.Module:
    """Build the model class that the config names, else the bare model of its type."""
    named = getattr(config, "architectures", None) or ()
    classes = (getattr(transformers, str(name), None) for name in named)
    own = next(
        (kind for kind in classes if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)), None
    )
    build: Any = transformers.AutoModel.from_config if own is None else getattr(own, "_from_config")  # noqa: B009
    with torch.device("meta"), _counted():
        built: nn.Module = build(config)
    return built


@contextmanager
def _counted() -> Iterator[None]:
    """Inside the block, raise :class:`InputError` once more than ``MOST_MODULES`` modules have been built."""
    count = 0

    def registered(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > MOST_MODULES:
            raise InputError(f"the config describes more than {MOST_MODULES:,} modules")

    handle = modules.register_module_module_registration_hook(registered)
    try:
        yield
    finally:
        handle.remove()
