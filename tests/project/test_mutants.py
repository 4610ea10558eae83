"""A small part of ``benchmarks.fire``: mutants of files from others end in a SummaryError or an answer.

Those of a ``config.json`` are in ``tests/api/test_configured.py``, which imports transformers anyway.
"""

import sys

import pytest

from benchmarks.fire.mutants import judged


@pytest.mark.skipif(sys.platform != "linux", reason="it limits the memory of forked processes")
@pytest.mark.parametrize("name", ["safetensors", "index", "onnx", "json"])
def test_mutants_are_refused_or_answered(name: str) -> None:
    if name == "onnx":
        pytest.importorskip("onnx")
    failed, answered = judged(name, 100)
    assert not failed and answered
