"""The running torch version, for differences between supported releases."""

from __future__ import annotations

import re

import torch


def parsed(version: str) -> tuple[int, int]:
    """Return the major and minor version, from a string such as "2.15.0+cu132"."""
    match = re.match(r"(\d+)\.(\d+)", version)
    assert match is not None, version
    return int(match[1]), int(match[2])


_THIS = parsed(torch.__version__)
CUDA = parsed(torch.version.cuda)[0] if torch.version.cuda else 0
"""The major version of CUDA that the running torch was built for, 0 for a build without CUDA."""


def since(release: str) -> bool:
    """Whether the running torch is ``release`` (such as "2.15") or later."""
    return parsed(release) <= _THIS
