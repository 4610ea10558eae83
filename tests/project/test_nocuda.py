"""The no-op CUDA runtime: its inputs on any machine; its own tests where torch has a CUDA build."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.nocuda.build import find_wheel
from benchmarks.nocuda.cards import CARDS, card_names
from tests.truth.releases import from_release
from torchsummary_plus.memory.gpus import context_bytes, find_gpu

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks/nocuda/csrc").glob("*.cc")), ids=lambda path: path.name)
def test_a_source_defines_no_function_twice(path: Path) -> None:
    """Which g++ refuses, but only where torch has a CUDA build."""
    names = re.findall(r"^API .*?(\w+)\(", path.read_text(), re.MULTILINE)
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", card_names())
def test_a_card_has_its_properties_and_their_sources(name: str) -> None:
    card = json.loads((CARDS / f"{name}.json").read_text())
    known = find_gpu(card["name"])
    assert known.compute_capability == (card["major"], card["minor"])
    assert known.usable_bytes == card["memory_mib"] << 20
    assert context_bytes(known.compute_capability, environment={}, cuda=13)[1] == card["context_mib"] << 20
    assert set(card["sources"]) == {"chip", "limits", "memory", "context"} and all(card["sources"].values())


@from_release("2.11", "the CUDA 13 runtime that is stood in for")
@pytest.mark.skipif(find_wheel() is None or shutil.which("g++") is None, reason="needs torch's CUDA wheel and g++")
@pytest.mark.parametrize("card", ["H100", "RTX3090"])
def test_on_the_stand_ins(card: str) -> None:
    """The tests in benchmarks/nocuda, in a process of their own: this one has torch without them."""
    tests = ["-m", "pytest", "-q", "-rs", "benchmarks/nocuda/tests"]
    command = [sys.executable, "-m", "benchmarks.nocuda", "--card", card, *tests]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all(" came with torch " in line for line in skipped), done.stdout
