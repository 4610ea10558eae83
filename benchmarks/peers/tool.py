"""The interface of a tool in docs/compared.md, and how to read its printed or saved output."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Args = tuple[Any, ...]


class AbsentError(Exception):
    """The tool has no such figure or feature."""


ADAMW = torch.optim.AdamW


class Tool:
    """A tool without any feature. Subclasses implement what the tool has; ``also`` lists its other features."""

    def __init__(self) -> None:
        self.also = {}

    name = ""
    package = ""
    also: dict[str, Callable[[nn.Module, Args], Any]]

    def run(self, model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Any:
        """Run the tool on a model and its inputs, and return whatever it returns."""
        raise AbsentError

    def static(self, model: nn.Module) -> Any:
        """Run the tool on a model without inputs, and return whatever it returns."""
        raise AbsentError

    def params(self, model: nn.Module, args: Args) -> int:
        raise AbsentError

    def trained(self, model: nn.Module, args: Args) -> int:
        raise AbsentError

    def macs(self, model: nn.Module, args: Args) -> int:
        raise AbsentError

    def unknown(self, model: nn.Module, args: Args) -> Any:
        """Return the operators that the tool reports as missing from its multiply-adds."""
        raise AbsentError

    def param_bytes(self, model: nn.Module) -> int:
        raise AbsentError

    def peak(self, build: Callable[[], nn.Module], size: tuple[int, ...], batch: int) -> int:
        """Return the predicted peak of a training step with AdamW, in bytes."""
        raise AbsentError


def printed(call: Callable[[], Any]) -> str:
    """Return the text that a call prints."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        call()
    return text.getvalue()


def number(text: str, label: str) -> int:
    """Return the integer that follows a label."""
    match = re.search(rf"{label}: ([\d,]+)", text)
    assert match is not None, f"no {label!r}"
    return int(match[1].replace(",", ""))


def saved(result: Any, suffix: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return Path(result.save(str(Path(folder) / f"model{suffix}"))).stat().st_size


class Totals(Tool):
    """A tool whose ``run`` returns a result with torchinfo's names of totals."""

    def params(self, model: nn.Module, args: Args) -> int:
        return int(self.run(model, args, {}).total_params)

    def trained(self, model: nn.Module, args: Args) -> int:
        return int(self.run(model, args, {}).trainable_params)

    def macs(self, model: nn.Module, args: Args) -> int:
        return int(self.run(model, args, {}).total_mult_adds)
