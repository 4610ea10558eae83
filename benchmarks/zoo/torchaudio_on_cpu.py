"""Import torchaudio's PyPI wheel, which is built for CUDA, with a CPU build of torch.

Its compiled library cannot be loaded there. torchaudio runs without it if the file is missing
(``torchaudio/_extension/utils.py``, ``_load_lib``), and its models do not need it, so the file is hidden.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

LIBRARIES = ("_torchaudio", "libtorchaudio")


def import_torchaudio() -> ModuleType:
    """Import torchaudio, with its compiled library if that loads."""
    try:
        return import_module("torchaudio")
    except OSError as error:
        if "_torchaudio" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchaudio"]:
        del sys.modules[name]
    glob = Path.glob

    def without_library(path: Path, pattern: str, **options: Any) -> Iterable[Path]:
        return () if pattern.startswith(LIBRARIES) else glob(path, pattern, **options)

    with mock.patch.object(Path, "glob", without_library):
        return import_module("torchaudio")
