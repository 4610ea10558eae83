"""Modules imported during an estimate keep no stand-ins for parts of torch."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchsummary_plus import estimate_memory

COPYING = """
import torch
from torch.cuda import synchronize


class Interface:
    Event, Stream = torch.cuda.Event, torch.cuda.Stream
    current_device = staticmethod(torch.cuda.current_device)

    class Worker:
        current_stream = staticmethod(torch.cuda.current_stream)
"""


class Importing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        import_module("copying_module")
        return super().forward(x)


def test_a_module_imported_in_an_estimate_has_torchs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copying_module.py").write_text(COPYING)
    monkeypatch.syspath_prepend(tmp_path)
    cuda = torch.cuda
    own = cuda.Event, cuda.Stream, cuda.current_device, cuda.current_stream, cuda.synchronize
    estimate_memory(Importing(8, 8), (8,), 4, "cuda", progress=False)
    module: Any = sys.modules.pop("copying_module")
    interface = module.Interface
    assert (
        interface.Event,
        interface.Stream,
        interface.current_device,
        interface.Worker.current_stream,
        module.synchronize,
    ) == own
