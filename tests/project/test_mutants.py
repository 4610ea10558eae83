"""A small part of ``benchmarks.fire``: mutants of files from others end in a SummaryError or an answer."""

from __future__ import annotations

import sys

import pytest

from benchmarks.fire.mutants import FORMATS, judged

COUNTS = {"safetensors": 150, "index": 150, "onnx": 150, "json": 150, "config": 20}


@pytest.mark.skipif(sys.platform != "linux", reason="it limits the memory of forked processes")
@pytest.mark.parametrize("name", FORMATS)
def test_mutants_are_refused_or_answered(name: str) -> None:
    for package in {"onnx": ("onnx",), "config": ("transformers",)}.get(name, ()):
        pytest.importorskip(package)
    failed, answered, _, _ = judged(name, COUNTS[name])
    assert not failed and answered
