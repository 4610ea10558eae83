"""Which torch this is, for what differs between the releases that are supported."""

from __future__ import annotations

import re

import torch


def parsed(version: str) -> tuple[int, int]:
    """The major and minor number of a release, from "2.15.0+cu132" and its like."""
    found = re.match(r"(\d+)\.(\d+)", version)
    assert found is not None, version
    return int(found[1]), int(found[2])


_THIS = parsed(torch.__version__)


def since(release: str) -> bool:
    """Whether this torch is of a ``release`` such as "2.15", or of a later one."""
    return parsed(release) <= _THIS
