"""Find and build the models named on the command line."""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import importlib.util
import operator
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...data.errors import InputError, SummaryError, choice_error
from ...data.model_configs import is_config
from ...data.units import describe

WEIGHTS = ".safetensors, .index.json, .gguf or .onnx"

HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+|[\w-]+")
"""Names on the Hugging Face Hub: of an owner's repository, or an old name without an owner, such as gpt2."""


class BuildError(SummaryError, RuntimeError):
    """The model could not be built: its constructor or function failed."""


@contextlib.contextmanager
def named_model(word: str, arguments: argparse.Namespace) -> Iterator[Any]:
    """Yield the model that a word names; files beside its own can be imported inside the block."""
    from ..configured import from_config, from_hub
    from ..weights import is_weights

    kwargs = parse_pairs(arguments.kwargs)
    # Without transformers, a single word is a mistake for file.py:NAME rather than a name on the Hub.
    is_name = HUB_ID.fullmatch(word) is not None and not word.endswith(".py") and not Path(word).exists()
    if is_config(word):
        yield from_config(word, **kwargs)
    elif is_weights(word):
        raise InputError(f"MODEL is {describe(word)}, weights without a forward; torchsummary-plus MODEL lists them")
    elif is_name and ("/" in word or importlib.util.find_spec("transformers") is not None):
        yield from_hub(word, **kwargs)
    else:
        place = parse_place(word)
        with importable(place):
            yield build_model(find(*place), kwargs, arguments.meta)


def parse_pairs(words: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` words as keyword arguments.

    >>> parse_pairs(["num_classes=10", "widths=(8, 16)", "act=relu"])
    {'num_classes': 10, 'widths': (8, 16), 'act': 'relu'}
    """
    pairs = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key.isidentifier():
            raise choice_error("--kwargs", word, ["key=value"])
        try:
            pairs[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            pairs[key] = value
    return pairs


def build_model(target: Any, kwargs: dict[str, Any], on_meta: bool) -> Any:
    """Call a class or function and return the model; return a model that is already built as it is."""
    import torch

    if isinstance(target, torch.nn.Module) or not callable(target):
        if kwargs or on_meta:
            raise InputError(f"MODEL is {describe(target)}, not a callable: it takes no --kwargs and no --meta")
        return target
    try:
        with torch.device("meta") if on_meta else contextlib.nullcontext():
            return target(**kwargs)
    except Exception as error:
        cure = "; pass arguments as --kwargs NAME=VALUE" if isinstance(error, TypeError) else ""
        raise BuildError(f"the model cannot be built: {type(error).__name__}: {error}{cure}") from error


def find(source: str, name: str) -> Any:
    """Return a dotted name of a module or file, or a function that builds the model of timm with that name.

    A file is imported under a name that shadows no other module. Raises :class:`InputError`, with similar names.
    """
    try:
        if source.endswith(".py"):
            spec = importlib.util.spec_from_file_location(f"file_{Path(source).stem}", source)
            assert spec is not None and spec.loader is not None  # The name ends in ".py".
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
    except Exception as error:
        raise InputError(f"{source} cannot be imported: {type(error).__name__}: {error}") from error
    if source == "timm" and not hasattr(module, name):
        return partial(module.create_model, name)
    try:
        return operator.attrgetter(name)(module)
    except AttributeError as error:
        near = difflib.get_close_matches(name, vars(module), n=5)
        like = f"; similar names: {', '.join(near)}" if near else ""
        raise InputError(f"{source} has no {name}{like}") from error


def parse_place(word: str) -> tuple[str, str]:
    """Split ``source:name`` into a module or file and a name in it. Raises :class:`InputError`."""
    source, _, name = word.rpartition(":")
    if word.endswith(".py"):
        raise InputError(f"MODEL is {describe(word)}, a file; accepted: {word}:NAME, with a class or function in it")
    if not source or not name:
        raise InputError(
            f"MODEL is {describe(word)}; accepted: 'package.module:callable', 'path/to/file.py:callable', 'timm:name', "
            f"'owner/name' on the Hugging Face Hub, a folder with config.json, or a {WEIGHTS} file"
        )
    return source, name


@contextlib.contextmanager
def importable(place: tuple[str, str]) -> Iterator[None]:
    """Temporarily put the working directory and a file's folder first in ``sys.path``: it can import its siblings."""
    before = list(sys.path)
    sys.path[:0] = [os.getcwd(), *([str(Path(place[0]).resolve().parent)] if place[0].endswith(".py") else [])]
    try:
        yield
    finally:
        sys.path[:] = before
